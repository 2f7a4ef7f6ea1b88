"""Hostlists, files of hosts, and the names of hosts."""

from __future__ import annotations

from pathlib import Path

import pytest
from fleet_servers import settings
from pydantic import ValidationError

from whystall.agent_server.fleet.hostlist import LIMIT, expand, fold
from whystall.agent_server.fleet.inventory import Inventory, read_hosts, same_host
from whystall.agent_server.settings.sections.fleet import FleetSettings
from whystall.tools.contract.errors import ErrorCode, ToolError


def refused(text: str) -> ToolError:
    with pytest.raises(ToolError) as caught:
        expand(text)
    assert caught.value.code is ErrorCode.BAD_ARGUMENT
    return caught.value


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node[001-003,200]", ["node001", "node002", "node003", "node200"]),
        ("node[9-11]", ["node9", "node10", "node11"]),
        ("a[1-2]-ib[0-1],login", ["a1-ib0", "a1-ib1", "a2-ib0", "a2-ib1", "login"]),
        ("gpu[01-02].train.example", ["gpu01.train.example", "gpu02.train.example"]),
        ("n[3,1]", ["n1", "n3"]),
    ],
)
def test_ranges(text: str, hosts: list[str]) -> None:
    pytest.importorskip("ClusterShell")
    assert expand(text) == hosts


def test_many_hosts_are_folded() -> None:
    pytest.importorskip("ClusterShell")
    assert fold(f"node{number:03d}" for number in range(3, 18)) == "node[003-017]"
    for names in (["a1", "a2", "b", "c07", "c09"], ["7", "8"]):
        assert sorted(expand(fold(names))) == names


def test_names_that_cannot_be_folded_are_listed() -> None:
    assert fold([]) == ""
    assert fold(f"10.0.{n // 256}.{n % 256}" for n in range(1000)).endswith(" (+992)")
    assert fold(["b\x1b", "a"]) == "a,b\x1b"


@pytest.mark.parametrize("text", ["a,b", "a b", "a\nb\n", " a,,b, ", "a,b,a"])
def test_plain_names_need_no_library(text: str) -> None:
    assert expand(text) == ["a", "b"]


def test_empty_text_names_no_host() -> None:
    assert expand(" ,\n") == []


@pytest.mark.parametrize(
    "text",
    [
        *("node[", "node[]", "node]", "node[1-", "node[a-b]", "node[3-1]", "node[1-2-3]", "node[1,,2]", "n[1[2]]"),
        *("-oProxyCommand=x", "a;b", "a/b", "@all", "a!b", "a&b", "*", "\x00", "节点", "http://a", "a[1-2]b[x]"),
    ],
)
def test_what_is_no_hostlist(text: str) -> None:
    assert "\n" not in refused(text).message


@pytest.mark.parametrize(
    "text", ["n[0-999999999]", "n[0-9999]m[0-9999]p[0-9999]", f"n[0-{LIMIT}]", "n[0-9999],m[0-9999],o[0-1]"]
)
def test_too_many_hosts_are_refused_before_they_are_expanded(text: str) -> None:
    if text.startswith("n[0-9999],"):
        pytest.importorskip("ClusterShell")
    assert "more than" in refused(text).message
    assert "longer" in refused("a," * 600_000).message


def test_a_file_of_hosts(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# rack 1\nnode1\n\n node2 # spare\nnode1\n")
    assert read_hosts(path) == ["node1", "node2"]
    assert Inventory(settings({}, hosts_file=path)).names == ["node1", "node2"]
    path.write_bytes(b"\xff\xfe\n")
    with pytest.raises(ToolError, match="not a host"):
        read_hosts(path)
    with pytest.raises(ToolError, match="cannot read"):
        read_hosts(tmp_path / "none")


@pytest.mark.parametrize(
    ("stated", "name", "same"),
    [
        ("node1", "node1", True),
        ("node1.train.example", "NODE1", True),
        ("node1", "node1.train.example.", True),
        ("node1.a", "node1.b", False),
        ("node10", "node1", False),
    ],
)
def test_a_host_may_lack_its_domain(stated: str, name: str, same: bool) -> None:
    assert same_host(stated, name) is same


@pytest.mark.parametrize(
    ("given", "holding"),
    [
        ({"url": "http://{host}:8377/mcp"}, "unencrypted"),
        ({"url": "https://{host}.{domain}/mcp"}, "placeholder"),
        ({"url": "https://user:secret@{host}/mcp"}, "user or a password"),
        ({"url": "ftp://{host}/"}, "https://"),
        ({"allow": ["10.0.0.1/8"]}, "host bits"),
        ({"token": "secret-in-the-file"}, "secret"),
        ({"overrides": {"n": {"url": "http://n/mcp"}}}, "unencrypted"),
    ],
)
def test_settings_that_are_refused(given: dict[str, object], holding: str) -> None:
    with pytest.raises(ValidationError) as caught:
        FleetSettings.model_validate(given)
    assert holding in str(caught.value)
    assert "secret-in-the-file" not in str(caught.value)


def test_plain_http_is_allowed_on_a_trusted_network_and_on_loopback() -> None:
    assert FleetSettings.model_validate({"url": "http://{host}/mcp", "plain_http": True}).plain_http
    assert FleetSettings.model_validate({"overrides": {"n": {"url": "http://127.0.0.1:9/mcp"}}}).configured
    assert not FleetSettings().configured
