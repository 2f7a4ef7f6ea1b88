"""Read the route file: Alertmanager's ``route``, ``time_intervals`` and ``inhibit_rules``, whystall's ``receivers``,
and ``maintenance`` (intervals in which matching alerts are silenced).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from whystall.agent_server.integrations.alerts.intervals import (
    Interval,
    Span,
    days,
    months,
    times,
    weekdays,
    years,
    zone,
)
from whystall.agent_server.integrations.alerts.matchers import MANY, BadMatcher, Matcher, Matchers, make, parse
from whystall.agent_server.integrations.alerts.receivers import Receiver, receiver
from whystall.agent_server.integrations.alerts.tree import ALL, Node, Options, unique_key, walk
from whystall.agent_server.integrations.alerts.yaml_reader import Item, read
from whystall.agent_server.integrations.alerts.yaml_reader import parse as parsed
from whystall.tools.contract.errors import ErrorCode, ToolError

_FILE = {"route", "receivers", "time_intervals", "mute_time_intervals", "inhibit_rules", "maintenance"}
_OWN = {"matchers", "match", "match_re", "continue", "mute_time_intervals", "active_time_intervals"}
_ROUTE = _OWN | {"receiver", "group_by", "group_wait", "group_interval", "repeat_interval", "routes"}
_INHIBIT = {"source_match", "source_match_re", "source_matchers", "target_match", "target_match_re", "target_matchers"}
_INTERVAL = {"times", "weekdays", "days_of_month", "months", "years", "location"}
_DEPTH = 30  # levels of routes


@dataclass(frozen=True)
class InhibitRule:
    """Alerts that match `target` are muted while one that matches `source` fires with the same `equal` labels."""

    name: str
    source: Matchers
    target: Matchers
    equal: tuple[str, ...] = ()


@dataclass(frozen=True)
class Maintenance:
    """Matching alerts are muted in these intervals."""

    name: str
    matchers: Matchers
    intervals: tuple[str, ...]


@dataclass(frozen=True)
class Routes:
    """The content of a route file."""

    root: Node
    receivers: dict[str, Receiver]
    intervals: dict[str, tuple[Interval, ...]] = field(default_factory=dict)
    inhibit: tuple[InhibitRule, ...] = ()
    maintenance: tuple[Maintenance, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """Return the labels that any matcher, grouping or inhibition rule uses."""
        found = {name for node in walk(self.root) for name in node.options.group_by if name != ALL}
        matchers: list[Matcher] = [m for node in walk(self.root) for m in node.matchers]
        for rule in self.inhibit:
            matchers += [*rule.source, *rule.target]
            found.update(rule.equal)
        matchers += [m for window in self.maintenance for m in window.matchers]
        return frozenset(found | {m.name for m in matchers})

    def node(self, key: str, receiver_name: str) -> Node | None:
        """Return the route with that `Node.key` and receiver, if it still exists."""
        return next((n for n in walk(self.root) if n.key == key and n.options.receiver == receiver_name), None)


def load(path: Path | None) -> Routes:
    """Read the file `path`; None gives the default routes. Raises `ToolError` (bad_argument) with file and line."""
    return routes(read(path)) if path is not None else default()


def from_text(raw: bytes, name: str = "routes.yaml") -> Routes:
    """Parse the content `raw` of a route file; `name` is for error messages."""
    return routes(parsed(raw, name))


def default() -> Routes:
    """Return the routes used without a file: one receiver with tickets, grouped by name, cluster, namespace, job
    and, of alerts on stalls, the stalled job and the cause."""
    options = Options("default", group_by=("alertname", "cluster", "namespace", "job", "job_name", "cause"))
    return Routes(Node(options, key="{}"), {"default": Receiver(name="default")})


def routes(file: Item) -> Routes:
    top = file.table(_FILE)
    if "receivers" not in top or "route" not in top:
        file.fail(f"`{'route' if 'receivers' in top else 'receivers'}` is missing")
    receivers: dict[str, Receiver] = {}
    for item in top["receivers"].items():
        made = receiver(item)
        if made.name in receivers:
            item.fail(f"a second receiver is called {made.name!r}")
        receivers[made.name] = made
    intervals = _intervals(top)
    root = top["route"].table(_ROUTE)
    if "receiver" not in root:
        top["route"].fail("the root needs a `receiver` for alerts that no other route matches")
    if odd := next((root[name] for name in _OWN if name in root), None):
        odd.fail("not allowed in the root, which matches every alert at any time")
    tree = _node(top["route"], Options(""), "", (), set(receivers), set(intervals), set())
    maintenance = _maintenance(top["maintenance"], set(intervals)) if "maintenance" in top else ()
    inhibit = tuple(map(_inhibit, top["inhibit_rules"].items())) if "inhibit_rules" in top else ()
    return Routes(tree, receivers, intervals, inhibit, maintenance)


def _node(
    item: Item,
    above: Options,
    parent: str,
    indices: tuple[int, ...],
    receivers: set[str],
    intervals: set[str],
    taken: set[str],
) -> Node:
    if len(indices) > _DEPTH:
        item.fail(f"routes are nested deeper than {_DEPTH}")
    table = item.table(_ROUTE)
    options = replace(above, mute=(), active=())
    if "receiver" in table:
        if (name := table["receiver"].text()) not in receivers:
            table["receiver"].fail(f"no receiver is called {name!r}", f"valid: {', '.join(sorted(receivers))}")
        options = replace(options, receiver=name)
    if "group_by" in table:
        options = replace(options, group_by=_group_by(table["group_by"]))
    if "group_wait" in table:
        options = replace(options, group_wait=table["group_wait"].seconds())
    if "group_interval" in table:
        options = replace(options, group_interval=table["group_interval"].seconds(zero=False))
    if "repeat_interval" in table:
        options = replace(options, repeat_interval=table["repeat_interval"].seconds(zero=False))
    if "mute_time_intervals" in table:
        options = replace(options, mute=_known(table["mute_time_intervals"], intervals))
    if "active_time_intervals" in table:
        options = replace(options, active=_known(table["active_time_intervals"], intervals))
    matchers = _matchers(table, "match", "match_re", "matchers")
    key = unique_key(parent, matchers, taken) if indices else "{}"
    elder: set[str] = set()
    children = tuple(
        _node(child, options, key, (*indices, position), receivers, intervals, elder)
        for position, child in enumerate(table["routes"].items() if "routes" in table else ())
    )
    continue_ = table["continue"].flag() if "continue" in table else False
    return Node(options, matchers, continue_, children, indices, key, item.line)


def _group_by(item: Item) -> tuple[str, ...]:
    names = item.texts()
    if len(set(names)) < len(names):
        item.fail("a label is named twice")
    if ALL in names and len(names) > 1:
        item.fail(f"'{ALL}' means all labels and stands alone")
    if "" in names:
        item.fail("a label without a name")
    return names


def _known(item: Item, intervals: set[str]) -> tuple[str, ...]:
    for one in item.items():
        if one.text() not in intervals:
            one.fail(f"no time interval is called {one.text()!r}", f"valid: {', '.join(sorted(intervals)) or 'none'}")
    return item.texts()


def _matchers(table: dict[str, Item], equal: str, regex: str, new: str) -> Matchers:
    """Return the matchers of all three forms: ``match: {a: b}``, ``match_re: {a: b.*}``, ``matchers: [a="b"]``."""
    found: list[Matcher] = []
    for name, op in ((equal, "="), (regex, "=~")):
        for label, value in table[name].table().items() if name in table else ():
            try:
                found.append(make(label, op, value.text()))
            except BadMatcher as error:
                value.fail(str(error))
    for item in table[new].items() if new in table else ():
        try:
            found += parse(item.text())
        except BadMatcher as error:
            item.fail(f"{error} (character {error.at + 1} of {item.text()[:80]!r})")
    if len(found) > MANY:
        next(table[name] for name in (new, equal, regex) if name in table).fail(f"more than {MANY} matchers")
    return tuple(found)


def _inhibit(item: Item) -> InhibitRule:
    table = item.table(_INHIBIT | {"equal", "name"})
    source = _matchers(table, "source_match", "source_match_re", "source_matchers")
    target = _matchers(table, "target_match", "target_match_re", "target_matchers")
    if not source or not target:
        item.fail(f"no {'source' if not source else 'target'} matchers: it would inhibit every alert")
    name = table["name"].text() if "name" in table else f"line {item.line}"
    return InhibitRule(name, source, target, table["equal"].texts() if "equal" in table else ())


def _maintenance(item: Item, intervals: set[str]) -> tuple[Maintenance, ...]:
    found = []
    for window in item.items():
        table = window.table({"name", "matchers", "time_intervals"})
        if missing := {"name", "matchers", "time_intervals"} - set(table):
            window.fail(f"`{min(missing)}` is missing")
        matchers = _matchers(table, "", "", "matchers")
        if not matchers:
            table["matchers"].fail("without matchers it would silence every alert; name at least one")
        found.append(Maintenance(table["name"].text(), matchers, _known(table["time_intervals"], intervals)))
    return tuple(found)


def _intervals(top: dict[str, Item]) -> dict[str, tuple[Interval, ...]]:
    found: dict[str, tuple[Interval, ...]] = {}
    for section in ("time_intervals", "mute_time_intervals"):
        for item in top[section].items() if section in top else ():
            table = item.table({"name", "time_intervals"})
            if "name" not in table:
                item.fail("`name` is missing")
            if (name := table["name"].text()) in found:
                table["name"].fail(f"a second time interval is called {name!r}")
            parts = table["time_intervals"].items() if "time_intervals" in table else []
            found[name] = tuple(map(_interval, parts))
    return found


def _interval(item: Item) -> Interval:
    table = item.table(_INTERVAL)
    made = Interval()
    for one in table["times"].items() if "times" in table else ():
        clocks = one.table({"start_time", "end_time"})
        if len(clocks) < 2:
            one.fail("give start_time and end_time")
        try:
            span = times(clocks["start_time"].text(), clocks["end_time"].text())
        except ValueError as error:
            one.fail(str(error))
        made = replace(made, times=(*made.times, span))
    made = replace(
        made,
        weekdays=_spans(table, "weekdays", weekdays),
        days=_spans(table, "days_of_month", days),
        months=_spans(table, "months", months),
        years=_spans(table, "years", years),
    )
    if "location" in table:
        try:
            made = replace(made, zone=zone(table["location"].text()))
        except ValueError as error:
            table["location"].fail(str(error))
    return made


def _spans(table: dict[str, Item], name: str, read_one: Callable[[str], Span]) -> tuple[Span, ...]:
    found = []
    for item in table[name].items() if name in table else ():
        try:
            found.append(read_one(item.text()))
        except ValueError as error:
            item.fail(str(error))
    return tuple(found)


def unknown_names(found: Routes, sinks: set[str], schedules: set[str], chats: set[str]) -> list[str]:
    """Return a line for each tracker, schedule or chat that a receiver names and the settings do not define."""
    faults = []
    for one in found.receivers.values():
        for what, names, known in (
            ("tracker", one.sinks or (), sinks),
            ("schedule", (one.schedule,) if one.schedule else (), schedules),
            ("chat", [target.channel for target in one.chat], chats),
        ):
            faults += [
                f"receiver {one.name!r} (line {one.line}) names the {what} {name!r}, which the settings do not define"
                for name in names
                if name not in known
            ]
    return faults


def check_names(found: Routes, sinks: set[str], schedules: set[str], chats: set[str], path: Path | None) -> None:
    """Raise `ToolError` (bad_argument) for the first of `unknown_names`."""
    if faults := unknown_names(found, sinks, schedules, chats):
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"{path}: {faults[0]}", "correct the name, or set it up")
