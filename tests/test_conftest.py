"""A live test that skips itself counts as a failure where it could have run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

SKIPS = {
    "mark": "@pytest.mark.skip(reason='x')\ndef test(): pass",
    "call": "def test(): pytest.skip('x')",
    "fixture": "@pytest.fixture\ndef f(): pytest.skip('x')\ndef test(f): pass",
    "module": "pytest.skip('x', allow_module_level=True)",
    "import": "pytest.importorskip('no_such_module')\ndef test(): pass",
}


def run(root: Path, *, able: bool) -> int:
    """Run pytest there; exit status (0 passed, 1 failed, 2 errors in collection, 5 nothing collected)."""
    for name in ("conftest.py", "seeded_files.py"):
        shutil.copy(Path(__file__).with_name(name), root)
    with (root / "conftest.py").open("a") as file:
        file.write(f"\n\ndef can_trace() -> bool:\n    return {able}\n")
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={root}", str(root)]
    return subprocess.run(argv, cwd=root, capture_output=True, check=False).returncode


@pytest.mark.parametrize("skip", SKIPS)
def test_a_skipped_live_test_fails_only_where_it_could_have_run(tmp_path: Path, skip: str) -> None:
    (tmp_path / "live").mkdir()
    (tmp_path / "live" / "test_it.py").write_text(f"import pytest\n{SKIPS[skip]}\n")
    assert run(tmp_path, able=True) in (1, 2)
    assert run(tmp_path, able=False) in (0, 5)


@pytest.mark.parametrize("skip", ["mark", "call"])
def test_other_tests_may_skip_themselves(tmp_path: Path, skip: str) -> None:
    (tmp_path / "test_it.py").write_text(f"import pytest\n{SKIPS[skip]}\n")
    assert run(tmp_path, able=True) == 0
