"""What clients and the MCP registry read: the entry of the registry, and the configuration of each client."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer.main

from whystall.agent_server.interfaces.cli.command_tree import build
from whystall.agent_server.settings.sources import tomllib

ROOT = Path(__file__).parents[2]
ENTRY = json.loads((ROOT / "server.json").read_text("utf-8"))
SCHEMA_URL = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"
_TEXT = {"type": "string", "minLength": 1}
_VARIABLE = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": _TEXT,
        "format": {"enum": ["string", "number", "boolean", "filepath"]},
        "isRequired": {"type": "boolean"},
        "isSecret": {"type": "boolean"},
    },
}
_PACKAGE = {
    "type": "object",
    "required": ["registryType", "identifier", "transport"],
    "properties": {
        "registryType": {"enum": ["npm", "pypi", "oci", "nuget", "mcpb"]},
        "registryBaseUrl": {"const": "https://pypi.org"},
        "version": {**_TEXT, "not": {"pattern": r"latest|[\^~<>*x]"}},
        "transport": {"type": "object", "required": ["type"], "properties": {"type": {"const": "stdio"}}},
        "packageArguments": {
            "items": {
                "type": "object",
                "properties": {"type": {"enum": ["positional", "named"]}},
                "anyOf": [{"required": ["type", "value"]}, {"required": ["type", "valueHint"]}],
            }
        },
        "environmentVariables": {"items": _VARIABLE},
    },
}
# The rules of the registry for what the entry uses, restated from its documentation: "Generic server.json" and
# "Official registry requirements" of github.com/modelcontextprotocol/registry, docs/reference/server-json.
RULES = {
    "type": "object",
    "required": ["$schema", "name", "description", "version", "packages"],
    "additionalProperties": False,
    "properties": {
        "$schema": {"const": SCHEMA_URL},
        "name": {"type": "string", "maxLength": 200, "pattern": r"^[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+$"},
        "title": {**_TEXT, "maxLength": 100},
        "description": {**_TEXT, "maxLength": 100},
        "version": {**_TEXT, "maxLength": 255, "pattern": r"^\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$"},
        "packages": {"type": "array", "minItems": 1, "items": _PACKAGE},
    },
}
PAGE = (ROOT / "docs/mcp.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^### (.*?)\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))
CLIENTS = ["Claude Desktop", "Claude Code", "Cursor", "VS Code", "Codex", "Gemini CLI", "Cline", "Others"]
# The member with the servers, that with the address, and a stated type of the transport (documentation of each client).
FORMS = {
    "VS Code": ("servers", "url", "http"),
    "Codex": ("mcp_servers", "url", None),
    "Gemini CLI": ("mcpServers", "httpUrl", None),
    "Claude Code": ("mcpServers", "url", "http"),
    "Cline": ("mcpServers", "url", "streamableHttp"),
}


def test_the_entry_of_the_registry_keeps_its_rules() -> None:
    jsonschema.validate(ENTRY, RULES)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**ENTRY, "description": "x" * 101}, RULES)


def test_the_entry_is_of_this_package_and_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    [package] = ENTRY["packages"]
    assert ENTRY["version"] == package["version"] == project["version"]
    assert package["identifier"] == project["name"]
    # PyPI shows the README, in which the registry looks for the name
    assert re.findall(r"mcp-name: (\S+)", (ROOT / project["readme"]).read_text("utf-8")) == [ENTRY["name"]]
    _serves([package["identifier"], *(argument["value"] for argument in package["packageArguments"])])


def test_every_client_has_a_section() -> None:
    assert list(SECTIONS) == CLIENTS


@pytest.mark.parametrize("client", CLIENTS)
def test_the_configuration_of_each_client_starts_or_reaches_the_server(client: str) -> None:
    blocks = re.findall(r"```(json|toml)\n(.*?)```", SECTIONS[client], re.DOTALL)
    assert len(blocks) == 1
    for kind, text in blocks:
        read: dict[str, Any] = json.loads(text) if kind == "json" else tomllib.loads(text)
        servers, address, transport = FORMS.get(client, ("mcpServers", "url", None))
        for name, server in read[servers].items():
            assert name.startswith("whystall")
            if "command" in server:
                assert server.get("type", "stdio") == "stdio"
                _serves([server["command"], *server["args"]])
            else:
                assert (server[address], server.get("type")) == ("http://127.0.0.1:8377/mcp", transport)
                _bearer(server, read)
    for command in re.findall(r"`claude mcp add whystall -- (.*?)`", SECTIONS[client]):
        _serves(command.split())


def _serves(command: list[str]) -> None:
    """Check that the words are a command that serves over standard input and output, possibly after ``sudo -n``."""
    words = command[2:] if command[:2] == ["sudo", "-n"] else command
    assert Path(words[0]).name == "whystall"
    group: Any = typer.main.get_command(build([]))
    serve = group.get_command(None, words[1])
    assert serve.make_context("serve", words[2:]).params["transport"] == "stdio"


def _bearer(server: dict[str, Any], read: dict[str, Any]) -> None:
    """Check that the token is sent, and stands in no file that others may read."""
    if "bearer_token_env_var" in server:
        assert server["bearer_token_env_var"] == "WHYSTALL_TOKEN"
        return
    scheme, token = server["headers"]["Authorization"].split()
    assert scheme == "Bearer"
    if asked := re.fullmatch(r"\$\{input:(.*)\}", token):
        assert asked[1] in [each["id"] for each in read["inputs"] if each["password"]]
    else:
        assert token == "..." or re.fullmatch(r"\$(\{(env:)?WHYSTALL_TOKEN\}|WHYSTALL_TOKEN)", token)
