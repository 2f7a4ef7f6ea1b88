"""Run one case: baseline, injection, proof, diagnosis by each diagnoser, and the speed of the job meanwhile."""

from __future__ import annotations

import platform
import random
import resource
import statistics
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from benchmarks.faults.answer import AnswerError, run_diagnoser
from benchmarks.faults.case import Case, CaseError
from benchmarks.faults.injectors import injectors
from benchmarks.faults.key import Key
from benchmarks.faults.log import Span
from benchmarks.faults.oracle import Proof, prove
from benchmarks.faults.readings import Sample, others_cpu_pct, sample
from benchmarks.faults.results import Result
from benchmarks.faults.rights import command_prefix
from benchmarks.faults.scenario import HERE, Scenario
from benchmarks.faults.score import score
from benchmarks.faults.undo import UndoError, journal

_WARM_S = 1.0
_PROOF_S = 3.0  # length of the span that must prove the fault
_STEP_S = 0.5
_AFTER_S = 2.0
_LEAST_S = 6.0  # of a proof: a shorter span would not show every fault, however fast the diagnoser is
LIMIT_S = 120.0  # of one diagnosis
_LEAST_EVENTS = 3
# Above this CPU use of processes outside the case, in percent of one CPU, competition for the CPUs is a fault of its
# own.
_BUSY_PCT = 100.0


class Void(Exception):
    """The case does not count; the message is the reason."""


def blank(scenario: Scenario, repeat: int, diagnoser: str, seed: int, commit: str) -> Result:
    """Return the result of a case that has not run; `seed`: of the whole run."""
    return Result(
        scenario=scenario.id,
        title=scenario.title,
        group=scenario.group,
        control=scenario.control,
        repeat=repeat,
        diagnoser=diagnoser,
        commit=commit,
        seed=random.Random(f"{seed}/{scenario.id}/{repeat}").getrandbits(32),
        expected=scenario.expected.causes,
        kernel=platform.release(),
    )


def observe(
    scenario: Scenario,
    repeat: int,
    seed: int,
    diagnosers: Mapping[str, Sequence[str]],
    commit: str,
    limit_s: float = LIMIT_S,
) -> Iterator[Result]:
    """Set up the case once and yield the result of every diagnoser, in random order; `limit_s`: of each diagnosis."""
    results = {name: blank(scenario, repeat, name, seed, commit) for name in diagnosers}
    own_seed = next(iter(results.values())).seed
    order = list(diagnosers)
    random.Random(own_seed).shuffle(order)
    with journal() as undo:
        case = Case(scenario, own_seed, undo)
        try:
            baseline, before = _fault(case)
            while order:
                name = order[0]
                before = _diagnose(case, results[name], diagnosers[name], baseline, before, limit_s)
                yield results[order.pop(0)]
        except (Void, CaseError, OSError, KeyError) as error:
            for name in order:
                yield results[name].model_copy(update={"void": f"{type(error).__name__}: {error}"[:2000]})
        finally:
            failed = undo.undo_all()
            case.reap()
    if failed:
        raise UndoError("; ".join(failed))


def _fault(case: Case) -> tuple[tuple[Sample, Sample], tuple[Sample, Sample]]:
    """Inject and wait for the proof; return the samples around the baseline and around the proof."""
    scenario = case.scenario
    running = [injectors()[one.use](case, **case.draw(one.with_)) for one in scenario.inject]
    for one in running:
        next(one)
    case.start()
    time.sleep(_WARM_S)
    start = sample(case)
    time.sleep(scenario.baseline_s)
    baseline = (start, sample(case))
    for one in running:
        next(one, None)
    samples = deque([sample(case)])
    deadline = time.monotonic() + max(scenario.proof_s, _PROOF_S)
    proofs: list[Proof] = []
    while True:
        time.sleep(_STEP_S)
        samples.append(sample(case))
        while samples[-1].at - samples[1].at >= _PROOF_S:
            samples.popleft()
        if samples[-1].at - samples[0].at < _PROOF_S:
            continue
        proofs = prove(case, baseline, (samples[0], samples[-1]))
        if all(proof.holds for proof in proofs):
            return baseline, (samples[0], samples[-1])
        if time.monotonic() > deadline:
            raise Void(f"not proved: {[asdict(p) for p in proofs if not p.holds]}; {case.output()}")


def _diagnose(
    case: Case,
    result: Result,
    command: Sequence[str],
    baseline: tuple[Sample, Sample],
    before: tuple[Sample, Sample],
    limit_s: float,
) -> tuple[Sample, Sample]:
    """Run one diagnoser and fill in its result; return the samples around the time after it.

    The oracle must hold over the diagnosis; if that was short, over the time from `before` to after it.
    """
    symptom = case.rng.choice([case.scenario.symptom.en, case.scenario.symptom.zh])
    command = [*command_prefix(case.scenario.diagnoser), *command]
    first, used = sample(case), _children_s()
    try:
        answer, result.seconds = run_diagnoser(
            command, case.pids["job"], symptom, limit_s, HERE.parents[1], case.journal
        )
    except AnswerError as error:
        answer = None
        result.failed = str(error)
    last, used = sample(case), _children_s() - used
    case.note_threads()
    time.sleep(max(_AFTER_S, before[0].at + _LEAST_S - last.at))
    after = (last, sample(case))
    whole = (first, last) if last.at - first.at >= _LEAST_S else (before[0], after[1])
    proofs = prove(case, baseline, whole)
    result.proofs = [asdict(proof) for proof in proofs]
    result.others_cpu_pct = round(others_cpu_pct(*whole, used), 1)
    if not all(proof.holds for proof in proofs):
        raise Void(f"did not last: {[asdict(p) for p in proofs if not p.holds]}; {case.output()}")
    if result.others_cpu_pct > _BUSY_PCT:
        raise Void(f"other programs used {result.others_cpu_pct:.0f} % of a CPU")
    span = Span(whole[0].at, whole[1].at)
    events = {line["event"] for line in case.log.lines() if "s" in line}
    result.shares = {event: round(case.log.share_pct(event, span), 2) for event in sorted(events)}
    result.key = Key.of(case)
    result.slowdown = _slowdown(case, before, (first, last), after)
    if answer is not None:
        result.answer = answer
        result.score = score(case, answer, result.shares)
    return after


def _children_s() -> float:
    """Return the CPU time of the commands that this process has run and waited for, a diagnoser for instance."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _slowdown(case: Case, *spans: tuple[Sample, Sample]) -> float | None:
    """Return the relative increase of the mean duration of the job's unit, in the middle span over the other two."""
    units = [case.log.durations(case.scenario.unit, Span(first.at, last.at)) for first, last in spans]
    if min(len(values) for values in units) < _LEAST_EVENTS:
        return None
    before, during, after = (statistics.fmean(values) for values in units)
    return round(2 * during / (before + after) - 1, 3)
