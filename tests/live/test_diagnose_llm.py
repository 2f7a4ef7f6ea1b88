"""A stall diagnosed while it happens, with a model that chooses the tools: honest, killed midway, inventing."""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator

import driven
import pytest
from driven import Home
from model_policies import INVENTED_CAUSE, INVENTED_FILE, INVENTED_NUMBER
from running import SIMULATOR, Running
from slow_disk import SlowDisk

RIGHT = ("confirmed", "sync_checkpoint_write")
SERVER = SIMULATOR.with_name("model_server.py")
WINDOW_S = 4.5


@pytest.fixture(scope="module")
def program() -> Iterator[Running]:
    """A training loop that stalls on its checkpoints, from its first one on."""
    with (
        SlowDisk(write_mib_s=60) as disk,
        Running(SIMULATOR, "--directory", disk.path, "--step-ms", 40, wrap=disk.command) as running,
    ):
        running.until("checkpoint")
        yield running


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A state directory for this module."""
    return Home(tmp_path_factory.mktemp("home"))


def logged(program: Running) -> tuple[set[str], float]:
    """What the program says of itself: the files it waited for, and for how long in the median, ms."""
    checkpoints = program.of("checkpoint")
    return {line["path"] for line in checkpoints}, 1e3 * statistics.median(line["total_s"] for line in checkpoints)


def test_a_model_chains_tools_on_a_live_stall_and_cites_what_they_found(program: Running, home: Home) -> None:
    found = home.drive("engineer", pid=program.pid, duration=WINDOW_S)
    paths, latency = logged(program)
    assert found.answer == RIGHT, found.diagnosis.model_dump_json(indent=1)
    assert len(found.tools) >= 3
    reasoning, culprit = found.diagnosis.reasoning, found.diagnosis.culprit
    assert reasoning is not None
    assert (reasoning.stopped, reasoning.struck) == (None, [])
    cited = {claim.subject for claim in reasoning.claims}
    assert cited
    assert cited <= {finding.id for finding in found.diagnosis.findings}
    assert culprit is not None
    assert culprit.path in paths
    assert culprit.latency_ms == pytest.approx(latency, rel=0.15)
    assert culprit.series in found.story
    assert home.json("replay", found.diagnosis.id)["same"]


def test_the_server_killed_midway_changes_nothing_of_the_answer(program: Running, home: Home) -> None:
    words = ["diagnose", "--pid", str(program.pid), "--duration", str(WINDOW_S), "--symptom", driven.SYMPTOM]
    argv = [sys.executable, str(SERVER), "--port", "0"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = next(re.findall(r"http://\S+", line)[0] for line in server.stdout if "http://" in line)
        answers = []

        def kill_after_an_answer() -> None:
            answers.append(server.stdout.readline())
            server.kill()

        killer = threading.Thread(target=kill_after_an_answer)
        killer.start()
        try:
            found = home.json(*words, "--llm", "--ticket", **driven.settings(url))
        finally:
            server.kill()
            killer.join()
    by_rules = home.json(*words)
    assert "fileslower" in answers[0] or "offcputime" in answers[0], "it was killed after it had chosen"
    assert found["reasoning"]["stopped"] == "unreachable"
    assert (found["verdict"], found["cause"]) == (by_rules["verdict"], by_rules["cause"]) == RIGHT
    assert found["missing"] == by_rules["missing"] == []
    assert found["ticket"]


def test_what_a_model_invents_is_in_no_ticket(program: Running, home: Home) -> None:
    found = home.drive("invented-everything", pid=program.pid, duration=WINDOW_S)
    assert found.answer == RIGHT, found.diagnosis.model_dump_json(indent=1)
    assert found.story, "corrected, and concluded again"
    shown, stored = home.ticket(found.diagnosis.ticket), home.stored()
    for invention in (INVENTED_NUMBER, INVENTED_FILE, INVENTED_CAUSE):
        assert invention in found.heard
        assert invention not in shown
        assert invention.encode() not in stored
