"""What works without the libraries of the extras, and the error where one is needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from whystall.agent_server.settings.sources import tomllib
from whystall.tools.contract.errors import ToolError
from whystall.tools.contract.extras import extra

pytestmark = pytest.mark.thorough

_LIBRARIES = ("dask", "distributed", "fsspec", "httpx", "icalendar", "requests", "resvg_py")
_PROGRAM = f"""
import sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in {_LIBRARIES!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
from whystall.agent_server.interfaces.cli.main import main
main(sys.argv[1:])
"""
_MODEL = '[llm]\nbase_url = "http://127.0.0.1:9"\nmodel = "m"\n'
_OTLP = '[otlp]\nendpoint = "http://127.0.0.1:9"\n'
_ONCALL = (
    '[users.ann]\nname = "Ann"\n[oncall]\ntimezone = "UTC"\n'
    '[oncall.rotations.r]\nmembers = ["ann"]\nevery = "weekly"\nstart = 2026-01-05T09:00:00\n'
    '[oncall.schedules.s]\ntimezone = "UTC"\n[[oncall.schedules.s.layers]]\nrotation = "r"\n'
)


def _run(words: list[str], env: dict[str, str], tmp_path: Path, settings: str = "") -> subprocess.CompletedProcess[str]:
    path = tmp_path / "whystall.toml"
    path.write_text(settings, encoding="utf-8")
    command = [sys.executable, "-c", _PROGRAM, *words]
    env = {**env, "WHYSTALL_CONFIG": str(path)}
    return subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    "words",
    [["tools"], ["doctor"], ["tickets", "list"], ["kb", "search", "slow"], ["alerts", "list"], ["config", "check"]],
)
def test_commands_that_need_no_extra(words: list[str], env: dict[str, str], tmp_path: Path) -> None:
    done = _run(words, env, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "settings", "library", "name"),
    [
        (["sinks", "list"], "", "httpx", "ticketing"),
        (["chats", "list"], "", "httpx", "ticketing"),
        (["fleet", "hosts"], "", "httpx", "fleet"),
        (["chat", "help"], "", "httpx", "ticketing"),
        (["serve", "--transport", "http", "--port", "0"], _ONCALL, "httpx", "ticketing"),
        (["serve", "--transport", "http", "--port", "0"], _OTLP, "requests", "otel"),
        (["oncall", "export"], _ONCALL, "icalendar", "ticketing"),
        (["diagnose", "--pid", "1", "--llm"], _MODEL, "httpx", "llm"),
        (["run", "slow_node_check", "--traces", "memory://ranks"], "", "fsspec", "ranks"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(
    words: list[str], settings: str, library: str, name: str, env: dict[str, str], tmp_path: Path
) -> None:
    done = _run(words, env, tmp_path, settings)
    message = f"error: bad_argument: this needs the library {library}, which is not installed"
    assert done.stderr == f"{message}; run `pip install 'whystall[{name}]'`\n"
    assert done.returncode == 2


def test_a_missing_module_of_our_own_is_a_defect() -> None:
    with pytest.raises(ModuleNotFoundError), extra("llm"):
        import whystall.nowhere  # noqa: F401
    with pytest.raises(ToolError, match=r"nowhere.*whystall\[llm\]"), extra("llm"):
        import nowhere.at_all  # noqa: F401


def test_all_is_every_extra_for_users() -> None:
    project = Path(__file__).parents[3] / "pyproject.toml"
    extras = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    names = sorted(set(extras) - {"all", "dask", "dev", "fuzz", "torch"})
    assert extras["all"] == [f"whystall[{','.join(names)}]"]
