"""In which container and pod the subjects of findings are: said at one place, kept in recordings, hashed on demand."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from recordings import COMM, PID, Scene, checkpoints

from whystall.agent_server.presentation.texts import result_text
from whystall.tools.collect.tables import COLLECTORS
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.params import TargetParams
from whystall.tools.contract.result import ToolResult
from whystall.tools.host.fileslower import tool as fileslower
from whystall.tools.host.host_snapshot import tool as host_snapshot
from whystall.tools.node.containers import Container
from whystall.tools.recording import target as targets
from whystall.tools.recording.judging import judge
from whystall.tools.recording.redact import redact
from whystall.tools.recording.store import Recording
from whystall.tools.recording.target import Target

ID, UID = "3f4a" * 16, "0f2d5f7c-8c56-4d0b-9a4b-1b2c3d4e5f60"
POD = "ml/train-0"


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))


def recorded(called: str | None = POD, **target: Any) -> Recording:
    made = checkpoints(Scene().thread(user=60, blocked=30)).build()
    made.manifest.containers = [Container(id=ID, runtime="containerd", pod=called, pod_uid=UID, pids={PID: 1})]
    made.manifest.target = made.manifest.target.model_copy(update=target)
    return made


def judged(recording: Recording) -> ToolResult[Any]:
    return judge(fileslower.TOOL, recording, fileslower.Params())


def test_a_subject_has_the_place_of_its_process_and_its_fingerprint_does_not() -> None:
    bare, placed = judged(checkpoints(Scene().thread(user=60, blocked=30)).build()), judged(recorded())
    mine = [f for f in placed.findings if f.subject.pid == PID]
    assert mine
    assert {(f.subject.container, f.subject.pod) for f in mine} == {(ID, POD)}
    assert {f.subject.container for f in placed.findings if f.subject.pid != PID} <= {None}
    assert [f.fingerprint for f in placed.findings] == [f.fingerprint for f in bare.findings]


def test_where_nobody_tells_the_name_of_a_pod_it_goes_by_its_uid() -> None:
    finding = next(f for f in judged(recorded(called=None)).findings if f.subject.pid == PID)
    assert finding.subject.pod == UID


def test_a_control_group_is_placed_by_its_path() -> None:
    path = f"/kubepods/burstable/pod{UID}/{ID}"
    made = Scene().thread(user=60, blocked=30).cgroup(path, throttled=40).build()
    made.manifest.containers = [Container(id=ID, pod=POD, pod_uid=UID, pids={1: 1})]
    found = judge(host_snapshot.TOOL, made, host_snapshot.Params())
    groups = [f.subject for f in found.findings if f.subject.type == "cgroup"]
    assert groups
    assert {(s.container, s.pod) for s in groups if s.cgroup == path} == {(ID, POD)}


@pytest.mark.parametrize(("lang", "word"), [("en", "pod ml/train-0"), ("zh", "Pod ml/train-0")])
def test_the_place_is_said_once(lang: Any, word: str) -> None:
    beside = result_text(judged(recorded()), lang)
    assert f"{COMM} ({PID}" in beside
    assert word in beside
    told = result_text(judged(recorded(container=ID, pod=POD)), lang)
    assert told.count(POD) == 1, "the name of the target says it"
    neighbour = result_text(judged(recorded(container="0b1c" * 16, pod=f"{POD}0")), lang)
    assert f"{word})" in neighbour, "another pod, whose name begins alike"


def test_a_recording_keeps_and_redaction_hides_it(tmp_path: Path) -> None:
    recorded(container=ID, pod=POD).save(tmp_path / "whole")
    again = Recording.open(tmp_path / "whole", COLLECTORS)
    assert judged(again).model_dump()["findings"] == judged(recorded(container=ID, pod=POD)).model_dump()["findings"]
    hidden = redact(again)
    hidden.save(tmp_path / "hidden")
    text = (tmp_path / "hidden/manifest.json").read_text()
    assert not [name for name in (ID, UID, "train-0", '"ml/') if name in text]
    (entry,) = hidden.manifest.containers
    assert entry.pod is not None
    assert entry.pod.count("/") == 1
    finding = next(f for f in judged(hidden).findings if f.subject.pid == PID)
    assert (finding.subject.container, finding.subject.pod) == (entry.id, entry.pod)
    assert hidden.manifest.target.pod == entry.pod


def test_a_target_says_where_it_is() -> None:
    where: dict[str, Any] = {"container": ID, "pod": POD}
    assert Target(everything=False, pid=7, comm="x", pids=[7], **where).describe() == "pid 7 (x), pod ml/train-0"
    assert Target(everything=False, comm="x", pids=[7], container=ID).describe() == f"comm x, container {ID[:12]}"
    hostile = Target(everything=False, pid=7, comm="x", pids=[7], pod="a\x1b[31m\nb")
    assert hostile.describe() == "pid 7 (x), pod a\\x1b[31m\\x0ab"


@pytest.mark.parametrize("words", [ID, ID[:12], f"containerd://{ID}", "pod:ml/nobody", "pod:nobody"])
def test_a_container_that_does_not_run_here_is_refused_in_a_line(words: str) -> None:
    with pytest.raises(ToolError) as refused:
        targets.resolve(TargetParams(cgroup=words))
    assert refused.value.code is ErrorCode.NO_SUCH_CGROUP
    assert "\n" not in refused.value.message


def test_of_several_of_one_name_nobody_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        (os.getpid(), Container(pod=f"{space}/train-0", pod_uid=space), f"/kubepods/pod{space}") for space in ("a", "b")
    ]
    monkeypatch.setattr(targets.Containers, "find", lambda *_: found)
    with pytest.raises(ToolError) as refused:
        targets.resolve(TargetParams(cgroup="pod:train-0"))
    assert refused.value.code is ErrorCode.BAD_ARGUMENT
    assert "a/train-0, b/train-0" in refused.value.message


def test_a_control_group_is_found_by_its_own_path_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def group(path: str, pid: int) -> None:
        directory = tmp_path / path
        directory.mkdir(parents=True)
        (directory / "cgroup.procs").write_text(f"{pid}\n")

    monkeypatch.setattr(targets, "node_path", lambda path: tmp_path)
    for path, pid in (("cpu/job", 1), ("memory/job/rank", 2), ("memory/other/job", 3)):
        group(path, pid)
    assert targets.cgroup_pids("/job") == [1, 2]
    assert targets.cgroup_pids("/sys/fs/cgroup/memory/job") == [2]
    (tmp_path / "cgroup.procs").write_text("")  # now there is one hierarchy, and `cpu` is a group of it
    group("job", 4)
    assert targets.cgroup_pids("/job") == [4]
    assert targets.cgroup_pids("job/..") == []
