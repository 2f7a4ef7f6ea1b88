"""A file of routes is refused with the line and the field that are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from whystall.agent_server.integrations.alerts.routefile import check_names, from_text, load
from whystall.agent_server.integrations.alerts.yaml_reader import FILE_LIMIT
from whystall.tools.contract.errors import ErrorCode, ToolError

GOOD = """\
route:
  receiver: r
  routes:
    - matchers: [a="b"]
      group_wait: 1m30s
      active_time_intervals: [work]
time_intervals:
  - name: work
    time_intervals:
      - weekdays: ['monday:friday']
        times: [{start_time: '09:00', end_time: '17:00'}]
        days_of_month: [1, '-3:-1']
        location: Asia/Shanghai
inhibit_rules:
  - source_matchers: [x="1"]
    target_match_re: {y: 'z.*'}
    equal: [node]
maintenance:
  - {name: m, matchers: ['c="d"'], time_intervals: [work]}
receivers:
  - name: r
    triage: true
    chat: [{channel: ops, conversation: 群}]
    sinks: [gitlab]
    schedule: training
    given: {severity: major, category: storage}
"""


def refused(text: str | bytes) -> ToolError:
    with pytest.raises(ToolError) as caught:
        from_text(text.encode() if isinstance(text, str) else text, "f.yaml")
    assert caught.value.code is ErrorCode.BAD_ARGUMENT
    assert "\n" not in caught.value.message
    return caught.value


def test_all_that_a_file_may_say() -> None:
    routes = from_text(GOOD.encode())
    assert routes.root.children[0].options.group_wait == 90
    assert routes.root.children[0].options.active == ("work",)
    assert routes.receivers["r"].given == (("category", "storage"), ("severity", "major"))
    assert routes.names == {"a", "x", "y", "node", "c"}


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("  receiver: r\n  routes", "  receiver: q\n  routes", "f.yaml:2: route.receiver:"),
        ('a="b"', "a=", "f.yaml:4: route.routes[0].matchers[0]:"),
        ('a="b"', "'a=~\"(\"'", "f.yaml:4: route.routes[0].matchers[0]:"),
        ("1m30s", "soon", "f.yaml:5: route.routes[0].group_wait:"),
        ("group_wait: 1m30s", "group_interval: 0s", "f.yaml:5: route.routes[0].group_interval:"),
        ("group_wait: 1m30s", "group_by: [a, a]", "f.yaml:5: route.routes[0].group_by:"),
        ("group_wait: 1m30s", "group_by: ['...', a]", "f.yaml:5: route.routes[0].group_by:"),
        ("group_wait: 1m30s", "continue: 1", "f.yaml:5: route.routes[0].continue:"),
        ("group_wait: 1m30s", "match: {a: no}", "f.yaml:5: route.routes[0].match.a:"),
        ("group_wait: 1m30s", "grup_wait: 1m", "f.yaml:5: route.routes[0].grup_wait:"),
        ("group_wait: 1m30s", "matchers: []", "f.yaml:5: route.routes[0].matchers:"),
        (
            "active_time_intervals: [work]",
            "mute_time_intervals: [play]",
            "f.yaml:6: route.routes[0].mute_time_intervals[0]:",
        ),
        ("monday:friday", "monday:funday", "f.yaml:10: time_intervals[0].time_intervals[0].weekdays[0]:"),
        ("'17:00'", "'08:00'", "f.yaml:11: time_intervals[0].time_intervals[0].times[0]:"),
        ("[1, '-3:-1']", "[0]", "f.yaml:12: time_intervals[0].time_intervals[0].days_of_month[0]:"),
        ("Asia/Shanghai", "Asia/Nowhere", "f.yaml:13: time_intervals[0].time_intervals[0].location:"),
        ("    target_match_re: {y: 'z.*'}\n", "", "f.yaml:15: inhibit_rules[0]:"),
        ("matchers: ['c=\"d\"'], ", "", "f.yaml:19: maintenance[0]:"),
        ("triage: true", "triage: maybe", "f.yaml:22: receivers[0].triage:"),
        ("triage: true", "ticket: false", "f.yaml:24: receivers[0].sinks:"),
        ("severity: major", "severity: bad", "f.yaml:26: receivers[0].given.severity:"),
        ("channel: ops", "channel: o p s", "f.yaml:23: receivers[0].chat[0].channel:"),
        ("receivers:\n  - name: r", "receivers:\n  - name: r\n  - name: r", "f.yaml:22: receivers[1]:"),
        ("  receiver: r\n  routes", "  routes", "f.yaml:2: route:"),
        ("  receiver: r\n  routes", "  receiver: r\n  matchers: [a=b]\n  routes", "f.yaml:3: route.matchers:"),
        ("route:", "global: {}\nroute:", "f.yaml:1: global:"),
        ("route:\n", "route: [\n", "f.yaml:"),
    ],
)
def test_faults_are_told_with_line_and_field(old: str, new: str, where: str) -> None:
    assert old in GOOD
    assert refused(GOOD.replace(old, new, 1)).message.startswith(where)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff\xfe",
        b"- 1",
        b"just words",
        b"route: {receiver: r}",
        b"receivers: [{name: r}]",
        b"[" * 2000,
        b"route: {receiver: r, routes: " + b"[{routes: " * 40 + b"[]" + b"}]" * 40 + b"}\nreceivers: [{name: r}]",
        b"route: !!python/object/apply:os.system [id]\nreceivers: []",
    ],
    ids=["empty", "no UTF-8", "list", "words", "no receivers", "no route", "deep", "deep routes", "object"],
)
def test_what_is_no_file_of_routes(text: bytes) -> None:
    refused(text)


def test_a_small_file_does_not_stand_for_an_enormous_one() -> None:
    """Names (``&x``) of lists within lists: 300 times 300 times 300 routes, in some KB."""
    leaves = ", ".join(["{matchers: [a=b]}"] * 300)
    inner = ", ".join([f"&n {{routes: [{leaves}]}}", *["*n"] * 299])
    outer = ", ".join([f"&m {{routes: [{inner}]}}", *["*m"] * 299])
    text = f"route: {{receiver: r, routes: [{outer}]}}\nreceivers: [{{name: r}}]"
    assert "more than 20000 values" in refused(text).message


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ToolError) as missing:
        load(tmp_path / "none.yaml")
    assert missing.value.code is ErrorCode.BAD_ARGUMENT
    big = tmp_path / "big.yaml"
    big.write_bytes(b"#" * (FILE_LIMIT + 1))
    with pytest.raises(ToolError) as large:
        load(big)
    assert "larger" in large.value.message


def test_names_that_the_settings_do_not_have() -> None:
    routes = from_text(GOOD.encode())
    check_names(routes, {"gitlab"}, {"training"}, {"ops"}, None)
    for known in (({"x"}, {"training"}, {"ops"}), ({"gitlab"}, set(), {"ops"}), ({"gitlab"}, {"training"}, set())):
        with pytest.raises(ToolError):
            check_names(routes, *known, None)
