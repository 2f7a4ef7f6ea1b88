"""Ranks of a job as a case: each fault has its cause, likely by the traces alone and confirmed by its host too."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import polars as pl
import pytest
from rank_jobs import Fault, Plan, simulate

from whystall.agent_server.app import App
from whystall.agent_server.diagnosis.causes import of_hosts, of_logs, of_ranks
from whystall.agent_server.diagnosis.params import DiagnoseParams
from whystall.agent_server.diagnosis.rank_process import find_rank_process
from whystall.agent_server.diagnosis.ranks import rank_diagnosis, with_host
from whystall.agent_server.presentation.texts import diagnosis_text, ticket_markdown
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.models import CauseState, Culprit, Diagnosis, Verdict, Victim
from whystall.knowledge_base.tickets import drafting as tickets
from whystall.knowledge_base.verify import compare
from whystall.prompts.quantities import quantity
from whystall.prompts.render import LANGS
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.ranks.slow_node_check import tool as slow_node_check
from whystall.tools.recording.judging import judge
from whystall.tools.recording.redact import redact
from whystall.tools.recording.store import Recording

pytestmark = pytest.mark.thorough

CAUSES = load_causes()


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state directory of this test's own."""
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))


def diagnose(recording: Recording) -> Diagnosis:
    tool = slow_node_check.TOOL
    result = judge(tool, recording, tool.params())
    return rank_diagnosis(CAUSES, result, recording.manifest.id, "", recording.table("ranks.ranks").height)


def job(*faults: Fault, **plan: Any) -> Recording:
    return simulate(Plan(faults=faults, **plan)).recording


def of_host(recording: Recording, host: str, pid: int, clock: str = "real", start_ns: int = 0) -> Recording:
    """`recording` with all ranks on `host`, rank 1 as process `pid`, and when on the calendar it was made."""
    ranks = recording.table("ranks.ranks").with_columns(
        host=pl.lit(host), clock=pl.lit(clock), pid=pl.when(pl.col("rank") == 1).then(pid).otherwise(-1).cast(pl.Int32)
    )
    manifest = recording.manifest.model_copy(deep=True)
    manifest.clock, manifest.start_ns = "CLOCK_REALTIME", start_ns
    return Recording.in_memory(manifest, recording.tables() | {"ranks.ranks": ranks})


@pytest.mark.parametrize(
    ("fault", "cause"),
    [(Fault("compute", (1,), ms=25), "slow_rank_compute"), (Fault("gap", (1,), ms=25), "slow_rank_host")],
)
def test_a_slow_rank_is_likely_by_the_traces_which_are_one_source(fault: Fault, cause: str) -> None:
    found = diagnose(job(fault, ranks=8, steps=30))
    assert (found.verdict, found.cause, found.missing) == (Verdict.LIKELY, cause, ["one_source"])
    assert found.victim is not None
    assert (found.victim.type, found.victim.rank) == ("rank", 1)
    assert found.culprit is not None
    assert found.culprit.rank == 1
    by_id = {f.id: f for f in found.findings}
    mechanisms = [by_id[i].spec.mechanism.value for i in found.chain[:2]]
    assert sorted(mechanisms) == ["collectives", "work"]
    assert not {a.cause for a in found.assessments} & of_hosts(CAUSES).keys()


def test_operators_on_a_cpu_need_a_look_at_the_host() -> None:
    """A quota makes them slow in the same way; what a device computes it does not."""
    slow = diagnose(job(Fault("compute", (1,), ms=25), ranks=8, steps=30, device=False))
    assert (slow.verdict, slow.cause, slow.missing) == (Verdict.LIKELY, "slow_rank_compute", ["host_unseen"])
    throttled = with_host(slow, of_process(Verdict.CONFIRMED, "cgroup_cpu_throttling"))
    assert (throttled.verdict, throttled.cause, throttled.missing) == (Verdict.CONFIRMED, "cgroup_cpu_throttling", [])
    late = diagnose(job(Fault("gap", (1,), ms=25), ranks=8, steps=30, device=False))
    assert (late.verdict, late.cause) == (Verdict.LIKELY, "slow_rank_host")


def test_all_that_are_accused_are_in_the_case() -> None:
    found = diagnose(job(Fault("compute", (1,), ms=30), Fault("compute", (5,), ms=20), ranks=8, steps=30))
    by_id = {f.id: f for f in found.findings}
    assert {by_id[i].subject.rank for i in found.chain} == {1, 5}
    assert found.culprit is not None
    assert found.culprit.rank == 1, "the dearest"


@pytest.mark.parametrize(
    ("fault", "steps"),
    [
        (Fault("compute", (1,), ms=25, period=5), 60),
        (Fault("gap", (1,), ms=40, until=3), 200),
        (Fault("loader", (1,), ms=25, since=20, until=40), 120),
    ],
)
def test_a_rank_that_is_slow_in_some_steps_is_neither_healthy_nor_slow_throughout(fault: Fault, steps: int) -> None:
    found = diagnose(job(fault, steps=steps, layers=1))
    assert (found.verdict, found.cause) == (Verdict.LIKELY, "rank_intermittent")
    assert "one_source" in found.missing
    assert found.victim is not None
    assert (found.victim.type, found.victim.rank) == ("rank", 1)
    (seen,) = (f for f in found.findings if f.id in found.chain)
    assert (seen.kind, seen.window_pct) == ("rank.intermittent", found.victim.lost_pct)
    drafted = tickets.draft(found, CAUSES, "2025-01-01T00:00:00Z").model_copy(update={"id": "1"})
    for lang, title in (("en", "in some steps only"), ("zh", "只在部分步")):
        assert title in diagnosis_text(found, CAUSES, lang)  # type: ignore[arg-type]
        assert title in ticket_markdown(drafted, lang, CAUSES)  # type: ignore[arg-type]


def test_a_single_event_in_few_steps_is_inconclusive() -> None:
    found = diagnose(job(Fault("gap", (1,), ms=40, until=3), steps=20, layers=1))
    assert (found.verdict, found.cause, found.victim) == (Verdict.INCONCLUSIVE, None, None)
    assert "few_slow_steps" in found.missing
    assert "too few steps to tell a fault from chance" in diagnosis_text(found, CAUSES, "en")


def test_an_even_job_is_healthy() -> None:
    found = diagnose(job(ranks=8, steps=30))
    assert (found.verdict, found.cause, found.victim and found.victim.type) == (Verdict.HEALTHY, None, "job")
    assert found.victim is not None
    (even,) = (f for f in found.findings if f.kind == "rank.even")
    assert 0 < found.victim.lost_pct == even.metrics["lost_pct"] < 10


@pytest.mark.parametrize("lang", LANGS)
def test_a_job_that_loses_much_in_waiting_is_not_healthy_though_no_rank_is_slow(lang: Any) -> None:
    found = diagnose(job(ranks=8, steps=30, jitter=0.25))
    (even,) = (f for f in found.findings if f.kind == "rank.even")
    lost = even.metrics["lost_pct"]
    assert lost > 10
    assert (found.verdict, found.missing) == (Verdict.INCONCLUSIVE, ["waits_unexplained"])
    assert found.victim is not None
    assert found.victim.lost_pct == lost
    told = diagnosis_text(found, CAUSES, lang)
    assert quantity(lost, "pct") in told
    assert " 0 %" not in told


def test_ranks_that_take_turns_blame_the_job_and_no_rank() -> None:
    found = diagnose(job(Fault("compute", (0, 1, 2, 3), ms=25, every=3), steps=48))
    assert found.cause == "rank_moving_jitter"
    assert found.victim is not None
    assert (found.victim.type, found.victim.rank) == ("job", None)


def test_an_abstention_says_why() -> None:
    found = diagnose(job(Fault("compute", (1,), ms=25), steps=2))
    assert (found.verdict, found.cause) == (Verdict.INCONCLUSIVE, None)
    assert found.missing == ["few_steps"]


@pytest.mark.parametrize("lang", LANGS)
def test_a_case_of_ranks_can_be_told_and_becomes_a_ticket(lang: Any) -> None:
    found = diagnose(of_host(job(Fault("compute", (1,), ms=25)), "no de`1`", 77))
    said = diagnosis_text(found, CAUSES, lang)
    drafted = tickets.draft(found, CAUSES, "2025-01-01T00:00:00Z")
    written = ticket_markdown(drafted.model_copy(update={"id": "1"}), lang, CAUSES)
    for text in (said, written):
        assert "None" not in text
        assert ("rank 1" if lang == "en" else "1 号 rank") in text
        assert "77" in text
    assert '"no de`1`"' in said
    assert drafted.component == "rank-compute"


def test_the_same_slow_host_is_one_ticket_and_another_is_another() -> None:
    def key(host: str) -> str:
        recording = of_host(job(Fault("compute", (1,), ms=25)), host, 77)
        return tickets.draft(diagnose(recording), CAUSES, "2025-01-01T00:00:00Z").dedup_key

    assert key("a") == key("a") != key("b")


def test_a_fix_is_seen_in_the_traces_of_a_later_run() -> None:
    before = diagnose(job(Fault("compute", (1,), ms=25)))
    assert compare(before, diagnose(job())).solved is True
    assert compare(before, diagnose(job(Fault("compute", (1,), ms=24)))).solved is False
    assert compare(before, diagnose(job(steps=2))).solved is None


# --- the host ---------------------------------------------------------------------------------------------------------


def of_process(verdict: Verdict, cause: str | None) -> Diagnosis:
    """What a look at the rank's process came to."""
    who = {"pid": 77, "tid": 78, "comm": "python"}
    shares = dict.fromkeys(("user_pct", "system_pct", "runnable_pct", "blocked_pct", "idle_pct"), 20.0)
    return Diagnosis(
        id="h", created="2025-01-01T00:00:00Z", target="pid 77", verdict=verdict, cause=cause, explained_pct=90,
        victim=Victim(**who, chosen_by="main_thread", lost_pct=40, **shares), culprit=Culprit(**who, cgroup="/job"),
        chain=["F90"], missing=[] if verdict is Verdict.CONFIRMED else ["rivals_open"],
    )  # fmt: skip


def test_what_holds_the_process_up_is_the_cause_of_the_slow_rank() -> None:
    slow = diagnose(job(Fault("compute", (1,), ms=25)))
    found = with_host(slow, of_process(Verdict.CONFIRMED, "cgroup_cpu_throttling"))
    assert (found.verdict, found.cause) == (Verdict.CONFIRMED, "cgroup_cpu_throttling")
    assert found.victim is not None
    assert (found.victim.type, found.victim.tid, found.victim.rank) == ("thread", 78, 1)
    assert found.culprit is not None
    assert (found.culprit.cgroup, found.culprit.rank) == ("/job", 1)
    assert found.chain == [*slow.chain, "F90"]
    supported = {a.cause for a in found.assessments if a.state is CauseState.SUPPORTED}
    assert "slow_rank_compute" in supported


def test_a_host_that_is_only_likely_makes_the_whole_likely() -> None:
    slow = diagnose(job(Fault("compute", (1,), ms=25)))
    found = with_host(slow, of_process(Verdict.LIKELY, "cpu_contention"))
    assert (found.verdict, found.cause, found.missing) == (Verdict.LIKELY, "cpu_contention", ["rivals_open"])


@pytest.mark.parametrize("verdict", [Verdict.HEALTHY, Verdict.INCONCLUSIVE])
def test_a_host_that_explains_nothing_leaves_the_ranks_verdict(verdict: Verdict) -> None:
    slow = diagnose(job(Fault("compute", (1,), ms=25)))
    found = with_host(slow, of_process(verdict, None))
    assert (found.verdict, found.cause, found.victim) == (slow.verdict, slow.cause, slow.victim)


def test_every_cause_is_decided_by_traces_a_host_or_logs() -> None:
    assert of_ranks(CAUSES, baseline=True).keys() | of_hosts(CAUSES).keys() | of_logs(CAUSES).keys() == CAUSES.keys()
    assert not of_ranks(CAUSES).keys() & of_hosts(CAUSES).keys()
    assert len(of_ranks(CAUSES)) >= 8


# --- where the process is ---------------------------------------------------------------------------------------------

NOW_NS = 4_000_000_000_000_000_000


def where(recording: Recording, **more: Any) -> tuple[int | None, str]:
    found = find_rank_process(recording, 1, **more)
    assert (found.pid is None) == bool(found.why)
    return found.pid, found.why


def test_the_process_is_found_by_host_number_and_age() -> None:
    host, slow = socket.gethostname(), job()
    mine = os.getpid()
    assert where(of_host(slow, host, mine, start_ns=NOW_NS)) == (mine, "")
    assert where(of_host(slow, f"{host}.example.org", mine, start_ns=NOW_NS)) == (mine, "")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"host": "elsewhere"}, "rank_elsewhere"),
        ({"host": ""}, "rank_process_unknown"),
        ({"pid": -1}, "rank_process_unknown"),
        ({"pid": 4194304}, "rank_gone"),
        ({"start_ns": 0}, "rank_gone"),  # this process began after the trace
        ({"clock": ""}, "rank_process_unknown"),
        ({"clock": "mono"}, "rank_process_unknown"),  # not the clock of the recording
    ],
)
def test_another_process_is_never_taken_for_it(change: dict[str, Any], why: str) -> None:
    given: dict[str, Any] = {"host": socket.gethostname(), "pid": os.getpid(), "start_ns": NOW_NS}
    assert where(of_host(job(), **(given | change))) == (None, why)


def test_a_number_that_a_container_has_too_names_nobody(tmp_path: Path) -> None:
    """In the network of its host a container bears the host's name, and its numbers are its own."""
    slow = of_host(job(), socket.gethostname(), os.getpid(), start_ns=NOW_NS)
    for pid, numbers in ((90_001, f"90001\t{os.getpid()}"), (90_002, "90002"), (90_003, "")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "status").write_text(f"Name:\tx\nNSpid:\t{numbers}\n")
    found = find_rank_process(slow, 1, tmp_path)
    assert (found.pid, found.why) == (None, "rank_process_unknown")
    assert found.detail.endswith("in containers of this host: 90001")


def test_a_redacted_recording_names_no_process() -> None:
    recording = redact(of_host(job(), socket.gethostname(), os.getpid(), start_ns=NOW_NS))
    assert where(recording) == (None, "rank_process_unknown")


# --- what may be asked ------------------------------------------------------------------------------------------------


@pytest.fixture
def app() -> Iterator[App]:
    with App().closing() as app:
        yield app


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    job(Fault("compute", (1,), ms=25)).save(tmp_path / "rec")
    return tmp_path / "rec"


def test_a_gathered_recording_is_diagnosed_without_a_look_at_any_host(app: App, saved: Path) -> None:
    found = anyio.run(lambda: app.diagnose(DiagnoseParams(ticket=True), source=saved))
    assert (found.verdict, found.cause) == (Verdict.LIKELY, "slow_rank_compute")
    assert [step.why for step in found.steps] == ["traces_of_ranks"]
    assert found.ticket
    assert found.matches
    assert {m.shared[0] for m in found.matches} == {"cause:slow_rank_compute"}


@pytest.mark.parametrize(
    ("given", "source", "said"),
    [
        ({"traces": "/d"}, True, "traces and a recording exclude each other"),
        ({"traces": "/d", "pid": 1}, False, "traces name the job: pid cannot"),
        ({"traces": "/d", "profile": "/p"}, False, "traces name the job: profile cannot"),
        ({"pid": 1}, True, "pid cannot select a part of a recording"),
        ({"comm": "x"}, True, "comm cannot select a part of a recording"),
        ({"cgroup": "/x"}, True, "cgroup cannot select a part of a recording"),
        ({"jobs": 2}, True, "scheduler and jobs read traces"),
    ],
)
def test_what_would_be_ignored_is_refused(
    app: App, saved: Path, given: dict[str, Any], source: bool, said: str
) -> None:
    with pytest.raises(ToolError) as refused:
        anyio.run(lambda: app.diagnose(DiagnoseParams(**given), source=saved if source else None))
    assert refused.value.code is ErrorCode.BAD_ARGUMENT
    assert refused.value.message.startswith(said)
