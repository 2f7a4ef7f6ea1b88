"""The merged answer as text for people and models."""

from __future__ import annotations

from collections.abc import Sequence

from whystall.agent_server.fleet.answers import Answer
from whystall.agent_server.fleet.hops import Hop, HostPath
from whystall.agent_server.fleet.hostlist import fold
from whystall.agent_server.fleet.merge import FleetFinding, FleetResult, Suspect
from whystall.agent_server.presentation.headlines import headline_of
from whystall.knowledge_base.models import Lang
from whystall.prompts.escape import Safe, short
from whystall.prompts.quantities import duration, quantity
from whystall.prompts.render import FORMATS, fill, fit, render, voice, words
from whystall.tools.timeline.rank_data.rank_list import rank_list

TEXT_LIMIT = 6000
_FORMAT = FORMATS["txt"]
_LONG = 160
_HOSTS = 20
_RANKS = 8
_HEADLINE = 20
_PATHS = 2500  # characters of the paths


def fleet_text(result: FleetResult, lang: Lang, limit: int = TEXT_LIMIT) -> str:
    """Return `result` within `limit` characters: counts, where to look, findings, hosts without an answer, single
    hosts.
    """
    lines = [_finding(row, lang) for row in result.findings]
    shown = [row for row in result.hosts if row.severity is not None or row.diagnosis or row.in_part][:_HOSTS]
    context = {
        "r": result,
        "suspect": _place(result.suspect) if result.suspect else "",
        "headline": headline_of(result.tool, result.joint, lang)[:_HEADLINE] if result.joint else [],
        "paths": fit([_path(one, lang) for one in result.paths], _PATHS)[0],
        "disputed": result.disputed[:_RANKS],
        "rows": shown,
        "long": _LONG,
    }
    budget = limit - len(render("fleet.txt", lang, **context, findings=[], left=0)) - 100 - 2 * len(lines)
    kept, left = fit(lines, budget)
    return render("fleet.txt", lang, **context, findings=kept, left=left)


def health_text(answers: Sequence[Answer], lang: Lang) -> str:
    """Return which hosts answer, with the ranks of a job there, and what the others do."""
    well = [answer for answer in answers if answer.status == "answered"]
    others = [answer for answer in answers if answer.status != "answered"]
    placed = [(one.host, one.located.pid, rank_list((one.located.ranks or {}).values())) for one in well if one.located]
    hosts = short(fold(one.host for one in well), 10 * _LONG)
    known = {"asked": len(answers), "well": len(well), "hosts": hosts, "placed": placed}
    return render("fleet_hosts.txt", lang, **known, others=others, long=_LONG)


def _finding(row: FleetFinding, lang: Lang) -> Safe:
    """Return severity, sentence, hosts and ranks of one finding. A finding from a host may lack what its sentence
    needs; then its kind is shown.
    """
    try:
        sentence = voice("txt", lang).finding(row.finding, 6)
    except (KeyError, ValueError, IndexError, TypeError):
        sentence = _FORMAT.running(row.finding.kind)
    ranks = ",".join(map(str, row.ranks[:_RANKS])) + ("…" if len(row.ranks) > _RANKS else "")
    context = {"row": row, "sentence": sentence, "hosts": _FORMAT.name(short(row.hosts, _LONG)), "ranks": ranks}
    return Safe(render("fleet_finding.txt", lang, **context).strip())


def _path(path: HostPath, lang: Lang) -> Safe:
    """Return a wait that crosses hosts: a line per process, and how it ends."""
    texts = words(lang)["across"]
    lines = [_hop(hop, lang) for hop in path.hops]
    last = path.hops[-1]
    known = {"peer": _FORMAT.name(short(last.peer, _LONG)), "peers": Safe(last.peers)}
    claimed = _FORMAT.name(short(fold(path.claimed_by), _LONG)) if path.claimed_by else Safe("")
    if path.count > 1:
        hosts = _FORMAT.name(short(path.hosts, _LONG))
        lines.append(fill(_FORMAT.running, texts["hosts"], count=Safe(path.count), hosts=hosts))
    if outcome := texts["outcomes"].get(path.outcome):
        lines.append(fill(_FORMAT.running, outcome, hosts=claimed, **known))
    return Safe("- " + "\n    ".join(lines))


def _hop(hop: Hop, lang: Lang) -> Safe:
    """Return where a process of a path is, what it did and for how long."""
    place = _place(Suspect(host=hop.host, rank=hop.rank, pid=hop.pid, comm=hop.comm or None))
    if hop.by_pid is not None:
        place = Safe(f"{place} -> {_process(hop.by_comm, hop.by_pid)}")
    texts = words(lang)["across"]
    if not hop.what:
        return fill(_FORMAT.running, texts["for"], place=place)
    does = {"mode": hop.mode, "detail": hop.detail, "code": hop.line, "function": hop.line, "object": hop.object}
    blanks = {"place": place, "does": voice("txt", lang).path.row(hop.what, does), "pct": quantity(hop.pct, "pct")}
    apart = duration(hop.apart_ms / 1000) if hop.apart_ms is not None else ""
    return fill(_FORMAT.running, texts["when"][hop.when], apart=Safe(apart), **blanks)


def _process(comm: str | None, pid: int | None) -> str:
    process = _FORMAT.name(short(comm, _LONG)) if comm else ""
    return f"{process} (pid {pid})".strip() if pid is not None else process


def _place(suspect: Suspect) -> Safe:
    """Return ``rank 17 -> node003 -> train (pid 4242) -> save (train.py:212)``, as far as it is known."""
    parts = [
        f"rank {suspect.rank}" if suspect.rank is not None else "",
        _FORMAT.name(short(suspect.host, _LONG)),
        _process(suspect.comm, suspect.pid),
        _FORMAT.running(short(suspect.line, _LONG)) if suspect.line else "",
    ]
    return Safe(" -> ".join(part for part in parts if part))
