"""Each section of docs/adding.md, followed in a copy of the repository; the tests that it adds must pass there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from docs.markdown_commands import ROOT, Block, blocks

GUIDE = (ROOT / "docs/adding.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", GUIDE, re.MULTILINE | re.DOTALL))
PACKAGES = ("agent_server", "bpf", "knowledge_base", "prompts", "tools")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a copy of the repository, with links that make its packages importable as `whystall`."""
    left_out = shutil.ignore_patterns(".*", "__pycache__", "live", "objects")
    for name in (*PACKAGES, "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=left_out)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "import" / "whystall").mkdir(parents=True)
    for name in PACKAGES:
        (tmp_path / "import" / "whystall" / name).symlink_to(tmp_path / name)
    return tmp_path


def apply(block: Block, root: Path) -> Path:
    """Write the block's file, or add the block below a line of it; return the file."""
    path, _, anchor = block.about.partition(" below: ")
    file = root / path
    if not anchor:
        assert not file.exists(), f"line {block.line}: {path} exists already"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(block.text, encoding="utf-8")
        return file
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    place = next((at for at, line in enumerate(lines) if anchor in line), None)
    assert place is not None, f"line {block.line}: no line of {path} contains {anchor!r}"
    file.write_text("".join([*lines[: place + 1], block.text, *lines[place + 1 :]]), encoding="utf-8")
    return file


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_can_be_followed(section: str, copy: Path) -> None:
    files = [apply(block, copy) for block in blocks(SECTIONS[section]) if block.about]
    added = [str(file.relative_to(copy)) for file in files if file.name.startswith("test_")]
    assert added
    environment = os.environ | {"PYTHONPATH": f"{copy / 'import'}:{copy / 'tests'}"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/prompts/test_tables.py", *added]
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    linted = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F,E9", *map(str, dict.fromkeys(
        file for file in files if file.suffix == ".py"))]  # fmt: skip
    assert subprocess.run(linted, cwd=copy, capture_output=True, check=False).returncode == 0
