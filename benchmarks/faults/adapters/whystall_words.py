"""Put whystall's findings and remedies into the words of the benchmark: whystall_words.yaml."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from benchmarks.faults.scenario import HERE

_FILE = Path(__file__).with_name("whystall_words.yaml")
_CAUSES = HERE.parents[1] / "knowledge_base/catalog/causes"
_FILE_WAITS = ("file", "io_uring")
_ROLES = {"collective": "collective_wait", "subprocess": "child_wait"}  # what such code waits for, whatever the call


def evidence(findings: Iterable[dict[str, Any]], cited: Collection[str]) -> list[dict[str, Any]]:
    """Return the measures of the cited findings, those of the largest share of the window first."""
    found = []
    for finding in findings:
        normal = finding["polarity"] == "normal" and not finding["kind"].startswith("path.")
        if finding["id"] not in cited or normal:
            continue
        metrics, words = finding["metrics"], finding["attributes"]
        share = metrics.get("window_pct")
        value = share if share is not None else next((v for v in metrics.values() if v), 0.0)
        about = f"{finding['id']} {finding['kind']} {words.get('function') or words.get('code') or ''}".strip()
        found += [
            {"measure": measure, "value": value, "unit": "" if share is None else "% of the window", "text": about}
            for measure in measures(finding["kind"], words)
        ]
    return sorted(found, key=lambda one: -one["value"] if one["unit"] else 0.0)


def measures(kind: str, words: dict[str, str]) -> list[str]:
    """Return what a finding measures; a wait with a known origin measures both."""
    table = _table()
    if not kind.startswith(("path.w", "path.running")):
        return [table["kinds"][kind]] if kind in table["kinds"] else []
    named = [_wait(words.get("wait", ""), words.get("detail", "")), _wait(words.get("root_wait", ""), "")]
    if not words.get("wait"):
        named.append(table["modes"].get(words.get("mode", ""), ""))
    named.append(_ROLES.get(words.get("role", ""), ""))
    return list(dict.fromkeys(filter(None, named)))


def _wait(wait: str, detail: str) -> str:
    if wait in _FILE_WAITS and detail:
        return next(measure for calls, measure in _table()["calls"].items() if fnmatchcase(detail.split()[0], calls))
    return str(_table()["waits"].get(wait, ""))


def advice(
    cause: str | None, named: Sequence[str] = (), cited: Sequence[Mapping[str, Any]] = ()
) -> list[dict[str, str]]:
    """Return the remedies of a cause in the order in which whystall shows them; `named`: those that a model chose;
    `cited`: the findings that the diagnosis rests on."""
    if not cause:
        return []
    remedies = yaml.load((_CAUSES / f"{cause}.yaml").read_text(encoding="utf-8"), _LOADER)["remedies"]
    # the order of whystall.knowledge_base.causes.ranked_remedies, whose import would cost the diagnoser time
    chosen = {remedy: place for place, remedy in enumerate(named)}
    ranked = sorted(
        remedies, key=lambda one: (chosen.get(one["id"], len(chosen)), *_fits(one, cited), -one["gain"], one["effort"])
    )
    actions = _table()["remedies"].get(cause, {})
    return [{"action": actions.get(one["id"], ""), "text": one["text"]["en"]} for one in ranked]


def _fits(remedy: Mapping[str, Any], cited: Sequence[Mapping[str, Any]]) -> tuple[bool, bool]:
    """Return whether a remedy is meant for other findings than those `cited`, and whether it is not meant for these."""
    meant = bool(remedy.get("suits")) and bool(cited)
    suits = meant and any(_meets(pattern, finding) for pattern in remedy["suits"] for finding in cited)
    return meant and not suits, not suits


def _meets(pattern: Mapping[str, Any], finding: Mapping[str, Any]) -> bool:
    words = finding["attributes"]
    return (
        finding["kind"] == pattern["kind"]
        and finding["polarity"] == pattern.get("polarity", "abnormal")
        and all(
            any(fnmatchcase(words.get(name, ""), text) for text in texts)
            for name, texts in pattern.get("attributes", {}).items()
        )
    )


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = yaml.load(_FILE.read_text(encoding="utf-8"), _LOADER)
    return table
