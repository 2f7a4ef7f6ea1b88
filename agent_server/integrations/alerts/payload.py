"""Parse request bodies: Alertmanager's webhook, version 4, and the JSON of other senders. Pure.

Alertmanager: docs/configuration.md, "webhook_config". Unknown keys are ignored and missing ones get their default, so
older and newer versions are read. An invalid alert does not prevent the others from being accepted.

    {"version": "4", "groupKey": "{}:{alertname=\\"DiskSlow\\"}", "truncatedAlerts": 0, "alerts": [{"status": "firing",
     "labels": {"alertname": "DiskSlow", "node": "gpu03"}, "annotations": {"summary": "slow disk"},
     "startsAt": "2026-11-20T09:00:00Z", "endsAt": "0001-01-01T00:00:00Z", "fingerprint": "c1b0f5a0c6a1e3a5"}]}
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from whystall.agent_server.integrations.alerts.chat_body import item_of
from whystall.agent_server.integrations.alerts.incoming_alert import (
    LABEL_VALUE,
    IncomingAlert,
    InvalidAlert,
    annotations_of,
    fingerprint_of,
    group_of,
    labels_of,
    status_of,
    text_of,
    time_of,
    url_of,
)
from whystall.agent_server.settings.sections.alerts import Form
from whystall.tools.contract.errors import ErrorCode, ToolError

BODY_LIMIT = 32 << 20
"""Maximum bytes of a body: 10,000 alerts of 3 KB."""
VALUES = 1_000_000
"""Maximum values of a body: 40,000 alerts of 25. A parsed value takes some 100 bytes of memory."""
ALERTMANAGER, GENERIC = "alertmanager", "generic"
_OWN = {"firing": "firing", "resolved": "resolved"}
# States that are severities, too, as those of Nagios.
_GRADED = ("error", "critical", "warning")
_FIRING = ("firing", "alerting", "triggered", "trigger", "problem", "active", "open", *_GRADED)
_RESOLVED = ("resolved", "resolve", "ok", "normal", "recovered", "recovery", "closed", "inactive", "cleared", "clear")
_WORDS = {**dict.fromkeys(_FIRING, "firing"), **dict.fromkeys(_RESOLVED, "resolved")}
# Problem: Load is high | Resolved in 5m 2s: Load is high (Zabbix) | [Alerting] GPU idle (Grafana 8)
_STATED = re.compile(
    r"(?:\[(?P<mark>[A-Za-z]{2,12})(?::\d+)?\]|(?P<word>[A-Za-z]{2,12})(?: in [\w ]{1,30})?:)\s*(?P<name>\S.*)",
    re.DOTALL,
)
_STEP = re.compile(r'"((?:[^"\\]|\\.)*)"|([^."]+)')


@dataclass(frozen=True)
class Batch:
    """The alerts of one body. `truncated`: how many more the sender left out."""

    items: Sequence[Any]
    read: Callable[[Any], IncomingAlert]
    truncated: int = 0

    def parse(self, start: int, stop: int) -> Iterator[tuple[int, IncomingAlert | str]]:
        """Yield position and alert from `start` to `stop`; an invalid alert as a line that says why."""
        for position in range(start, min(stop, len(self.items))):
            try:
                yield position, self.read(self.items[position])
            except InvalidAlert as error:
                yield position, str(error)


def read(
    payload: bytes | Mapping[str, Any], form: str, forms: Mapping[str, Form], wanted: frozenset[str], now: float
) -> Batch:
    """Return the alerts in `payload`, which has the given `form`. `wanted`: labels that routes use, kept first.

    Raises `ToolError`: bad_argument (invalid body), not_found (no such form).
    """
    if form != ALERTMANAGER and form != GENERIC and form not in forms:
        raise ToolError(ErrorCode.NOT_FOUND, f"no form of alerts is called {form!r}", "set up alerts.forms")
    body: Any = _decoded(payload) if isinstance(payload, bytes) else payload
    if form == ALERTMANAGER:
        return _alertmanager(body, wanted, now)
    return _generic(body, forms.get(form, Form()), form, wanted, now)


def _decoded(payload: bytes) -> Any:
    if len(payload) > BODY_LIMIT:
        raise _bad(f"the body is larger than {BODY_LIMIT} bytes", "send fewer alerts at once (max_alerts)")
    if sum(map(payload.count, (b",", b"{", b"["))) > VALUES:
        raise _bad(f"the body holds more than {VALUES} values", "send fewer alerts at once (max_alerts)")
    try:
        try:
            return msgspec.json.decode(payload)
        except msgspec.DecodeError:
            return json.loads(payload)  # accepts a lone surrogate (\ud800) in a label
    except RecursionError:
        raise _bad("the body is nested too deeply", "send JSON as it is documented") from None
    except ValueError as error:
        raise _bad(f"the body is no JSON: {error}", "send JSON in UTF-8") from None


def _bad(message: str, remedy: str) -> ToolError:
    return ToolError(ErrorCode.BAD_ARGUMENT, message, remedy)


# --- Alertmanager ----------------------------------------------------------------------------------------------------


def _alertmanager(body: Any, wanted: frozenset[str], now: float) -> Batch:
    if not isinstance(body, Mapping) or not isinstance(body.get("alerts"), list):
        raise _bad("the body has no list `alerts`", "send what Alertmanager's webhook_configs sends")
    group = group_of(body.get("groupKey"))
    left_out = body.get("truncatedAlerts")
    truncated = left_out if isinstance(left_out, int) and not isinstance(left_out, bool) else 0

    def one(item: Any) -> IncomingAlert:
        raw = _object(item, "labels")
        labels, cut = labels_of(raw, wanted)
        annotations, more = annotations_of(_object(item, "annotations"))
        if not labels:
            raise InvalidAlert("it has no labels")
        ends = time_of(item.get("endsAt"))
        return IncomingAlert(
            fingerprint=fingerprint_of(item.get("fingerprint"), raw, ""),
            status=status_of(item.get("status"), _OWN, ends, now),
            labels=labels,
            annotations=annotations,
            starts=time_of(item.get("startsAt")),
            ends=ends,
            url=url_of(item.get("generatorURL")),
            sender_group=group,
            cut=tuple(sorted(cut | more)),
        )

    return Batch(body["alerts"], one, max(0, min(truncated, 1_000_000_000)))


def _object(item: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(item, Mapping):
        raise InvalidAlert("it is no object")
    value = item.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidAlert(f"{name}: no object")
    return value


# --- others ----------------------------------------------------------------------------------------------------------


def _generic(body: Any, form: Form, name: str, wanted: frozenset[str], now: float) -> Batch:
    items: Any = body
    if form.alerts:
        items = find(body, form.alerts)
        if items is None:
            raise _bad(f"the body has nothing at {form.alerts!r}", f"correct alerts.forms.{name}.alerts")
    elif isinstance(body, Mapping) and isinstance(body.get("alerts"), list):
        items = body["alerts"]
    elif isinstance(body, Mapping) and (item := item_of(body)) is not None:
        items = item
    if isinstance(items, Mapping):
        items = [items]
    if not isinstance(items, list):
        raise _bad("the body is neither an alert nor a list of alerts", f"see alerts.forms.{name} of the settings")
    words = {**_WORDS, **{word.lower(): meant for word, meant in form.values.items()}}

    def one(item: Any) -> IncomingAlert:
        if not isinstance(item, Mapping):
            raise InvalidAlert("it is no object")
        raw = _mapped(item, form)
        if not raw:
            raise InvalidAlert("it has neither a name nor labels")
        status = _first(item, form.status)
        if isinstance(title := raw.get("alertname"), str) and (stated := _STATED.fullmatch(title[:LABEL_VALUE])):
            meant = words.get((stated["mark"] or stated["word"]).lower())
            raw["alertname"] = stated["name"] if meant is not None else title
            status = meant if status is None else status
        labels, cut = labels_of(raw, wanted)
        notes = {"summary": _first(item, form.summary), "description": _first(item, form.description)}
        annotations, more = annotations_of({k: _flat(v) for k, v in notes.items() if v is not None})
        ends = time_of(_first(item, form.ends))
        return IncomingAlert(
            fingerprint=fingerprint_of(_first(item, form.fingerprint), raw, name),
            status=status_of(status, words, ends, now),
            labels=labels,
            annotations=annotations,
            starts=time_of(_first(item, form.starts)),
            ends=ends,
            url=url_of(_first(item, form.url)),
            sender=name,
            cut=tuple(sorted(cut | more)),
        )

    return Batch(items, one)


def _mapped(item: Mapping[str, Any], form: Form) -> dict[str, Any]:
    """Return the labels of an alert by the paths of its form; name and severity become labels too."""
    raw: dict[str, Any] = {}
    for label, paths in form.labels.items():
        if label != "*":
            value = _first(item, paths)
            if value is not None:
                raw[label] = _flat(value)
            continue
        for path in [paths] if isinstance(paths, str) else paths:
            value = find(item, path)
            for key, inner in value.items() if isinstance(value, Mapping) else ():
                raw[str(key)] = _flat(inner)
    for label, paths in (("alertname", form.name), ("severity", form.severity), ("severity", form.status)):
        value = _first(item, paths)
        if label not in raw and value is not None and _flat(value) != "":
            if paths is form.status and str(value).lower() not in _GRADED:
                continue  # "alerting" is no severity
            raw[label] = _flat(value)
    return raw


def _flat(value: Any) -> Any:
    """Return a list of scalars as comma-separated text, other lists and objects as JSON, scalars unchanged."""
    if not isinstance(value, list | Mapping):
        return value
    if isinstance(value, list) and all(isinstance(one, str | int | float) for one in value[:100]):
        return ",".join(text_of(one, 200) or "" for one in value[:100])
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        raise InvalidAlert("a label is no JSON") from None


def _first(item: Any, paths: str | list[str]) -> Any:
    for path in [paths] if isinstance(paths, str) else paths:
        if path and (value := find(item, path)) is not None:
            return value
    return None


def find(value: Any, path: str) -> Any:
    """Return the part of `value` at `path` (``event.tags.0``, ``labels."a.b"``), or None."""
    for step in _STEP.finditer(path):
        name = step[2] if step[1] is None else re.sub(r"\\(.)", r"\1", step[1])
        if isinstance(value, Mapping):
            value = value.get(name)
        elif isinstance(value, list) and name.isascii() and name.isdigit() and len(name) < 6:
            value = value[int(name)] if int(name) < len(value) else None
        else:
            return None
    return value
