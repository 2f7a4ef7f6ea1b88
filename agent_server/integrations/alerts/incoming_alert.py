"""`IncomingAlert`: one alert of a request body in any form, with its texts cleaned and cut to limits. Pure."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from whystall.agent_server.journal.alerts import Status
from whystall.knowledge_base.tickets.human import lines
from whystall.knowledge_base.times import moment
from whystall.tools.contract.text import clean

LABELS, LABEL_NAME, LABEL_VALUE, LABEL_CHARS = 100, 200, 1024, 16_384
"""Limits per alert: labels, characters of a name, of a value, and of all together."""
ANNOTATIONS, ANNOTATION_VALUE, ANNOTATION_CHARS = 30, 4000, 16_384
"""Limits per alert: annotations, characters of a value, and of all together."""
_FINGERPRINT, _URL, _GROUP = 128, 2000, 1000
_LATEST = 7_258_118_400.0  # the year 2200; later times are invalid
# Kept before others if an alert has too many labels.
KNOWN = (
    *("alertname", "severity", "job", "instance", "node", "host", "hostname", "namespace", "pod", "container"),
    *("cluster", "service", "device", "gpu", "uuid", "pid", "slurm_job_id", "job_id", "job_name", "rank", "team"),
)
_ANNOTATIONS = {"摘要": "summary", "描述": "description", "处理手册": "runbook_url"}
"""Chinese names of annotations that a ticket shows."""


class InvalidAlert(ValueError):
    """An alert that cannot be accepted; the message is one line."""


@dataclass(frozen=True)
class IncomingAlert:
    """One alert of a body. `starts`: None if the sender gives none. `cut`: codes of what exceeded a limit."""

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
        """Return the deduplication key: a hash of group key, fingerprint, start and status."""
        parts = json.dumps([self.sender_group, self.fingerprint, repr(starts), self.status])
        return hashlib.sha256(parts.encode()).hexdigest()


def labels_of(raw: Mapping[str, Any], wanted: Iterable[str]) -> tuple[dict[str, str], set[str]]:
    """Return the cleaned labels, `wanted` ones first, and codes of what was cut.

    Empty labels are dropped: to Prometheus they are the same as missing ones.
    """
    order = [name for name in (*wanted, *KNOWN) if name in raw]
    first = dict.fromkeys(order)
    rest = (name for name in raw if name not in first)
    return _limited(raw, [*first, *islice(rest, LABELS + 1)], (LABELS, LABEL_VALUE, LABEL_CHARS), "labels")


def annotations_of(raw: Mapping[str, Any]) -> tuple[dict[str, str], set[str]]:
    """Return the cleaned annotations and codes of what was cut; Chinese names of texts become the usual ones."""
    if renamed := {name: usual for name, usual in _ANNOTATIONS.items() if name in raw and usual not in raw}:
        raw = {renamed.get(name, name): raw[name] for name in raw}
    first = [name for name in ("summary", "description", "message", "runbook_url") if name in raw]
    rest = (name for name in raw if name not in first)
    limits = (ANNOTATIONS, ANNOTATION_VALUE, ANNOTATION_CHARS)
    return _limited(raw, [*first, *islice(rest, ANNOTATIONS + 1)], limits, "annotations")


def _limited(
    raw: Mapping[str, Any], names: list[str], limits: tuple[int, int, int], what: str
) -> tuple[dict[str, str], set[str]]:
    many, longest, chars_left = limits
    kept: dict[str, str] = {}
    cut: set[str] = set()
    for name in names:
        keep_lines = what == "annotations" and isinstance(raw[name], str)
        text = lines(raw[name], longest) if keep_lines else text_of(raw[name], longest)
        if text is None:
            raise InvalidAlert(f"{what}: a value is a list or an object")
        if not text:
            continue
        shown = clean(name[: LABEL_NAME + 1], LABEL_NAME)
        if len(kept) == many or len(shown) + len(text) > chars_left:
            cut.add(what)
            break
        if text.endswith("…") and len(text) == longest:
            cut.add("values")
        chars_left -= len(shown) + len(text)
        kept[shown] = text
    if len(raw) > len(names):
        cut.add(what)
    return kept, cut


def text_of(value: Any, limit: int) -> str | None:
    """Return a JSON value as cleaned text, or None for a list or an object."""
    if isinstance(value, str):
        return clean(value[: limit + 1], limit)  # cut first: cleaning a megabyte is slow
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return clean(str(value), limit) if isinstance(value, int | float) else None


def fingerprint_of(value: Any, raw: Mapping[str, Any], prefix: str) -> str:
    """Return the sender's fingerprint or a hash of all labels, with `prefix` (the form)."""
    given = text_of(value, _FINGERPRINT) or ""
    if not given or given.endswith("…"):
        digest = hashlib.sha256()
        for name, label in sorted(raw.items()):
            digest.update(f"{name}\0{label}\0".encode("utf-8", "surrogatepass"))
        given = digest.hexdigest()[:16]
    return f"{prefix}:{given}" if prefix else given


def group_of(value: Any) -> str:
    """Return the sender's group key; the hash of a long one, so that distinct keys stay distinct."""
    if not isinstance(value, str):
        return ""
    if len(value) > _GROUP:
        return hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()
    return clean(value, 2 * _GROUP)


def url_of(value: Any) -> str:
    """Return an http(s) address, else an empty string."""
    text = text_of(value, _URL) or ""
    return text if text.startswith(("http://", "https://")) and not text.endswith("…") else ""


def time_of(value: Any) -> float | None:
    """Return Unix seconds from RFC 3339 or a number of s, ms, us or ns since 1970; None for Go's zero time (year 1)."""
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
    """Return the status that `words` map the sender's to; without one, resolved if `ends` has passed."""
    if value is None or value == "":
        return "resolved" if ends is not None and ends <= now else "firing"
    word = text_of(value, 50)
    meant = words.get((word or "").strip().lower())
    if meant == "firing":
        return "firing"
    if meant == "resolved":
        return "resolved"
    raise InvalidAlert(f"status {word or '?'} is neither firing nor resolved")
