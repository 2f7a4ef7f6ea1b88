"""Claims about rows of critical paths: true wordings pass, others do not."""

from __future__ import annotations

import pytest
from making import finding, victim

from whystall.agent_server.diagnosis.grounding.claims import CaseFacts, fault
from whystall.knowledge_base.models import Verdict
from whystall.tools.contract.findings import Finding
from whystall.tools.contract.kinds import KINDS

QUEUE = {
    "wait": "queue",
    "code": "get (queue.py:180)",
    "function": "next_batch (train.py:41)",
    "by": "worker (830)",
    "root_wait": "running",
    "root_by": "worker (830)",
    "root_code": "decode (data.py:17)",
    "chain": "worker (830) running at decode (data.py:17)",
}
GIL = {"wait": "interpreter_lock", "function": "step (train.py:9)", "by": "python (77)"}
PAUSE = {"code": "save (train.py:33)", "function": "save (train.py)", "main": "system getrandom"}
ROWS = {
    "queue": finding("path.wait", words=QUEUE, window_pct=41.2, total_ms=4120, count=120, max_ms=41, root_pct=93),
    "gil": finding("path.wait", words=GIL, window_pct=62, total_ms=6200, count=900, max_ms=12),
    "sleep": finding("path.wait", words={"wait": "sleep", "function": "wait (a.py:3)"}, window_pct=75, asked_ms=500),
    "runs": finding("path.running", words={"mode": "user", "function": "parse (data.py:7)"}, window_pct=88.5),
    "pause": finding("path.pause", words=PAUSE, window_pct=5, period_s=2.8, p50_ms=130, main_pct=85, count=4),
    "socket": finding("path.wait", words={"wait": "socket", "object": "10.0.0.7:5432"}, window_pct=55),
    "confined": finding("cpu.saturated", words={"cpus": "1"}, busy_pct=99, allowed_cpus=1),
}


def judged(text: str, *names: str) -> str | None:
    cited: list[Finding] = [ROWS[name].model_copy(update={"id": f"F{n}"}) for n, name in enumerate(names, 1)]
    case = CaseFacts(
        findings={f.id: f for f in cited},
        kinds=frozenset(KINDS),
        victim=victim(),
        windows_s=[10.0],
        assessments=[],
        causes=frozenset(),
        verdict=Verdict.INCONCLUSIVE,
    )
    found = fault(text, [f.id for f in cited], case)
    return found and found[0]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("The main thread waits 41.2 % of the time in get (queue.py:180), called by next_batch.", ["queue"]),
        ("Meanwhile worker (830) runs decode (data.py:17).", ["queue"]),
        ("The thread waits 62 % of the time for the GIL at step (train.py:9).", ["gil"]),
        ("It waits for the interpreter lock, which python (77) holds.", ["gil"]),
        ("The thread sleeps 75 % of the time in wait (a.py:3).", ["sleep"]),
        ("The thread runs parse (data.py:7) for 88.5 % of the time.", ["runs"]),
        ("It pauses every 2.8 s for 130 ms in save, mostly in getrandom.", ["pause"]),
        ("It waits for the server at 10.0.0.7:5432 to send data over the network.", ["socket"]),
        ("The CPUs that it may use are all busy (99 %).", ["confined"]),
        ("线程有 62% 的时间在等 GIL。", ["gil"]),
        ("主线程 75% 的时间在睡眠。", ["sleep"]),
    ],
)
def test_claims_that_rows_support_are_kept(text: str, names: list[str]) -> None:
    assert judged(text, *names) is None


@pytest.mark.parametrize(
    ("text", "names", "code"),
    [
        ("The main thread waits 51.2 % of the time in get (queue.py:180).", ["queue"], "number"),
        ("The main thread runs 41.2 % of the time.", ["queue"], "number"),
        ("The main thread waits for 88.5 % of the time.", ["runs"], "number"),
        ("It waits for nginx (830).", ["queue"], "name"),
        ("It waits for the GIL.", ["queue"], "name"),
        ("The thread waits for the interpreter lock.", ["queue"], "no_finding"),
        ("The thread sleeps most of the time.", ["gil"], "contradicted"),
        ("The thread sleeps most of the time.", ["runs"], "contradicted"),
        ("It burns its time in wait (a.py:3).", ["sleep"], "contradicted"),
        ("It waits for data from the network.", ["queue"], "no_finding"),
        ("It waits for the disk.", ["gil"], "no_finding"),
        ("It waits in the garbage collector.", ["queue"], "no_finding"),
        ("线程在睡眠。", ["gil"], "contradicted"),
        ("All CPUs of the host are busy (99 %).", ["confined"], "contradicted"),
    ],
)
def test_claims_that_rows_do_not_support_are_removed(text: str, names: list[str], code: str) -> None:
    assert judged(text, *names) == code
