"""The small parts: serialisation, options from parameters, schemas, tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from whystall.agent_server.interfaces import serialize as wire
from whystall.agent_server.interfaces.mcp import http as mcp_http
from whystall.agent_server.interfaces.mcp.schemas import full_schema, input_schema
from whystall.agent_server.settings.loopback import is_loopback
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.params import Params

HOSTILE = "a\x1b[2Jb\x9b31mc\u202ed\u2028e\x7f\u200bf"


def test_json_text_is_inert_and_loses_nothing() -> None:
    value = {"comm": HOSTILE, "说明": "数据加载"}
    text = wire.dumps(value)
    assert text.isprintable() or set(text) - {"\n"} == {c for c in text if c.isprintable()}
    assert "数据加载" in text
    assert json.loads(text) == value


def test_json_text_survives_surrogates() -> None:
    text = wire.dumps({"path": "\udcff"})
    text.encode()  # would raise for a bare surrogate
    assert json.loads(text) == {"path": "\udcff"}


def test_text_keeps_its_lines_and_nothing_else_unprintable() -> None:
    text = wire.inert(f"one\n{HOSTILE}\n三")
    assert text.split("\n")[0] == "one"
    assert text.endswith("\n三")
    assert all(c.isprintable() for c in text.replace("\n", ""))


class Inner(BaseModel):
    """Nested."""

    at: Annotated[int, Field(ge=0, description="when")] = 0


class Outer(BaseModel):
    """A result."""

    name: str
    kind: Literal["a", "b"]
    at: int | None
    data: Inner
    inner: Inner | None = None
    rows: list[Inner] = []
    metrics: dict[str, float] = {}


class Call(Params):
    """Arguments."""

    pid: Annotated[int | None, Field(ge=1, description="process id")] = None
    share: Annotated[float, Field(ge=0.5, le=100.0, description="share, %")] = 10.0
    mode: Literal["a", "b"] = "a"
    query: Annotated[str, Field(max_length=10)]


def test_schemas_of_results_are_whole() -> None:
    import jsonschema

    full = full_schema(Outer)
    good = wire.structured(Outer(name="x", kind="a", at=None, data=Inner(), rows=[Inner(at=1)], metrics={"a": 1.5}))
    jsonschema.Draft202012Validator.check_schema(full)
    jsonschema.validate(good, full)
    for wrong in ({**good, "name": 1}, {**good, "inner": {"at": "x"}}, {**good, "metrics": {"a": "b"}}, {"name": "x"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, full)


def test_input_schemas_are_flat_and_bounded() -> None:
    """Bounds are also in the descriptions, for clients that drop the keywords."""
    assert input_schema(Call) == {
        "type": "object",
        "properties": {
            "pid": {"type": "integer", "minimum": 1, "description": "process id; at least 1"},
            "share": {
                **{"type": "number", "minimum": 0.5, "maximum": 100, "default": 10},
                "description": "share, %; 0.5 to 100",
            },
            "mode": {"type": "string", "enum": ["a", "b"], "default": "a"},
            "query": {"type": "string"},
        },
        "required": ["query"],
        "additionalProperties": False,
    }
    assert "mode" not in input_schema(Call, without=("mode",))["properties"]


@pytest.mark.parametrize(
    ("host", "answer"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("127.9.9.9", True)]
)
def test_loopback_is_recognised(host: str, answer: bool) -> None:
    assert is_loopback(host) is answer


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", "localhost.example.org", ""])
def test_anything_else_needs_a_token(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(mcp_http.TOKEN_VARIABLE, raising=False)
    assert not is_loopback(host)
    with pytest.raises(ToolError) as caught:
        mcp_http.choose_token(host, None, None)
    assert caught.value.code is ErrorCode.BAD_ARGUMENT


def test_a_token_is_made_for_loopback_and_differs_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(mcp_http.TOKEN_VARIABLE, raising=False)
    tokens = {mcp_http.choose_token("127.0.0.1", None, None) for _ in range(5)}
    assert len(tokens) == 5
    assert all(made and len(token) >= 40 for token, made in tokens)


def test_a_given_token_is_taken_from_file_then_environment_then_argument(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("from-a-file-012345\n")
    file.chmod(0o600)
    monkeypatch.setenv(mcp_http.TOKEN_VARIABLE, "from-environment-012345")
    assert mcp_http.choose_token("0.0.0.0", "from-argument-012345", file) == ("from-a-file-012345", False)
    assert mcp_http.choose_token("0.0.0.0", "from-argument-012345", None) == ("from-environment-012345", False)
    monkeypatch.delenv(mcp_http.TOKEN_VARIABLE)
    assert mcp_http.choose_token("0.0.0.0", "from-argument-012345", None) == ("from-argument-012345", False)
    file.write_text("")
    for weak in ("short", "has a space in it 0123456", "töken-that-is-not-ascii"):
        with pytest.raises(ToolError):
            mcp_http.choose_token("127.0.0.1", weak, None)
    with pytest.raises(ToolError):  # an empty file is no wish for a made one
        mcp_http.choose_token("127.0.0.1", None, file)


def test_a_token_file_that_every_user_can_read_is_refused_beyond_loopback(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("from-a-file-012345\n")
    file.chmod(0o644)
    with pytest.raises(ToolError, match=r"every user can read .*mode 0644") as refused:
        mcp_http.choose_token("0.0.0.0", None, file)
    assert refused.value.remedy == f"chmod 600 {file}"
    assert mcp_http.choose_token("127.0.0.1", None, file) == ("from-a-file-012345", False)
    file.chmod(0o640)
    assert mcp_http.choose_token("0.0.0.0", None, file) == ("from-a-file-012345", False)


def test_every_registered_tool_has_flat_arguments() -> None:
    from whystall.agent_server.app import App

    kinds: dict[str, Any] = {}
    for tool in App().tools():
        for name, field in input_schema(tool.params)["properties"].items():
            flat = field["items"]["type"] if field["type"] == "array" else field["type"]  # a list of paths, say
            assert flat in ("integer", "number", "string", "boolean"), name
            assert field.get("description") or "enum" in field, f"{tool.name}.{name} says nothing"
            assert kinds.setdefault(name, field["type"]) == field["type"], f"{name} means two things"


def test_every_engine_can_be_asked_for() -> None:
    from typing import get_args

    from whystall.agent_server.settings.engines import Engine
    from whystall.tools.collect.engines import ENGINES

    assert set(get_args(Engine)) == {"auto", *(make().name for make in ENGINES)}
