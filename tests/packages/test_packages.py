"""The wheel in bare Debian roots: installed as README.md says, it diagnoses a stall of this machine's kernel.

SUITES names the releases of Debian, separated by commas. Debian 11 has Python 3.9: BULLSEYE_PYTHON names a folder with
a newer one that was built there (``prefix``), which is put in the same place of the root; without it that release is
only tested to be refused.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from bare_root import BareRoot

HERE = Path(__file__).parent
STORE = HERE.parents[1] / ".setup/roots"
WHEEL = Path(os.environ["WHYSTALL_WHEEL"]).resolve()
BULLSEYE_PYTHON = os.environ.get("BULLSEYE_PYTHON", "")
INSTALLED = "/opt/whystall"
SYMPTOM = "training stalls every few steps"

NAMED = os.environ.get("SUITES", "bookworm,trixie").split(",")
SUITES = [*NAMED, *(["bullseye"] if BULLSEYE_PYTHON else [])]


@pytest.fixture(scope="module", params=SUITES)
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BareRoot]:
    """A bare root in which the wheel is installed by pip."""
    made = bare(request.param, tmp_path_factory.mktemp(request.param))
    python = "python3"
    if request.param == "bullseye":
        shutil.copytree(BULLSEYE_PYTHON, made.folder / BULLSEYE_PYTHON_AT, symlinks=True)
        python = f"/{BULLSEYE_PYTHON_AT}/bin/python3"
    made.check(python, "-m", "venv", INSTALLED)
    started = time.monotonic()
    made.check(f"{INSTALLED}/bin/pip", "install", "--quiet", f"/dist/{WHEEL.name}")
    print(f"\n{request.param}: installed by pip in {time.monotonic() - started:.0f} s, {measured(made, INSTALLED)}")
    yield made
    shutil.rmtree(made.folder)


BULLSEYE_PYTHON_AT = "opt/python3.11"


def bare(suite: str, folder: Path) -> BareRoot:
    """Return a root of Debian `suite` with the wheel in ``/dist``, and nothing to compile with."""
    made = BareRoot.create(suite, STORE, folder / "root")
    (made.folder / "dist").mkdir()
    shutil.copy(WHEEL, made.folder / "dist")
    shutil.copy(HERE / "stalling.py", made.folder / "root")
    assert made.compilers() == []
    return made


def measured(root: BareRoot, environment: str) -> str:
    """Return the size of an environment, and its number of packages besides whystall and pip's own."""
    (site,) = (root.folder / environment.lstrip("/")).glob("lib/python3*/site-packages")
    own = ("whystall", "pip", "setuptools", "wheel")
    names = [path.name for path in site.glob("*.dist-info") if not path.name.startswith(own)]
    size = sum(path.stat().st_size for path in site.parents[2].rglob("*") if path.is_file() and not path.is_symlink())
    return f"{size / 1e6:.0f} MB, {len(names)} packages"


@pytest.fixture
def stalling(root: BareRoot) -> Iterator[subprocess.Popen[str]]:
    """The stalling program, in the root, after its first step."""
    argv = root.argv("python3", "/root/stalling.py", "/var/tmp")
    program = subprocess.Popen(argv, env=root.environment(), stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    assert program.stdout.readline() == "/var/tmp/cache.lock\n"
    yield program
    program.kill()
    program.wait()


def test_a_stall_is_diagnosed(root: BareRoot, stalling: subprocess.Popen[str]) -> None:
    argv = ["diagnose", "--pid", str(stalling.pid), "--symptom", SYMPTOM]
    text = root.check(f"{INSTALLED}/bin/whystall", *argv)
    print(f"\n{text[:600]}")
    assert text.startswith("Verdict: CONFIRMED - A file lock is held by another process")
    assert "/var/tmp/cache.lock" in text


def test_the_parts_in_c_are_there(root: BareRoot) -> None:
    checks = json.loads(root.check(f"{INSTALLED}/bin/whystall", "doctor", "--json"))
    states = {check["name"]: check["state"] for check in checks["checks"]}
    assert [states[name] for name in ("libbpf", "bpf objects", "hybrid I/O", "privilege")] == ["ok"] * 4
    program = "open('/var/tmp/big', 'wb').write(bytes(1 << 24))"
    root.check(f"{INSTALLED}/bin/whystall", "hybrid-run", "--", "python3", "-c", program)


@pytest.mark.parametrize("words", [("--help",), ("tickets", "list")])
def test_commands_start(root: BareRoot, words: tuple[str, ...]) -> None:
    """Their time is printed: the fastest of five, with entering the root."""
    times = []
    for _ in range(5):
        started = time.monotonic()
        root.check(f"{INSTALLED}/bin/whystall", *words)
        times.append(time.monotonic() - started)
    print(f"\n{root.folder.parent.name}: whystall {' '.join(words)}: {min(times):.2f} s")


@pytest.mark.parametrize("suite", NAMED)
@pytest.mark.parametrize("installer", ["uv", "pipx"])
def test_other_installers(suite: str, installer: str, tmp_path: Path) -> None:
    root = bare(suite, tmp_path)
    root.check("python3", "-m", "venv", "/opt/installer")
    root.check("/opt/installer/bin/pip", "install", "--quiet", installer)
    started = time.monotonic()
    if installer == "uv":
        printed = root.check("/opt/installer/bin/uvx", "--from", f"/dist/{WHEEL.name}", "whystall", "doctor")
    else:
        root.check("/opt/installer/bin/pipx", "install", f"/dist/{WHEEL.name}")
        printed = root.check("/root/.local/bin/whystall", "doctor")
    print(f"\n{suite}: {installer}, with doctor: {time.monotonic() - started:.0f} s")
    assert "libbpf.so.1" in printed


def test_an_older_python_is_refused(tmp_path: Path) -> None:
    root = bare("bullseye", tmp_path)
    root.check("python3", "-m", "venv", INSTALLED)
    done = root.run(f"{INSTALLED}/bin/pip", "install", "--quiet", f"/dist/{WHEEL.name}")
    assert done.returncode != 0
    assert "No matching distribution found" in done.stderr  # pip of Debian 11 does not name Python as the reason
