"""`cluster_topology` on many hosts: what each states about itself, as one cluster, with its page and picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from whystall.agent_server.fleet.answers import Answer
from whystall.agent_server.fleet.comparable import TOP, Disputed, Joint
from whystall.agent_server.inputs.topology import recorded
from whystall.agent_server.presentation.pages import judged
from whystall.tools.collect.topology.rows import UNKNOWN, Rows, cpus_of, host_named
from whystall.tools.contract.findings import Polarity
from whystall.tools.contract.result import Model
from whystall.tools.host.cluster_topology import data as tables
from whystall.tools.host.cluster_topology.tool import TOOL, Params

_LONGEST = 1 << 20
_BIG = 1 << 31


def read_topology(_arguments: Mapping[str, Any], answer: Answer) -> Answer:
    """Return `answer` with the rows (`Rows`) that its data states; all are of the host that answered, and a row that is
    not valid is counted in `not_seen`."""
    data = (answer.reply or {}).get("data")
    given = data if isinstance(data, dict) else {}
    rows, host = Rows(), host_named(answer.host)
    bad = 0

    def read(name: str, model: type[Model]) -> list[Any]:
        nonlocal bad
        found, listed = [], given.get(name)
        for one in (listed if isinstance(listed, list) else [])[:TOP]:
            try:
                found.append(model.model_validate(one))
            except (ValidationError, ValueError, TypeError):
                bad += 1
        return found

    rows.sources.append((answer.host, "whystall", host))
    rows.numa += [(host, one.node, cpus_of(one.cpus)) for one in read("numa", tables.NumaRow) if _fits(one.node)]
    for one in read("devices", tables.DeviceRow):
        node = UNKNOWN if one.numa_node is None or not _fits(one.numa_node) else one.numa_node
        if one.kind in ("gpu", "nic"):
            rows.devices.append((host, one.kind, one.device, one.bus, node, cpus_of(one.cpus), one.uuid, one.model))
    rows.links += [(host, one.device, one.other, one.relation, one.stated) for one in read("links", tables.LinkRow)]
    for one in read("ranks", tables.RankRow):
        if _fits(one.rank):
            pid = one.pid if one.pid is not None and _fits(one.pid) else UNKNOWN
            device = one.device if one.placed == "stated" else ""
            rows.ranks.append((host, one.rank, pid, "", device, cpus_of(one.cpus), cpus_of(one.memory), one.nics))
    for one in read("marks", tables.MarkRow):
        rank = one.rank if one.rank is not None and _fits(one.rank) else UNKNOWN
        if one.severity in ("minor", "major", "critical") and not one.kind.startswith("topology."):
            rows.marks.append((host, one.device, rank, one.kind, one.severity))
    for one in read("latency", tables.LatencyRow):
        values = [round(1000 * value) for value in (one.p50_ms, one.p90_ms) if 0 <= value < _BIG / 1000]
        if len(values) == 2 and _fits(one.requests):
            rows.latency.append((host, one.source, one.requests, *values))
    rows.groups += [(one.name, one.ranks) for one in read("groups", tables.GroupRow) if len(one.ranks) < _LONGEST]
    totals = (answer.reply or {}).get("totals")
    cut = [name for name, of in totals.items() if type(of) is int and of > TOP] if isinstance(totals, dict) else []
    if bad or cut:
        rows.not_seen.append(("topology_unread", f"{host}: {bad} rows; cut: {', '.join(sorted(map(str, cut))) or '-'}"))
    return replace(answer, part=rows)


def judge_topology(arguments: Mapping[str, Any], answers: Sequence[Answer]) -> Joint:
    """Return one judgement of `cluster_topology` on what all hosts state (`read_topology`); its page and picture are
    stored. A rank that several hosts report is placed on none."""
    params = Params(top=min(int(arguments.get("top", TOP)), TOP))
    used: dict[str, Rows] = {}
    for one in answers:
        if one.status == "answered":
            used.setdefault(host_named(one.host), one.part)
    claimed: dict[int, list[str]] = {}
    for host, of in used.items():
        for rank in {int(str(row[1])) for row in of.ranks}:
            claimed.setdefault(rank, []).append(host)
    twice = {rank: hosts for rank, hosts in claimed.items() if len(hosts) > 1}
    rows = Rows()
    for of in used.values():
        for name in ("sources", "numa", "devices", "links", "marks", "latency", "groups", "not_seen"):
            getattr(rows, name).extend(getattr(of, name))
        rows.ranks += [row for row in of.ranks if row[1] not in twice]
    disputed = [Disputed(rank=rank, hosts=hosts) for rank, hosts in sorted(twice.items())]
    if not used:
        return Joint(tables.Data(), None, list(answers))
    result = judged(TOOL, recorded(rows, None), params, "en")
    abnormal = [one for one in result.findings if one.polarity is Polarity.ABNORMAL]
    return Joint(
        result.data,
        True if abnormal else False if result.findings else None,
        list(answers),
        [([one.subject.host] if one.subject.host else list(used), one) for one in abnormal],
        disputed,
        {host: len(of.not_seen) for host, of in used.items() if of.not_seen},
        result.artifacts,
    )


def _fits(value: int) -> bool:
    return 0 <= value < _BIG
