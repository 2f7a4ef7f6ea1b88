"""What starting the command line imports, and the table behind `whystall --help`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer

from whystall.agent_server.interfaces.cli.command_table import COMMANDS, DESCRIPTION
from whystall.agent_server.interfaces.cli.command_tree import build

_PROGRAM = """
import sys
from whystall.agent_server.interfaces.cli.main import main
try:
    main(sys.argv[1:])
finally:
    print(*sorted(m for m in sys.modules if '.' not in m or m.startswith('whystall.')), file=sys.stderr)
"""
_SERVERS_AND_CLIENTS = {"dask", "distributed", "httpx", "icalendar", "mcp", "rich", "starlette", "torch", "uvicorn"}


def imported(words: list[str], env: dict[str, str]) -> set[str]:
    """Return the top-level modules, and all of ours, that `words` import."""
    command = [sys.executable, "-c", _PROGRAM, *words]
    done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_the_help_imports_neither_a_library_nor_a_command(words: list[str], env: dict[str, str]) -> None:
    modules = imported(words, env)
    libraries = {m for m in modules if "." not in m} - sys.stdlib_module_names - {"whystall", "__main__"}
    before = {m for m in imported_by_python(env) if "." not in m}
    assert libraries - before == set()
    assert {"asyncio", "sqlite3", "ssl"} & modules == set()
    ours = {m.removeprefix("whystall.") for m in modules if m.startswith("whystall.")}
    packages = ("agent_server.interfaces.", "tools.contract.")
    assert {m for m in ours if m.count(".") > 1 and not m.startswith(packages)} == set()
    assert {m for m in ours if ".commands" in m} == set()


def imported_by_python(env: dict[str, str]) -> list[str]:
    """Return the modules that the interpreter imports by itself, for instance for installed `.pth` files."""
    command = [sys.executable, "-c", "import sys; print(*sys.modules)"]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.split()


def test_doctor_imports_no_server_and_no_client(env: dict[str, str]) -> None:
    modules = imported(["doctor", "--json"], env)
    assert _SERVERS_AND_CLIENTS & modules == set()


def test_serve_imports_no_optional_library(env: dict[str, str]) -> None:
    """`serve` on standard input ends with it."""
    modules = imported(["serve"], env)
    assert "mcp" in modules
    assert {"dask", "distributed", "resvg_py", "rich", "torch"} & modules == set()


def test_a_tool_that_reads_traces_imports_no_other_tool_no_engine_and_no_diagnosis(env: dict[str, str]) -> None:
    traces = Path(__file__).parents[2] / "recorded" / "ranks" / "compute"
    modules = imported(["run", "slow-node-check", "--traces", str(traces)], env)
    packages = ("agent_server.diagnosis.", "bpf.", "knowledge_base.tickets.", "tools.host.", "tools.profiles.")
    assert "whystall.tools.ranks.slow_node_check.tool" in modules
    assert {m for m in modules if m.removeprefix("whystall.").startswith(packages)} == set()
    assert _SERVERS_AND_CLIENTS & modules == set()


def test_the_table_names_the_commands_that_the_modules_register() -> None:
    tree = typer.main.get_command(build([]))
    paragraphs = {name: " ".join((c.help or "").split("\n\n")[0].split()) for name, c in tree.commands.items()}  # type: ignore[attr-defined]
    assert paragraphs == {name: summary for name, (_, summary) in COMMANDS.items()}
    assert tree.help == DESCRIPTION


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_in_the_module_that_the_table_gives(name: str) -> None:
    command = typer.main.get_command(build([name]))
    assert name in command.commands  # type: ignore[attr-defined]
