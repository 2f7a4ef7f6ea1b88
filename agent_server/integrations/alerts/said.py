"""What a sender says of one alert, made inert and cut to bounds, whatever form it came in. Pure."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from whystall.agent_server.journal.alerts import Status
from whystall.knowledge_base.tickets.human import lines
from whystall.knowledge_base.times import moment
from whystall.tools.contract.text import clean

LABELS, LABEL_NAME, LABEL_VALUE, LABEL_CHARS = 100, 200, 1024, 16_384
"""Labels of an alert that are kept, characters of a name, of a value, and of all together."""
NOTES, NOTE, NOTE_CHARS = 30, 4000, 16_384
"""The same for annotations: how many, characters of one, and of all."""
_FINGERPRINT, _URL, _GROUP = 128, 2000, 1000
_LATEST = 7_258_118_400.0  # the year 2200: what lies later is no time
# Labels that say what an alert is about; where there are too many, these are kept before others.
KNOWN = (
    *(
        "alertname",
        "severity",
        "job",
        "instance",
        "node",
        "host",
        "hostname",
        "namespace",
        "pod",
        "container",
        "cluster",
    ),
    *("service", "device", "gpu", "uuid", "pid", "slurm_job_id", "job_id", "job_name", "rank", "team"),
)


class Unusable(ValueError):
    """One alert of a body that cannot be taken; the message says why, in a line."""


@dataclass(frozen=True)
class Said:
    """One thing said of one alert. `starts`: None where its sender does not say when it began."""

    fingerprint: str
    status: Status
    labels: dict[str, str]
    annotations: dict[str, str] = field(default_factory=dict)
    starts: float | None = None
    ends: float | None = None
    url: str = ""
    sender: str = "alertmanager"
    sender_group: str = ""
    cut: tuple[str, ...] = ()

    def key(self, starts: float) -> str:
        """What makes the same saying the same: group key, fingerprint, start and status."""
        parts = json.dumps([self.sender_group, self.fingerprint, repr(starts), self.status])
        return hashlib.sha256(parts.encode()).hexdigest()


def labels_of(raw: Mapping[str, Any], wanted: Iterable[str]) -> tuple[dict[str, str], set[str]]:
    """Labels made inert, those that are `wanted` first where there are too many; and codes of what was cut.

    An empty label is left out: that is what one that is not there means.
    """
    order = [name for name in (*wanted, *KNOWN) if name in raw]
    first = dict.fromkeys(order)
    rest = (name for name in raw if name not in first)
    return _kept(raw, [*first, *_some(rest, LABELS + 1)], len(raw), (LABELS, LABEL_VALUE, LABEL_CHARS), "labels")


def annotations_of(raw: Mapping[str, Any]) -> tuple[dict[str, str], set[str]]:
    """Annotations made inert, and codes of what was cut."""
    first = [name for name in ("summary", "description", "message", "runbook_url") if name in raw]
    rest = (name for name in raw if name not in first)
    return _kept(raw, [*first, *_some(rest, NOTES + 1)], len(raw), (NOTES, NOTE, NOTE_CHARS), "annotations")


def _some(names: Iterable[str], limit: int) -> list[str]:
    found: list[str] = []
    for name in names:
        if len(found) == limit:
            break
        found.append(name)
    return found


def _kept(
    raw: Mapping[str, Any], names: list[str], total: int, bounds: tuple[int, int, int], what: str
) -> tuple[dict[str, str], set[str]]:
    many, longest, room = bounds
    kept: dict[str, str] = {}
    cut: set[str] = set()
    for name in names:
        text = _text(raw[name], longest) if what == "annotations" else text_of(raw[name], longest)
        if text is None:
            raise Unusable(f"{what}: a value is a list or an object")
        if not text:
            continue
        shown = clean(name[: LABEL_NAME + 1], LABEL_NAME)
        if len(kept) == many or len(shown) + len(text) > room:
            cut.add(what)
            break
        if text.endswith("…") and len(text) == longest:
            cut.add("values")
        room -= len(shown) + len(text)
        kept[shown] = text
    if total > len(names):
        cut.add(what)
    return kept, cut


def _text(value: Any, limit: int) -> str | None:
    """As `text_of`, with the lines that people wrote kept."""
    return lines(value, limit) if isinstance(value, str) else text_of(value, limit)


def text_of(value: Any, limit: int) -> str | None:
    """A value of JSON as inert text; None for a list or an object."""
    if isinstance(value, str):
        return clean(value[: limit + 1], limit)  # a stranger's megabyte is not gone through
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return clean(str(value), limit) if isinstance(value, int | float) else None


def fingerprint_of(value: Any, raw: Mapping[str, Any], prefix: str) -> str:
    """The fingerprint that the sender gives, else one of all labels; those of different forms are different."""
    given = text_of(value, _FINGERPRINT) or ""
    if not given or given.endswith("…"):
        digest = hashlib.sha256()
        for name, label in sorted(raw.items()):
            digest.update(f"{name}\0{label}\0".encode("utf-8", "surrogatepass"))
        given = digest.hexdigest()[:16]
    return f"{prefix}:{given}" if prefix else given


def group_of(value: Any) -> str:
    """The sender's own group; a long one as its hash, so that different ones stay different."""
    if not isinstance(value, str):
        return ""
    if len(value) > _GROUP:
        return hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()
    return clean(value, 2 * _GROUP)


def url_of(value: Any) -> str:
    """An address, empty where it is none that a browser would open."""
    text = text_of(value, _URL) or ""
    return text if text.startswith(("http://", "https://")) and not text.endswith("…") else ""


def time_of(value: Any) -> float | None:
    """A point in time: RFC 3339, or a number of s, ms, us or ns since 1970. None: none, which Go writes as year 1."""
    if isinstance(value, str):
        if (at := moment(value[:64])) is not None:
            seconds = at.timestamp() if at.year > 1970 else 0.0
            return seconds if 0 < seconds < _LATEST else None
        try:
            value = float(value[:32])
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    number = float(value) if abs(value) < 1e22 else 0.0
    for above, unit in ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3)):
        if number > above:
            number /= unit
            break
    return number if 0 < number < _LATEST else None


def status_of(value: Any, words: Mapping[str, str], ends: float | None, now: float) -> Status:
    """The status that `words` give to the sender's own; where it says none, by whether the alert has ended."""
    if value is None or value == "":
        return "resolved" if ends is not None and ends <= now else "firing"
    word = text_of(value, 50)
    meant = words.get((word or "").strip().lower())
    if meant == "firing":
        return "firing"
    if meant == "resolved":
        return "resolved"
    raise Unusable(f"status {word or '?'} is neither firing nor resolved")
