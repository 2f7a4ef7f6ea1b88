"""Investigate one stall: a program that reads a `Request` from standard input and writes an `Answer`.

It runs in a process of its own at low priority, so that the libraries of a diagnosis stay out of the watcher's memory.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from whystall.agent_server.watch.awaited_cpu import awaited_starved
from whystall.agent_server.watch.code_lines import own_work
from whystall.agent_server.watch.policy import NOT_OF_ONE_PAUSE, Decision, decide, not_explaining
from whystall.agent_server.watch.requests import Answer, Request
from whystall.tools.contract.errors import ToolError

if TYPE_CHECKING:
    from whystall.agent_server.app import App
    from whystall.agent_server.watch.progress import Stall
    from whystall.knowledge_base.models import Diagnosis

_NICE = 5
_OWN_WORK = ("own_work", "own_work_too_long", "no_cause", "no_fault")
_SYMPTOMS = {
    "gap": "the job stalled for {length}",
    "late": "a step of the job took {length} instead of {usual}",
    "wait": "the job stalled for {length}",
    "signal": "the job stalled for {length}",
    "slowdown": "the step time rose from {usual} to {now} and stays there",
    "drift": "the step time drifted from {usual} to {now}",
}
"""Symptoms as a diagnosis reads them; in English, as its glossary knows both languages."""


def main() -> None:
    """Answer the request on standard input."""
    with suppress(OSError):  # a service may not be allowed to
        os.nice(_NICE)
    request = Request.from_json(sys.stdin.read())
    try:
        answer = investigate(request)
    except ToolError as error:
        answer = Answer(error=f"{error.code.value}: {error.message}; {error.remedy}")
    print(answer.to_json())


def investigate(request: Request) -> Answer:
    """Cut the recording, diagnose it, and open or update a ticket if the stall deserves one. Raises `ToolError`."""
    import anyio

    from whystall.agent_server.app import App
    from whystall.agent_server.diagnosis.params import DiagnoseParams
    from whystall.knowledge_base.causes import load_causes
    from whystall.tools.collect.continuous import recording_from

    place, cut = Path(request.recording), None
    if request.slices:
        cut = recording_from(Path(request.slices), request.start_ns, request.end_ns, frozenset(request.pids))
        cut.save(place)
    symptom, causes = symptom_of(request), load_causes()
    once = frozenset() if request.stall.kind in ("slowdown", "drift") else NOT_OF_ONE_PAUSE
    with App().closing() as app:

        def of_past(excluded: frozenset[str]) -> Diagnosis:
            return anyio.run(lambda: app.diagnose(DiagnoseParams(symptom=symptom), source=place, excluded=excluded))

        found = [of_past(once)]
        if request.live_pid is not None:
            live = DiagnoseParams(pid=request.live_pid, duration=request.live_s, symptom=symptom)
            try:
                found.append(anyio.run(lambda: app.diagnose(live, excluded=once)))
            except ToolError as error:  # it may have ended
                print(f"whystall: no look while it lasted: {error.message}", file=sys.stderr)
        if request.earlier and request.earlier != found[0].id:
            found.append(app.kb().get_diagnosis(request.earlier))
        found = [found[0], *(look for look in found[1:] if saw_the_stall(look, request.stall))]
        best = _better(found)
        decision = _decision(best, request)
        if cut is not None and best.cause and causes[best.cause].category == "cpu" and decision.why == "cause_found":
            decision = _decision(best, request, awaited_starved(request, cut, best))
        if decision.why == "busy_as_usual" and (busy := not_explaining(request.stall, causes)):
            found.append(of_past(once | busy))
            if _decision(found[-1], request).why in ("cause_found", "own_work", "own_work_too_long"):
                best, decision = _at_most_likely(found[-1]), _decision(found[-1], request)
        cause = causes.get(best.cause) if best.cause else None
        work = own_work(request, cut) if cut is not None and decision.why in _OWN_WORK else None
        answer = Answer(
            diagnosis=best.id,
            verdict=best.verdict.value,
            cause=best.cause or "",
            severity=best.severity.value,
            action=decision.action,
            why=decision.why,
            usual=decision.usual,
            title=cause.title.get("en") if cause is not None else "",
            line=work.line if work is not None else "",
            line_pct=round(work.share_pct, 1) if work is not None else 0.0,
            line_before_pct=round(work.before_pct, 1) if work is not None and work.before_pct is not None else None,
            looks=[{"diagnosis": one.id, "verdict": one.verdict.value, "cause": one.cause or ""} for one in found],
        )
        return _ticketed(app, request, best, answer) if decision.action == "ticket" and request.tickets else answer


def _at_most_likely(diagnosis: Diagnosis) -> Diagnosis:
    """Return `diagnosis` without a confirmation: causes were left out, so that nothing rules them out."""
    from whystall.knowledge_base.models import Verdict

    confirmed = diagnosis.verdict is Verdict.CONFIRMED
    return diagnosis.model_copy(update={"verdict": Verdict.LIKELY}) if confirmed else diagnosis


def _decision(diagnosis: Diagnosis, request: Request, awaited: float | None = None) -> Decision:
    from whystall.knowledge_base.causes import load_causes

    cause = load_causes().get(diagnosis.cause) if diagnosis.cause else None
    return decide(diagnosis, cause, request.stall, time.monotonic_ns(), awaited)


def symptom_of(request: Request) -> str:
    """Return the symptom of a stall in words."""
    stall = request.stall
    end = stall.end_ns if stall.end_ns is not None else request.end_ns
    values = {"length": end - stall.start_ns, "usual": stall.usual_ns, "now": stall.now_ns}
    return _SYMPTOMS[stall.kind].format(**{name: f"{value / 1e9:.2f} s" for name, value in values.items()})


def saw_the_stall(look: Diagnosis, stall: Stall) -> bool:
    """Return whether most of the time that a live look observed lies within the stall, as far as this has ended. On a
    busy host the look begins late, and sees what the job does afterwards."""
    if stall.end_ns is None:
        return True
    now, now_ns = datetime.now(timezone.utc), time.monotonic_ns()
    begin, end = (now - timedelta(seconds=(now_ns - at) / 1e9) for at in (stall.start_ns, stall.end_ns))
    seen = observed = 0.0
    for one in look.coverage:
        since = datetime.fromisoformat(one.start.replace("Z", "+00:00"))
        until = since + timedelta(seconds=one.window_s)
        observed += one.window_s
        seen += max(0.0, (min(until, end) - max(since, begin)).total_seconds())
    return seen >= observed / 2


def _better(found: list[Diagnosis]) -> Diagnosis:
    """Return the diagnosis with the better verdict; of two equal ones the first, of the past."""
    from whystall.knowledge_base.models import Verdict

    order = [Verdict.CONFIRMED, Verdict.LIKELY, Verdict.INCONCLUSIVE, Verdict.HEALTHY, Verdict.IDLE]
    return min(found, key=lambda one: order.index(one.verdict))


def _ticketed(app: App, request: Request, diagnosis: Diagnosis, answer: Answer) -> Answer:
    """Open a ticket for `diagnosis`, or count it as another occurrence of the live one with the same fault. If an alert
    on the stall was first, its ticket gets the diagnosis."""
    from dataclasses import replace

    from whystall.agent_server.settings.load import load
    from whystall.agent_server.ticketing.stall_tickets import file_stall, labels_of
    from whystall.agent_server.ticketing.ticket_service import TicketService
    from whystall.tools.node.vantage import host_name

    kb = app.kb()
    service = TicketService(kb, load())
    with kb.transaction():
        labels = labels_of(request.name, host_name(), request.rank)
        ticket, new = file_stall(kb, service, diagnosis, labels, time.time())
        kb.save_diagnosis(diagnosis.model_copy(update={"ticket": ticket.id}))
        service.comment(ticket.id, _evidence(request), "watch", "watch", key=diagnosis.id)
    return replace(answer, ticket=ticket.id, new=new)


def _evidence(request: Request) -> str:
    """Return when the stall was, when it was noticed, and which time the evidence covers."""
    stall = request.stall
    who = f"{request.name} ({request.job}), process {request.pid}"
    rank = f", rank {request.rank}" if request.rank is not None else ""
    end = "it still lasted when this was written" if stall.end_ns is None else f"it ended at {_clock(stall.end_ns)}"
    before = (request.noticed_ns - request.start_ns) / 1e9
    return (
        f"{symptom_of(request)}: {who}{rank}. No progress since {_clock(stall.start_ns)}; {end}. Noticed at "
        f"{_clock(request.noticed_ns)}; the evidence begins {before:.1f} s before it was noticed. "
        f"Recording: {request.recording}"
    )


def _clock(at_ns: int) -> str:
    """Return an instant of CLOCK_MONOTONIC as UTC time."""
    ago = timedelta(microseconds=(time.monotonic_ns() - at_ns) / 1000)
    return f"{datetime.now(timezone.utc) - ago:%Y-%m-%d %H:%M:%S.%f}"[:-3] + " UTC"


if __name__ == "__main__":
    main()
