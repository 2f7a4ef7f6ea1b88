"""Find why a firing alert is not notified: a silence, maintenance, a time interval of its route, or inhibition."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import chain, islice
from typing import Literal, Protocol, TypeVar

from whystall.agent_server.integrations.alerts.matchers import Matchers, all_match, parse
from whystall.agent_server.integrations.alerts.routefile import InhibitRule, Routes
from whystall.agent_server.integrations.alerts.tree import Node
from whystall.agent_server.journal.silences import Silences

Labels = Mapping[str, str]
T = TypeVar("T")


@dataclass(frozen=True)
class MuteReason:
    """Why an alert is muted.

    `name` is the silence's id, the maintenance window, the time interval (``mute``: inside of it; ``inactive``: outside
    of all active ones), or the inhibition rule, whose `source` is the fingerprint of the inhibiting alert.
    """

    kind: Literal["silence", "maintenance", "mute", "inactive", "inhibited"]
    name: str
    source: str = ""


class Firing(Protocol):
    """The firing alerts: `journal.alerts.Alerts`, or those of a test."""

    def version(self) -> object:
        """Return a value that changes when the alerts may have changed."""
        ...

    def firing(self) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield fingerprint and labels of each alert."""
        ...


class Muting:
    """What is muted at `now`. Only the `inhibitor` is reused between flushes."""

    def __init__(self, silences: Silences, routes: Routes, inhibitor: Inhibitor, now: float) -> None:
        self._routes = routes
        self._inhibitor = inhibitor
        self._at = datetime.fromtimestamp(now, timezone.utc)
        self._silences = [
            (silence.id, parsed(silence.matchers))
            for silence in silences.list(now, _SILENCES)
            if silence.state(now) == "active"
        ]
        self._maintenance = [
            window for window in routes.maintenance if any(self.within(name) for name in window.intervals)
        ]

    @property
    def by_labels(self) -> bool:
        """Return whether labels can mute an alert at all; else `alert` need not be called."""
        return bool(self._silences or self._maintenance or self._routes.inhibit)

    def within(self, interval: str) -> bool:
        return any(part.contains(self._at) for part in self._routes.intervals[interval])

    def route(self, node: Node) -> MuteReason | None:
        """Return why the route `node` is muted."""
        options = node.options
        if (mute := next(filter(self.within, options.mute), None)) is not None:
            return MuteReason("mute", mute)
        if options.active and not any(map(self.within, options.active)):
            return MuteReason("inactive", ", ".join(options.active))
        return None

    def learn(self, many: Sequence[Labels]) -> None:
        """Match many alerts at once and cache the results; see `Pattern.learn`."""
        silences = [matchers for _, matchers in self._silences]
        windows = [window.matchers for window in self._maintenance]
        targets = [rule.target for rule in self._routes.inhibit]
        for matcher in chain.from_iterable((*silences, *windows, *targets)):
            matcher.learn(many)

    def alert(self, labels: Labels, fingerprint: str) -> MuteReason | None:
        """Return why the alert is muted on every route."""
        for id, matchers in self._silences:
            if all_match(matchers, labels):
                return MuteReason("silence", id)
        for window in self._maintenance:
            if all_match(window.matchers, labels):
                return MuteReason("maintenance", window.name)
        return self._inhibitor.find(labels, fingerprint)


class Inhibitor:
    """Finds alerts that inhibit others (prometheus/alertmanager, inhibit/inhibit.go).

    Unlike Alertmanager, a rule with `equal` labels applies only if the alert has at least one of them: two alerts that
    lack all of them have nothing in common.
    """

    def __init__(self, alerts: Firing, rules: tuple[InhibitRule, ...]) -> None:
        self._alerts = alerts
        self._rules = rules
        self._version: object = None
        # per rule: values of its `equal` labels -> (fingerprint, whether it matches `target` too)
        self._sources: list[dict[tuple[str, ...], list[tuple[str, bool]]]] = []

    def find(self, labels: Labels, fingerprint: str) -> MuteReason | None:
        """Return which rule and alert inhibit this one."""
        rules = [(n, rule) for n, rule in enumerate(self._rules) if all_match(rule.target, labels)]
        if not rules:
            return None
        self._refresh()
        for n, rule in rules:
            values = tuple(labels.get(name, "") for name in rule.equal)
            if rule.equal and not any(values):
                continue
            both = all_match(rule.source, labels)  # alerts that match both sides do not inhibit each other
            for source, target_too in self._sources[n].get(values, ()):
                if source != fingerprint and not (both and target_too):
                    return MuteReason("inhibited", rule.name, source)
        return None

    def _refresh(self) -> None:
        """Read the firing alerts again if any changed."""
        version = self._alerts.version()
        if version == self._version:
            return
        found: list[dict[tuple[str, ...], list[tuple[str, bool]]]] = [defaultdict(list) for _ in self._rules]
        for chunk in chunks(self._alerts.firing()):
            for rule, sources in zip(self._rules, found, strict=True):
                for matcher in rule.source:
                    matcher.learn([labels for _, labels in chunk])
                for fingerprint, labels in chunk:
                    if all_match(rule.source, labels):
                        values = tuple(labels.get(name, "") for name in rule.equal)
                        target_too = all_match(rule.target, labels)
                        if sum(kind == target_too for _, kind in sources[values]) < _SOURCES:
                            sources[values].append((fingerprint, target_too))
        self._version, self._sources = version, found


_SILENCES = 100_000  # all of them
_SOURCES = 2  # kept per key and kind: one may be the alert itself, which does not inhibit itself


def chunks(items: Iterable[T]) -> Iterator[list[T]]:
    """Yield `items` in lists of 500: enough to match many at once without holding all in memory."""
    rest = iter(items)
    while chunk := list(islice(rest, 500)):
        yield chunk


def parsed(texts: list[str]) -> Matchers:
    """Parse matchers that were checked when they were stored."""
    return tuple(matcher for text in texts for matcher in parse(text))
