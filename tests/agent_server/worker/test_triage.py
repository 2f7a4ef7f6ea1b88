"""Triage: which process is looked at, what the ticket says where none is, and how much may be asked for."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from making import checkpoint

from whystall.agent_server.app import App
from whystall.agent_server.diagnosis.diagnose import DiagnosisRunner
from whystall.agent_server.diagnosis.params import DiagnoseParams
from whystall.agent_server.fleet.answers import Answer
from whystall.agent_server.integrations.chat.message_texts import no_look_message
from whystall.agent_server.job_lookup.models import Job, Resolution, Wanted
from whystall.agent_server.journal.tasks import Task
from whystall.agent_server.presentation.oncall import contacts
from whystall.agent_server.settings.model import Settings
from whystall.agent_server.settings.sections.server import TriageSettings
from whystall.agent_server.stores import Stores
from whystall.agent_server.ticketing.ticket_service import TicketService
from whystall.agent_server.worker.triage import DIAGNOSED, KIND, NOTIFY, Triage, TriageResult
from whystall.agent_server.worker.triage_notifier import TriageNotifier
from whystall.knowledge_base.classify.report import Report
from whystall.knowledge_base.ticket_models import Ticket
from whystall.knowledge_base.times import rfc3339
from whystall.tools.contract.errors import ErrorCode, ToolError

pytestmark = pytest.mark.anyio
PLACES = [{"channel": "ops", "conversation": "c1"}]
QUICK = {"duration": 1.0, "engine": "procfs"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path))
    with App(tmp_path / "knowledge.db").closing() as opened:
        yield opened


class Bench:
    """A triage whose finder answers what a test says; asked for with `asked`."""

    def __init__(self, app: App, found: Resolution | None, **settings: Any) -> None:
        self.app = app
        self.kb: Stores = app.kb()
        self.ticket_service = TicketService(self.kb)
        self.asked: list[Wanted] = []
        self.found = found
        self.hosts: list[tuple[str, str, DiagnoseParams]] = []
        self.answer: Answer | None = None
        given = TriageSettings(**{**QUICK, **settings})
        self.replies: dict[str, Answer | None] = {}
        self.ran: list[tuple[str, str, dict[str, Any]]] = []
        self.triage = Triage(app, self.ticket_service, given, self._find, self._ask_host, self._run_on)

    async def _find(self, wanted: Wanted) -> Resolution:
        self.asked.append(wanted)
        assert self.found is not None
        return self.found

    async def _run_on(self, host: str, tool: str, arguments: Mapping[str, Any], seconds: float) -> Answer | None:
        self.ran.append((host, tool, dict(arguments)))
        return self.replies.get(tool)

    async def _ask_host(self, host: str, words: str, params: DiagnoseParams) -> Answer | None:
        self.hosts.append((host, words, params))
        return self.answer

    def ticket(self, title: str = "training stalls", created: str = "2026-01-01T00:00:00Z", **labels: str) -> Ticket:
        report = Report(origin="alert", title=title, labels=labels, created=created, dedup_key=f"2:{title}")
        return self.ticket_service.file(report).ticket

    async def run(self, ticket: Ticket, **payload: Any) -> Task:
        """The task of a triage of `ticket`, when it was handled."""
        given = {"ticket": ticket.id, "places": PLACES, "lang": "zh", **payload}
        number = self.kb.tasks.add(KIND, f"triage:{ticket.id}", given)
        assert number is not None
        task = self.kb.tasks.take([KIND], "test", 1.0, 60)
        assert task is not None
        await self.triage.handle(task)
        done = self.kb.tasks.get(number)
        assert done is not None
        return done

    def told(self, task: Task) -> dict[str, Any]:
        """What is to be told of it."""
        tell = self.kb.tasks.by_key(f"{NOTIFY}:{task.key}")
        assert tell is not None
        return tell.payload

    def looked(self, process: str, ago: timedelta, code: str = DIAGNOSED, ticket: str = "77") -> None:
        """A triage that ended some time ago."""
        key = f"earlier:{process}:{ago}"
        number = self.kb.tasks.add(KIND, key, {})
        assert number is not None
        self.kb.tasks.done(number, TriageResult(code, ticket, process, "d").text())
        at = rfc3339(datetime.now(timezone.utc) - ago)
        with self.kb._file.write() as db:
            db.execute("UPDATE tasks SET updated = ? WHERE id = ?", [at, number])


def ours(**changes: Any) -> Resolution:
    """This process."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    given: dict[str, Any] = {"status": "found", "pid": os.getpid(), "start_ticks": ticks, "how": ["word:train"]}
    return Resolution(**{**given, **changes})


def job(id: str) -> Job:
    return Job(id=id, kind="process", name=id, pid=1, program=id, processes=1, pids=[1], workers=[1])


async def test_the_process_is_diagnosed_and_its_ticket_has_the_diagnosis(app: App) -> None:
    bench = Bench(app, ours())
    ticket = bench.ticket(job="llama-7b")
    task = await bench.run(ticket)
    assert bench.asked == [Wanted(labels={"job": "llama-7b"}, text="training stalls")]
    after = bench.kb.tickets.get(ticket.id)
    assert after.diagnosis is not None
    look = TriageResult.read(task.result)
    assert look is not None
    assert (task.state, look.code, look.ticket, look.diagnosis) == ("done", DIAGNOSED, ticket.id, after.diagnosis.id)
    assert look.process.startswith(f"{os.getpid()}:")
    said = bench.told(task)
    assert (said["code"], said["diagnosis"], said["lang"], said["places"]) == (DIAGNOSED, look.diagnosis, "zh", PLACES)
    assert bench.kb.get_diagnosis(look.diagnosis).victim is not None or after.diagnosis.verdict.value == "healthy"


async def test_what_is_stored_is_stored_together_or_not_at_all(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(app, ours())
    ticket = bench.ticket()

    def broken(*_given: Any, **_how: Any) -> None:
        raise RuntimeError("killed here")

    monkeypatch.setattr(bench.kb.tasks, "done", broken)
    with pytest.raises(RuntimeError, match="killed here"):
        await bench.run(ticket)
    assert bench.kb.tickets.get(ticket.id).diagnosis is None
    assert bench.kb.tasks.by_key(f"{NOTIFY}:triage:{ticket.id}") is None
    with bench.kb._file.read() as db:
        assert db.execute("SELECT count(*) FROM diagnoses").fetchone() == (0,)


@pytest.mark.parametrize(
    ("found", "code", "why"),
    [
        (Resolution(status="none", tried=["pod:trainer-0"]), "no_process", ["pod:trainer-0"]),
        (Resolution(status="none", tried=["elsewhere:node-7"]), "elsewhere:node-7", ["elsewhere:node-7"]),
        (
            Resolution(status="several", jobs=[job("process:1"), job("process:2")], how=["word:train"]),
            "ambiguous",
            ["word:train", "process:1", "process:2"],
        ),
    ],
)
async def test_nobody_is_accused_for_want_of_anybody_better(
    app: App, found: Resolution, code: str, why: list[str]
) -> None:
    bench = Bench(app, found)
    ticket = bench.ticket()
    task = await bench.run(ticket)
    after = bench.kb.tickets.get(ticket.id)
    assert after.diagnosis is None
    assert after.analysis is not None
    assert after.analysis.triage == code
    assert after.state == "open"
    assert (bench.told(task)["code"], bench.told(task)["why"]) == (code, why)
    assert bench.kb.tickets.events(ticket.id)[-1].what != "opened"


ELSEWHERE = Resolution(status="none", tried=["elsewhere:node-7", "slurm_job:4242"])


async def test_another_host_of_the_fleet_is_asked_for_the_job(app: App) -> None:
    bench = Bench(app, ELSEWHERE)
    diagnosis = checkpoint()
    bench.answer = Answer("node-7", "answered", reply=diagnosis.model_dump(mode="json"))
    ticket = bench.ticket(node="node-7", slurm_job_id="4242")
    task = await bench.run(ticket)
    ((host, words, params),) = bench.hosts
    assert (host, words, params.pid, params.symptom) == ("node-7", "slurm job 4242", None, "training stalls")
    after = bench.kb.tickets.get(ticket.id)
    assert after.diagnosis is not None
    assert (after.diagnosis.cause, after.diagnosis.id) == (diagnosis.cause, f"node-7-{diagnosis.id}")
    assert bench.told(task)["code"] == DIAGNOSED
    assert bench.kb.get_diagnosis(bench.told(task)["diagnosis"]).cause == diagnosis.cause
    again = bench.ticket("it stalls once more", node="node-7", slurm_job_id="4242")
    await bench.run(again)  # within the cooldown
    assert len(bench.hosts) == 1


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (None, "elsewhere:node-7"),  # it may not be asked
        (Answer("node-7", "absent", "no process of the job runs there"), "absent:node-7"),
        (Answer("node-7", "slow", "no answer"), "unanswered:node-7"),
        (Answer("node-7", "answered", reply={"verdict": "of course"}), "unanswered:node-7"),
    ],
)
async def test_a_host_without_a_diagnosis_is_named(app: App, answer: Answer | None, code: str) -> None:
    bench = Bench(app, ELSEWHERE)
    bench.answer = answer
    ticket = bench.ticket(node="node-7", slurm_job_id="4242")
    task = await bench.run(ticket)
    analysis = bench.kb.tickets.get(ticket.id).analysis
    assert analysis is not None
    assert analysis.triage == code
    assert bench.told(task)["code"] == code
    for lang in ("en", "zh"):
        assert "node-7" in no_look_message(bench.kb.tickets.get(ticket.id), code, [], lang).text


async def test_an_xid_of_another_host_is_read_there_with_known_defects(app: App, tmp_path: Path) -> None:
    log = tmp_path / "dmesg"
    log.write_text(
        "[   10.000000] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  525.60.13  Wed Nov 30 06:39:21 UTC 2022\n"
        "[  363.100000] NVRM: Xid (PCI:0000:3b:00): 119, pid=42, name=python3, Timeout waiting for RPC from GSP!\n"
    )
    bench = Bench(app, Resolution(status="none", tried=["elsewhere:node-7"]))
    for tool, given in (("gpu_health", {"kernel_log": str(log)}), ("known_fix", {"log": [str(log)], "xid": ["119"]})):
        result = await app.run_tool(tool, {"duration": 0.1, **given}, engine="procfs")
        bench.replies[tool] = Answer("node-7", "answered", reply=result.model_dump(mode="json"))
    ticket = bench.ticket("GPUXidErrors: Xid 119 on node-7", alertname="GPUXidErrors", node="node-7", xid="119")
    task = await bench.run(ticket)
    assert [(host, tool) for host, tool, _ in bench.ran] == [("node-7", "gpu_health"), ("node-7", "known_fix")]
    assert bench.ran[1][2] == {"xid": ["119"]}
    after = bench.kb.tickets.get(ticket.id).diagnosis
    assert after is not None
    assert (after.target, after.cause, [one.attributes["xid"] for one in after.findings]) == ("node-7", None, ["119"])
    assert [row.defect for row in after.known_fixes] == ["nvidia_gsp_525"]
    assert bench.told(task)["code"] == DIAGNOSED


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (None, "elsewhere:node-7"),  # the fleet does not know it
        (Answer("node-7", "unreachable", "no connection"), "unanswered:node-7"),
        (Answer("node-7", "answered", reply={"findings": "none"}), "unanswered:node-7"),
    ],
)
async def test_hardware_of_a_host_that_cannot_be_read_leaves_the_command(
    app: App, answer: Answer | None, code: str
) -> None:
    bench = Bench(app, Resolution(status="none", tried=["elsewhere:node-7"]))
    bench.replies["gpu_health"] = answer
    ticket = bench.ticket("Xid 79", alertname="GPUXidErrors", node="node-7")
    await bench.run(ticket)
    analysis = bench.kb.tickets.get(ticket.id).analysis
    assert analysis is not None
    assert analysis.triage == code
    assert [tool for _, tool, _ in bench.ran] == ["gpu_health"]


async def test_a_host_is_not_asked_for_a_mere_name(app: App) -> None:
    bench = Bench(app, ELSEWHERE)
    await bench.run(bench.ticket(node="node-7", app="train", pid="12"))
    assert bench.hosts == []


@pytest.mark.parametrize(
    ("labels", "title", "code"),
    [
        ({"gpu": "3"}, "GPU temperature", "part:GPU 3"),
        ({"device": "nvme0n1"}, "disk latency", "part:nvme0n1"),
        ({"mountpoint": "/data"}, "NodeFilesystemAlmostOutOfSpace", "part:/data"),
        ({}, "Xid 79 on GPU 5", "part:GPU 5"),
        ({}, "5 号卡过热", "part:GPU 5"),
        ({}, "GPU 80% busy", "no_process"),
        ({"pod": "train-0", "gpu": "3"}, "GPU temperature", "no_process"),
    ],
)
async def test_what_an_alert_without_a_job_is_about_is_named(
    app: App, labels: dict[str, str], title: str, code: str
) -> None:
    tried = [f"pod:{labels['pod']}"] if "pod" in labels else ["words"]
    bench = Bench(app, Resolution(status="none", tried=tried))
    ticket = bench.ticket(title, **labels)
    await bench.run(ticket)
    analysis = bench.kb.tickets.get(ticket.id).analysis
    assert analysis is not None
    assert analysis.triage == code


@pytest.mark.parametrize(
    ("labels", "title", "code"),
    [
        ({"node": platform.node()}, "Xid 79 on GPU 5", DIAGNOSED),
        ({"alertname": "HostEdacUncorrectableErrorsDetected", "instance": "localhost:9100"}, "memory", DIAGNOSED),
        ({"node": "node-7"}, "Xid 79 on GPU 5", "part:GPU 5"),  # of another host
        ({"node": platform.node()}, "GPU 80% busy", "no_process"),
    ],
)
async def test_hardware_of_this_host_is_examined_if_an_alert_names_it(
    app: App, labels: dict[str, str], title: str, code: str
) -> None:
    bench = Bench(app, Resolution(status="none", tried=["words"]))
    ticket = bench.ticket(title, **labels)
    task = await bench.run(ticket)
    result = TriageResult.read(task.result)
    assert result is not None
    assert result.code == code
    after = bench.kb.tickets.get(ticket.id)
    assert (after.diagnosis is not None) == (code == DIAGNOSED)
    if after.diagnosis is not None:
        assert bench.kb.get_diagnosis(after.diagnosis.id).steps[0].tools == ["gpu_health"]
        again = await bench.run(bench.ticket(f"{title} again", **labels))
        assert (result := TriageResult.read(again.result)) is not None
        assert result.code == "cooldown"


async def test_a_number_that_was_given_anew_is_another_process(app: App) -> None:
    """The alert began before the process that has its number now."""
    bench = Bench(app, ours(how=[f"pid:{os.getpid()}"]))
    await bench.run(old := bench.ticket(created="2020-01-01T00:00:00Z"))
    after = bench.kb.tickets.get(old.id)
    assert after.diagnosis is None
    assert after.analysis is not None
    assert after.analysis.triage == "vanished"


async def test_a_process_that_ended_meanwhile_is_said_to_be_gone(app: App) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    bench = Bench(app, ours(pid=child.pid))
    ticket = bench.ticket()
    await bench.run(ticket)
    analysis = bench.kb.tickets.get(ticket.id).analysis
    assert analysis is not None
    assert analysis.triage == "vanished"


@pytest.mark.parametrize("code", [ErrorCode.NO_PRIVILEGE, ErrorCode.PROBE_FAILED])
async def test_a_permanent_failure_is_reported(app: App, code: ErrorCode, monkeypatch: pytest.MonkeyPatch) -> None:
    async def failing(*_given: Any, **_how: Any) -> None:
        raise ToolError(code, "cannot look", "be root")

    monkeypatch.setattr(DiagnosisRunner, "diagnose", failing)
    bench = Bench(app, ours())
    ticket = bench.ticket()
    await bench.run(ticket)
    analysis = bench.kb.tickets.get(ticket.id).analysis
    assert analysis is not None
    assert analysis.triage == f"failed:{code.value}"


async def test_a_triage_that_is_given_up_is_rfc3339(app: App) -> None:
    bench = Bench(app, None)
    ticket = bench.ticket()
    bench.kb.tasks.add(KIND, f"triage:{ticket.id}", {"ticket": ticket.id})
    task = bench.kb.tasks.by_key(f"triage:{ticket.id}")
    assert task is not None
    bench.triage.given_up(task)
    analysis = bench.kb.tickets.get(ticket.id).analysis
    assert analysis is not None
    assert analysis.triage == "failed:internal"


async def test_a_look_that_cannot_be_made_now_is_made_later(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    async def busy(*_given: Any, **_how: Any) -> None:
        raise ToolError(ErrorCode.BUSY, "another window is open", "wait")

    monkeypatch.setattr(DiagnosisRunner, "diagnose", busy)
    bench = Bench(app, ours())
    ticket = bench.ticket()
    with pytest.raises(ToolError, match="busy"):  # the lane tries it again
        await bench.run(ticket)
    analysis = bench.kb.tickets.get(ticket.id).analysis
    assert analysis is None or not analysis.triage


async def test_a_ticket_that_is_over_is_left_alone(app: App) -> None:
    bench = Bench(app, None)
    ticket = bench.ticket()
    bench.ticket_service.resolve(ticket.id, "it was the disk", "wang")
    task = await bench.run(bench.kb.tickets.get(ticket.id))
    assert task.state == "done"
    assert bench.kb.tasks.by_key(f"{NOTIFY}:{task.key}") is None
    assert not bench.asked


async def test_the_same_process_is_not_looked_at_again_so_soon(app: App) -> None:
    resolution = ours()
    bench = Bench(app, resolution, cooldown_s=600)
    first = bench.ticket("first")
    process = f"{resolution.pid}:{resolution.start_ticks}"
    bench.looked(process, timedelta(minutes=5), ticket=first.id)
    second = bench.ticket("second")
    await bench.run(second)
    after = bench.kb.tickets.get(second.id)
    assert after.diagnosis is None
    assert after.analysis is not None
    assert after.analysis.triage == "cooldown"
    assert [(link.kind, link.ticket) for link in after.links if link.ticket == first.id] == [("related", first.id)]


async def test_after_the_cooldown_and_for_other_processes_it_is(app: App) -> None:
    resolution = ours()
    bench = Bench(app, resolution, cooldown_s=60, per_hour=10)
    bench.looked(f"{resolution.pid}:{resolution.start_ticks}", timedelta(minutes=5))
    bench.looked(f"{resolution.pid}:{(resolution.start_ticks or 0) + 1}", timedelta(seconds=1))  # its number before
    ticket = bench.ticket()
    await bench.run(ticket)
    assert bench.kb.tickets.get(ticket.id).diagnosis is not None


@pytest.mark.parametrize("how", ["per_hour", "waiting"])
async def test_a_flood_of_alerts_is_no_load_of_its_own(app: App, how: str) -> None:
    bench = Bench(app, None, **{how: 3})
    if how == "per_hour":
        for n in range(3):
            bench.looked(f"{n}:1", timedelta(minutes=10 * n))
        bench.looked("9:1", timedelta(minutes=1), code="no_process")  # nothing was looked at
    ticket = bench.ticket()
    if how == "waiting":
        number = bench.kb.tasks.add(KIND, f"triage:{ticket.id}", {"ticket": ticket.id})
        taken = bench.kb.tasks.take([KIND], "test", 1.0, 60)
        for n in range(3):
            bench.kb.tasks.add(KIND, f"further:{n}", {})
        assert taken is not None
        assert taken.id == number
        await bench.triage.handle(taken)
    else:
        await bench.run(ticket)
    analysis = bench.kb.tickets.get(ticket.id).analysis
    assert analysis is not None
    assert analysis.triage == "too_many"
    assert not bench.asked


async def test_an_hour_later_there_is_room_again(app: App) -> None:
    bench = Bench(app, Resolution(status="none"), per_hour=1)
    bench.looked("1:1", timedelta(minutes=61))
    await bench.run(bench.ticket())
    assert len(bench.asked) == 1


async def test_a_ticket_that_is_not_there_ends_the_task(app: App) -> None:
    bench = Bench(app, None)
    ghost = bench.ticket().model_copy(update={"id": "4711"})
    with pytest.raises(ToolError, match="not_found"):
        await bench.run(ghost)


async def test_the_message_names_who_is_responsible_with_contacts(app: App) -> None:
    bench = Bench(app, Resolution(status="none", tried=["elsewhere:node-7"]))
    ticket = bench.ticket(node="node-7")
    bench.ticket_service.assign(ticket.id, ["ann", "bob"], "wang")
    await bench.run(ticket)
    tell = bench.kb.tasks.take([NOTIFY], "test", 1.0, 60)
    assert tell is not None
    settings = Settings.model_validate(
        {"users": {"ann": {"name": "Ann", "email": "ann@example.org", "phone": "+49 30 1"}, "bob": {}}}
    )

    def responsible(of: Ticket) -> list[str]:
        return contacts(of.assignment.users, settings) if of.assignment is not None else []

    await TriageNotifier(bench.kb, None, responsible).handle(tell)
    with bench.kb._file.read() as db:
        (text,) = db.execute("SELECT body FROM messages").fetchone()
    for part in ("Ann", "ann", "example.org", "+49 30 1", "bob", "node-7"):
        assert part in text.replace("\\", ""), text


def test_results_of_tasks_are_read_or_passed_over() -> None:
    look = TriageResult("diagnosed", "12", "4242:99", "d-1")
    assert TriageResult.read(look.text()) == look
    assert TriageResult.read(replace(look, code="x").text()) != look
    for odd in ("", "made", "[]", "{}", json.dumps({"code": 1, "other": 2}), "null"):
        assert TriageResult.read(odd) is None
