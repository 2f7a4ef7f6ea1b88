"""Parameters: what is wrong is said in one line, with a code and what would be right."""

from __future__ import annotations

from typing import Any

import pytest

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.params import parse_params
from whystall.tools.host import offcputime, syscall_time
from whystall.tools.host.fileslower import tool as fileslower
from whystall.tools.host.host_snapshot import tool as host_snapshot
from whystall.tools.toolbox import registry


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"duration": 0.05}, "duration: Input should be greater than or equal to 0.1"),
        ({"duration": 601}, "duration: Input should be less than or equal to 600"),
        ({"duration": float("nan")}, "duration: "),
        ({"duration": "soon"}, "duration: "),
        ({"min_ms": -1}, "min_ms: "),
        ({"top": 0}, "top: "),
        ({"top": 201}, "top: "),
        ({"pid": 0}, "pid: "),
        ({"pid": "seven"}, "pid: "),
        ({"comm": ""}, "comm: "),
        ({"comm": "x" * 16}, "comm: "),
        ({"pid": 1, "comm": "a"}, "give only one of pid, comm, cgroup"),
        ({"comm": "a", "cgroup": "/b"}, "give only one of pid, comm, cgroup"),
        ({"min_sm": 5}, "unknown argument 'min_sm'"),
        ({"\x1b[2J": 5}, "unknown argument '\\x1b[2J'"),
    ],
)
def test_a_bad_argument_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ToolError) as caught:
        parse_params(fileslower.Params, values)
    assert caught.value.code is ErrorCode.BAD_ARGUMENT
    assert caught.value.message.startswith(message)
    assert caught.value.remedy
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_an_unknown_argument_lists_the_valid_ones() -> None:
    with pytest.raises(ToolError) as caught:
        parse_params(fileslower.Params, {"pidd": 1})
    assert caught.value.remedy == "valid: pid, comm, cgroup, children, duration, top, min_ms"


@pytest.mark.parametrize("module", [fileslower, host_snapshot, offcputime, syscall_time])
def test_defaults_are_complete_and_frozen(module: Any) -> None:
    params = parse_params(module.Params, {})
    assert (params.pid, params.comm, params.cgroup, params.children) == (None, None, None, False)
    with pytest.raises(ValueError, match="frozen"):
        params.duration = 3


def test_every_tool_has_the_name_of_its_module() -> None:
    tools = registry()
    assert [tool.name for tool in tools.all()] == tools.names()


def test_an_unknown_tool_lists_the_valid_ones() -> None:
    tools = registry()
    with pytest.raises(ToolError) as caught:
        tools.get("fileslow")
    assert caught.value.code is ErrorCode.NOT_FOUND
    assert caught.value.remedy == "valid: " + ", ".join(tool.name for tool in tools.all())


def test_an_error_is_one_inert_line() -> None:
    error = ToolError(ErrorCode.IO_ERROR, "cannot read /tmp/\x1b[31m\nx", "y" * 900)
    assert error.message == "cannot read /tmp/\\x1b[31m\\x0ax"
    assert len(error.remedy) == 500
    assert str(error) == f"io_error: {error.message} ({error.remedy})"
