"""Which tool examines an alert, by the names of public rules."""

from __future__ import annotations

import pytest

from whystall.agent_server.integrations.alerts.checks import check_lines, check_of, checks
from whystall.knowledge_base.causes import load_causes
from whystall.prompts.render import LANGS, words
from whystall.tools.toolbox import registry


@pytest.mark.parametrize(("name", "expected"), [(name, one.id) for one in checks() for name in one.names])
def test_names_of_public_rules_are_routed(name: str, expected: str) -> None:
    found = check_of([name])
    assert found is not None
    assert found.id == expected


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("NodeUnhealthy", "DCGM_FI_DEV_XID_ERRORS value 79", "gpu"),
        ("NodeUnhealthy", "no Xid was found", None),
        ("HostRebootPending", "", None),
        ("NodeDiskLatencyHigh", "", None),
        ("GPUHighUtilization", "", None),
        ("kube_node_not_ready", "", "node_gone"),
        ("", "", None),
        ("A" * 100_000, "", None),
    ],
)
def test_other_names_are_routed_by_their_words_or_not_at_all(name: str, text: str, expected: str | None) -> None:
    found = check_of([name], text)
    assert (found.id if found else None) == expected


def test_entries_name_tools_causes_and_commands_that_exist() -> None:
    tools, causes = {tool.name for tool in registry().all()}, load_causes()
    for one in checks():
        assert one.tool in tools
        assert set(one.causes) <= causes.keys()
        for lang in LANGS:
            assert words(lang)["alert_checks"]["why"][one.id]


def test_the_command_is_stated_with_the_host() -> None:
    check = check_of(["GPUXidErrors"])
    (line,) = check_lines(check, ["node7"], "en")
    assert line.startswith("On node7: `whystall run gpu_health`.")
    (unknown,) = check_lines(check, [], "zh")
    assert "`whystall run gpu_health`" in unknown
    assert check_lines(None, ["node7"], "en") == []
