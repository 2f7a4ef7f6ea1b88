"""Why an alert that fires is not told: a silence, maintenance, a time interval of its route, or an alert above it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import chain, islice
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from whystall.agent_server.integrations.alerts.matchers import Matchers, all_match, parse

if TYPE_CHECKING:
    from whystall.agent_server.integrations.alerts.routefile import InhibitRule, Routes
    from whystall.agent_server.integrations.alerts.tree import Node
    from whystall.agent_server.stores import Stores

Labels = Mapping[str, str]
T = TypeVar("T")


@dataclass(frozen=True)
class Held:
    """`kind`: ``silence`` (`name`: its id), ``maintenance``, ``mute`` or ``inactive`` (`name`: the time interval;
    ``inactive``: outside of all that the route is active in), ``inhibited`` (`name`: the rule; `source`: the
    fingerprint of the alert above).
    """

    kind: Literal["silence", "maintenance", "mute", "inactive", "inhibited"]
    name: str
    source: str = ""


class Firing(Protocol):
    """The alerts that fire: those of the knowledge base (`journal.alerts.Alerts`), or those of a test."""

    def version(self) -> object:
        """What is another one where they may be others."""
        ...

    def firing(self) -> Iterator[tuple[str, dict[str, str]]]:
        """Fingerprint and labels of each."""
        ...


class Muting:
    """What is held at one moment. Made anew for each look, but for the alerts that inhibit others."""

    def __init__(self, kb: Stores, routes: Routes, inhibitor: Inhibitor, now: float) -> None:
        self._routes = routes
        self._inhibitor = inhibitor
        self._at = datetime.fromtimestamp(now, timezone.utc)
        self._silences = [
            (silence.id, parsed(silence.matchers))
            for silence in kb.silences.list(now, _SILENCES)
            if silence.state(now) == "active"
        ]
        self._maintenance = [
            window for window in routes.maintenance if any(self.within(name) for name in window.intervals)
        ]

    @property
    def by_labels(self) -> bool:
        """Whether anything is held by its labels at all, so that they have to be looked at."""
        return bool(self._silences or self._maintenance or self._routes.inhibit)

    def within(self, interval: str) -> bool:
        """Whether the moment lies in the time interval of that name."""
        return any(part.holds(self._at) for part in self._routes.intervals[interval])

    def route(self, node: Node) -> Held | None:
        """Why nothing is told by the route `node`."""
        options = node.options
        if (mute := next(filter(self.within, options.mute), None)) is not None:
            return Held("mute", mute)
        if options.active and not any(map(self.within, options.active)):
            return Held("inactive", ", ".join(options.active))
        return None

    def learn(self, many: Sequence[Labels]) -> None:
        """Prepare for many alerts at once; see `Pattern.learn`."""
        silences = [matchers for _, matchers in self._silences]
        windows = [window.matchers for window in self._maintenance]
        targets = [rule.target for rule in self._routes.inhibit]
        for matcher in chain.from_iterable((*silences, *windows, *targets)):
            matcher.learn(many)

    def alert(self, labels: Labels, fingerprint: str) -> Held | None:
        """Why the alert is not told, by whichever route."""
        for id, matchers in self._silences:
            if all_match(matchers, labels):
                return Held("silence", id)
        for window in self._maintenance:
            if all_match(window.matchers, labels):
                return Held("maintenance", window.name)
        return self._inhibitor.held(labels, fingerprint)


class Inhibitor:
    """Finds the alerts that hold others back (prometheus/alertmanager, inhibit/inhibit.go), with one difference: where
    a rule names labels that have to be equal, one of them at least must be there. Two alerts that both lack all of
    them have nothing in common, but Alertmanager's rule applies to them.
    """

    def __init__(self, alerts: Firing, rules: tuple[InhibitRule, ...]) -> None:
        self._alerts = alerts
        self._rules = rules
        self._version: object = None
        # per rule: the values of its labels -> (fingerprint, whether it is one of those that are held back too)
        self._sources: list[dict[tuple[str, ...], list[tuple[str, bool]]]] = []

    def held(self, labels: Labels, fingerprint: str) -> Held | None:
        """What holds the alert back."""
        rules = [(n, rule) for n, rule in enumerate(self._rules) if all_match(rule.target, labels)]
        if not rules:
            return None
        self._look()
        for n, rule in rules:
            values = tuple(labels.get(name, "") for name in rule.equal)
            if rule.equal and not any(values):
                continue
            both = all_match(rule.source, labels)  # alerts of one kind do not hold each other back
            for source, target_too in self._sources[n].get(values, ()):
                if source != fingerprint and not (both and target_too):
                    return Held("inhibited", rule.name, source)
        return None

    def _look(self) -> None:
        """Bring the alerts that fire up to date, where any was said of since."""
        version = self._alerts.version()
        if version == self._version:
            return
        found: list[dict[tuple[str, ...], list[tuple[str, bool]]]] = [defaultdict(list) for _ in self._rules]
        for piece in pieces(self._alerts.firing()):
            for rule, sources in zip(self._rules, found, strict=True):
                for matcher in rule.source:
                    matcher.learn([labels for _, labels in piece])
                for fingerprint, labels in piece:
                    if all_match(rule.source, labels):
                        values = tuple(labels.get(name, "") for name in rule.equal)
                        target_too = all_match(rule.target, labels)
                        if sum(kind == target_too for _, kind in sources[values]) < _SOURCES:
                            sources[values].append((fingerprint, target_too))
        self._version, self._sources = version, found


_SILENCES = 100_000  # all of them
_SOURCES = 2  # of the same values and kind that are kept: the alert itself may be one, and does not hold itself back


def pieces(items: Iterable[T]) -> Iterator[list[T]]:
    """`items` in lists of some hundred, so that labels are matched many at once and few are in memory."""
    left = iter(items)
    while piece := list(islice(left, 500)):
        yield piece


def parsed(texts: list[str]) -> Matchers:
    """Matchers that were checked when they were stored."""
    return tuple(matcher for text in texts for matcher in parse(text))
