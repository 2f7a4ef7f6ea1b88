"""`make test-packages` names a built wheel in WHYSTALL_WHEEL; without it these long tests are not collected."""

from __future__ import annotations

import os

collect_ignore_glob = [] if "WHYSTALL_WHEEL" in os.environ else ["test_*.py"]
