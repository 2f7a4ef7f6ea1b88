"""The dashboard: every field is one of Grafana's schema, and its queries are of metrics that exist."""

from __future__ import annotations

import copy
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from whystall.agent_server.metrics.families import Family
from whystall.agent_server.metrics.of_server import info, server_families
from whystall.agent_server.metrics.of_watch import watch_families
from whystall.agent_server.stores import Stores

DASHBOARD = Path(__file__).parents[2] / "deploy/grafana/whystall.json"
pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="the SDK of Grafana needs Python 3.11")


def lost(given: Any, kept: Any, path: str = "") -> Iterator[str]:
    """The paths in `given` that Grafana's SDK does not know, or understands otherwise."""
    if isinstance(given, dict):
        for key, value in given.items():
            known = isinstance(kept, dict) and key in kept
            yield from lost(value, kept[key], f"{path}.{key}") if known else (f"{path}.{key}",)
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for number, (one, other) in enumerate(zip(given, kept, strict=True)):
            yield from lost(one, other, f"{path}[{number}]")
    elif given != kept:
        yield path


def unknown(dashboard: dict[str, Any]) -> list[str]:
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    return list(lost(dashboard, json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard)))))


def board() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return found


def test_grafanas_schema_has_every_field() -> None:
    assert unknown(board()) == []
    wrong = copy.deepcopy(board())
    panel = wrong["panels"][1]
    panel["optoins"], panel["targets"][0]["exppr"] = {}, "x"
    panel["fieldConfig"]["defaults"]["custom"]["drawStile"] = "line"
    assert sorted(path.rpartition(".")[2] for path in unknown(wrong)) == ["drawStile", "exppr", "optoins"]


def test_panels_do_not_overlap_and_have_rows() -> None:
    panels = board()["panels"]
    titles = [panel["title"] for panel in panels if panel["type"] == "row"]
    assert titles == ["Stalls by cause", "Step time", "Lateness", "Tickets", "Own cost"]
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_the_queries_are_of_metrics_and_labels_that_exist(tmp_path: Path) -> None:
    from watch_status import status

    with Stores(tmp_path / "kb.db") as kb:
        families: list[Family] = [info(), *watch_families(status(), status()["written"]), *server_families(kb, 0)]
    known = {one.name for one in families}
    queries = [target["expr"] for panel in board()["panels"] for target in panel.get("targets", ())]
    queries += [one["query"] for one in board()["templating"]["list"] if one["type"] == "query"]
    assert len(queries) > 20
    used = {name for query in queries for name in re.findall(r"\bwhystall_\w+", query)}
    assert used <= known
    assert known - used == {
        "whystall_watch_updated_timestamp_seconds",
        "whystall_watch_tickets_total",
        "whystall_watch_unobserved_total",
        "whystall_watch_jobs_beyond",
        "whystall_watch_profile_spans_total",
        "whystall_watch_profiles_cpu_seconds_total",
    }
