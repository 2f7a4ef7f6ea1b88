"""Follow a section of docs/adding.md in a copy of the repository."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from docs.markdown_commands import ROOT, Block, blocks

GUIDE = (ROOT / "docs/adding.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", GUIDE, re.MULTILINE | re.DOTALL))
PACKAGES = ("agent_server", "bpf", "knowledge_base", "prompts", "tools")


def follow(section: str, root: Path) -> list[str]:
    """Copy the repository to `root`, apply the blocks of a section, and return the tests that they add."""
    for name in (*PACKAGES, "tests", "examples"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns(".*", "__pycache__", "objects"))
    shutil.copy(ROOT / "pyproject.toml", root)
    (root / "import" / "whystall").mkdir(parents=True)
    for name in PACKAGES:
        (root / "import" / "whystall" / name).symlink_to(root / name)
    files = [apply(block, root) for block in blocks(SECTIONS[section]) if block.about]
    return [str(file.relative_to(root)) for file in files if file.name.startswith("test_")]


def run(root: Path, *arguments: str) -> None:
    """Run Python in the copy; it must succeed."""
    environment = os.environ | {"PYTHONPATH": f"{root / 'import'}:{root / 'tests'}"}
    done = subprocess.run([sys.executable, *arguments], cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


def apply(block: Block, root: Path) -> Path:
    """Write the block's file, or add the block to it at a line; return the file."""
    path, mode, anchor = [*re.split(" (above|below|instead of): ", block.about), "", ""][:3]
    file = root / path
    if not anchor:
        assert not file.exists(), f"line {block.line}: {path} exists already"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(block.text, encoding="utf-8")
        return file
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    place = next((at for at, line in enumerate(lines) if anchor in line), None)
    assert place is not None, f"line {block.line}: no line of {path} contains {anchor!r}"
    before, after = lines[: place + (mode == "below")], lines[place + (mode != "above") :]
    file.write_text("".join([*before, block.text, *after]), encoding="utf-8")
    return file
