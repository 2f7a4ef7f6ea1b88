"""The engines a caller may choose by name."""

from __future__ import annotations

from typing import Literal

Engine = Literal["auto", "ebpf", "bcc", "tracefs", "procfs"]
"""``auto`` chooses the best that works; the others are those of `whystall.tools.toolbox`."""
