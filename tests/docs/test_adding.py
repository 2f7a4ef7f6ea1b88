"""Each section of docs/adding.md can be followed; the one about collectors is in tests/live."""

from __future__ import annotations

from pathlib import Path

import pytest
from docs.adding_guide import SECTIONS, follow, run

COLLECTOR = "Add a collector"


@pytest.mark.thorough
@pytest.mark.parametrize("section", sorted(SECTIONS.keys() - {COLLECTOR}))
def test_a_section_can_be_followed(section: str, tmp_path: Path) -> None:
    added = follow(section, tmp_path)
    assert added
    run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/prompts/test_tables.py", *added)
    run(tmp_path, "-m", "ruff", "check", "--no-cache", *added)
