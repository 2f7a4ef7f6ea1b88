"""From what people and alerts call a job to its process: exact ids, names, ranks; nothing is guessed."""

from __future__ import annotations

from typing import Any

import pytest

from whystall.agent_server.job_lookup import addresses
from whystall.agent_server.job_lookup import find as finding
from whystall.agent_server.job_lookup.grouping import jobs
from whystall.agent_server.job_lookup.models import (
    Grouped,
    Inventory,
    Process,
    Resolution,
    Wanted,
)
from whystall.agent_server.job_lookup.resolve import resolve
from whystall.agent_server.job_lookup.search_terms import search_terms, words_for_host
from whystall.agent_server.job_lookup.stalled import State, most_stalled
from whystall.tools.node.environment import Identity

CONTAINER = "3f4a" * 16
UID = "0f2d5f7c-8c56-4d0b-9a4b-1b2c3d4e5f60"


def process(pid: int, program: str = "train.py", ppid: int = 1, words: tuple[str, ...] = (), **more: Any) -> Process:
    group = {name: more.pop(name) for name in Grouped.__slots__ if name in more}
    said = {name: more.pop(name) for name in Identity.__slots__ if name in more}
    return Process(
        pid=pid, ppid=ppid, comm=more.pop("comm", "python3"), state="S", start_ticks=pid * 10, started_s=pid / 10,
        program=program, words=words or ("python3", program), identity=Identity(**said), grouped=Grouped(**group),
        **more,
    )  # fmt: skip


def ranks(run: str, first: int, count: int, **more: Any) -> list[Process]:
    """The ranks of a torchrun, with the launcher and a worker of a data loader each."""
    words = ("python3", "train.py", f"configs/{run}.yaml")
    made = [process(first, "torchrun", words=("python3", "/usr/bin/torchrun", *words[1:]))]
    for rank in range(count):
        said = {"rank": rank, "local_rank": rank, "world_size": count, "run_id": run, "master": "127.0.0.1:29500"}
        pid = first + 10 * (rank + 1)
        made += [process(pid, ppid=first, words=words, **said, **more)]
        made += [process(pid + 1, ppid=pid, words=words, **said, **more)]
    return made


HERE = [
    process(1, "systemd", ppid=0, comm="systemd"),
    process(50, "bash", words=("bash",), comm="bash"),
    *ranks("llama-7b", 100, 4),
    *ranks("llama-70b", 200, 2),
    process(300, "serve.py", words=("python3", "serve.py", "--model", "qwen2-7b"), container=CONTAINER),
    process(310, "sft.py", slurm_job="4242", job_name="qwen-sft"),
    process(311, "sft.py", ppid=310, slurm_job="4242", job_name="qwen-sft"),
    process(320, "eval.py", pod_uid=UID, pod_name="eval-0", namespace="ml", container="0b1c" * 16),
    process(4242, "postgres", comm="postgres", words=("postgres",)),
    process(400, "data.py"),
    process(401, "data.py"),
]
INVENTORY = Inventory(HERE, host=("gpu-7.example", "gpu-7"), now_s=1000.0)


def found(wanted: Wanted | str) -> Resolution:
    return resolve(Wanted(text=wanted) if isinstance(wanted, str) else wanted, INVENTORY)


def test_ranks_launchers_and_workers_are_one_job() -> None:
    by_id = {job.id: job for job in jobs(INVENTORY)}
    llama = by_id["run:llama-7b"]
    assert [(rank.rank, rank.pid) for rank in llama.ranks] == [(0, 110), (1, 120), (2, 130), (3, 140)]
    assert (llama.processes, llama.world_size, llama.pid, llama.name) == (9, 4, 110, "llama-7b")
    assert by_id["slurm:4242"].pids == [310, 311]
    assert by_id["slurm:4242"].workers == [310]
    assert {job.id for job in jobs(INVENTORY)} >= {f"pod:{UID}", f"container:{CONTAINER[:12]}", "process:400"}


@pytest.mark.parametrize(
    ("text", "pid", "rank"),
    [
        ("llama-7b", 110, 0),
        ("job llama-7b", 110, 0),
        ("rank 3 of llama-7b", 140, 3),
        ("llama-7b 的 rank 2", 130, 2),
        ("why is llama-7b slow on host gpu-7", 110, 0),
        ("节点 gpu-7 上的 llama-7b 为什么卡顿", 110, 0),
        ("LLAMA-7B", 110, 0),
        ("pid 120", 120, 1),
        ("进程 121", 121, 1),
        ("4242 号作业 qwen-sft", 310, None),
        ("qwen-sft", 310, None),
        ("slurm job 4242", 310, None),
        ("作业 4242", 310, None),
        ("eval-0", 320, None),
        (UID, 320, None),
        (CONTAINER[:12], 300, None),
        (f"containerd://{CONTAINER}", 300, None),
        ("qwen2-7b", 300, None),  # only its command line says so
        ("rank 3", 140, 3),  # only one job has it
        ("serve.py", 300, None),
        ("serve", 300, None),
        ("postgres", 4242, None),
    ],
)
def test_what_is_found(text: str, pid: int, rank: int | None) -> None:
    resolution = found(text)
    assert (resolution.status, resolution.pid, resolution.rank) == ("found", pid, rank), resolution
    assert resolution.start_ticks == pid * 10
    assert resolution.how


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("data.py", {"process:400", "process:401"}),
        ("4242", {"slurm:4242", "process:4242"}),  # a pid, or a job of Slurm?
        ("rank 1", {"run:llama-7b", "run:llama-70b"}),
        ("llama", {"run:llama-7b", "run:llama-70b"}),
        ("lama-70b", {"run:llama-7b", "run:llama-70b"}),  # nearly the same is asked about
        ("sreve.py", {f"container:{CONTAINER[:12]}"}),  # ... even where it is the only one
        ("", {"run:llama-7b", "run:llama-70b"}),
    ],
)
def test_several_are_told_and_none_is_chosen(text: str, ids: set[str]) -> None:
    resolution = found(text)
    assert resolution.status == "several"
    assert resolution.pid is None
    assert {job.id for job in resolution.jobs} == ids


@pytest.mark.parametrize(
    ("wanted", "tried"),
    [
        ("gemma-2b", ["name:gemma-2b"]),
        ("pid 99999", ["pid:99999"]),
        ("pid 99999 llama-7b", ["pid:99999"]),  # an id that is not there settles it
        ("rank 9 of llama-7b", ["name:llama-7b", "rank:9"]),
        ("777", ["pid:777", "slurm_job:777"]),
        ("f" * 64, [f"container:{'f' * 64}"]),
        ("why is llama-7b slow on node gpu-9", ["elsewhere:gpu-9"]),
        ("pid 120 on host gpu-9 hangs", ["elsewhere:gpu-9"]),
        ("gpu-9 节点上的 llama-7b 为什么卡顿", ["elsewhere:gpu-9"]),
    ],
)
def test_none_says_what_was_tried(wanted: str, tried: list[str]) -> None:
    resolution = found(wanted)
    assert resolution.status == "none"
    assert resolution.tried == tried


@pytest.mark.parametrize(
    ("labels", "status", "pid"),
    [
        ({"pid": "120", "instance": "gpu-7:9100"}, "found", 120),
        ({"pid": "120", "instance": "10.0.0.7:9100"}, "found", 120),  # an address may be ours
        ({"pod": "eval-0", "namespace": "ml"}, "found", 320),
        ({"container_id": f"containerd://{CONTAINER}", "node": "gpu-9"}, "found", 300),  # ids are the same everywhere
        ({"id": f"/docker/{CONTAINER}", "name": "x"}, "found", 300),
        ({"slurm_job_id": "4242"}, "found", 310),
        ({"job_name": "llama-7b", "rank": "2"}, "found", 130),
        ({"run_id": "llama-70b"}, "found", 210),
        ({"container_id": CONTAINER, "pid": "1"}, "found", 300),  # a pid within the container
        ({"pid": "120", "node": "gpu-9"}, "none", None),
        ({"comm": "postgres", "hostname": "gpu-9.example"}, "none", None),
        ({"job": "node-exporter", "severity": "critical", "alertname": "NodeDown"}, "none", None),
        ({"alertname": "data.py"}, "none", None),
        ({"process": "data.py"}, "several", None),
    ],
)
def test_labels_of_alerts(labels: dict[str, str], status: str, pid: int | None) -> None:
    resolution = found(Wanted(labels={**labels, "severity": labels.get("severity", "warning")}))
    if labels.get("job") or labels.get("alertname"):  # nothing in them names a job: what runs here is told
        assert resolution.pid is None
        return
    assert (resolution.status, resolution.pid) == (status, pid), resolution


@pytest.mark.parametrize(
    ("labels", "title"),
    [
        (
            {"pid": "120", "container_id": "9" * 64},
            "",
        ),  # the container is elsewhere, and its number is another one here
        ({"pid": "4242", "slurm_job_id": "999"}, ""),
        ({"pid": "120", "pod_uid": UID.replace("0f", "1f")}, ""),
        ({"pid": "4242", "comm": "train.py"}, ""),  # that is postgres
        ({"pid": "320", "pod": "web-1"}, ""),
        ({"pod": "eval-0", "namespace": "other"}, ""),
        ({"pid": "99999", "job_name": "llama-7b"}, ""),  # it is gone
        ({"container_id": "9" * 64, "app": "serve"}, ""),
        ({"job_name": "llama"}, ""),  # a part of other names
        ({"job_name": "qwen"}, ""),
        ({"model": "qwen2"}, ""),
        ({"container": "serve", "pod": "serve-abc"}, ""),  # of a pod, which that process is not in
        ({"process": "python3"}, ""),
        ({"alertname": "Slow"}, "process 120 of 400 is slow"),
        ({"alertname": "Slow"}, "job 4242 was tried 3 times"),
        ({"alertname": "Slow"}, "redis cannot reach postgres"),
        ({"pid": "120", "instance": "10.0.0.9:9100"}, ""),
        ({"pid": "120", "instance": "[2001:db8::9]:9100"}, ""),
        ({"pid": "120", "node": "gpu-7.other"}, ""),
        ({"container": "postgres", "exported_container": "etcd"}, ""),  # the former was asked for the latter's figures
    ],
)
def test_an_alert_accuses_nobody_that_it_may_not_mean(labels: dict[str, str], title: str) -> None:
    here = Inventory(HERE, host=INVENTORY.host, now_s=1000.0, addresses=("127.0.0.1", "10.0.0.7"))
    resolution = resolve(Wanted(labels={**labels, "severity": "page"}, text=title), here)
    assert (resolution.status != "found", resolution.pid) == (True, None), resolution


@pytest.mark.parametrize("title", ["slow", "磁盘满", ""])
def test_an_alert_that_names_no_job_does_not_mean_the_only_one(title: str) -> None:
    alone = Inventory(ranks("llama-7b", 100, 4))
    assert resolve(Wanted(labels={"alertname": title or "Slow"}, text=title), alone).status == "none"
    assert resolve(Wanted(text=""), alone).pid == 110  # who asks without a name is told which it is


@pytest.mark.parametrize(
    ("labels", "pid"),
    [
        ({"pid": "120", "instance": "10.0.0.7:9100"}, 120),
        ({"pid": "4242", "comm": "postgres"}, 4242),
        ({"pid": "120", "node": "gpu-7"}, 120),
        ({"statefulset": "eval"}, 320),
        ({"model": "qwen2-7b"}, 300),
        ({"pod": "node-exporter-x2x5k", "container": "node-exporter", "exported_pod": "eval-0"}, 320),
        ({"process": "serve.py"}, 300),
    ],
)
def test_what_an_alert_says_in_full_is_found(labels: dict[str, str], pid: int) -> None:
    here = Inventory(HERE, host=INVENTORY.host, now_s=1000.0, addresses=("127.0.0.1", "10.0.0.7"))
    assert resolve(Wanted(labels=labels), here).pid == pid


def test_a_pod_in_the_network_of_the_host_is_called_as_the_host_is() -> None:
    here = Inventory([process(7, pod_uid=UID, pod_name="gpu-7")], host=("gpu-7",))
    assert resolve(Wanted(labels={"pod": "train-0", "pid": "7", "node": "gpu-7"}), here).pid == 7


def test_our_own_addresses_are_read() -> None:
    assert "127.0.0.1" in addresses.own()


def test_another_host_is_told_and_titles_give_no_plain_words() -> None:
    elsewhere = found(Wanted(labels={"pid": "120", "node": "gpu-9"}))
    assert "elsewhere:gpu-9" in elsewhere.tried
    plain = found(Wanted(text="The data job is slow and serve requests wait", labels={"severity": "warning"}))
    assert plain.status != "found"
    named = found(Wanted(text="Step time of llama-70b too high", labels={"severity": "warning"}))
    assert named.pid == 210


def test_shells_that_hold_the_words_are_not_meant() -> None:
    shell = process(60, "bash", words=("bash", "watch", "gemma-2b"))
    wanted = process(61, "run.py", words=("python3", "run.py", "gemma-2b"))
    assert resolve(Wanted(text="gemma-2b"), Inventory([shell, wanted])).pid == 61


def test_the_same_address_in_two_containers_is_two_jobs() -> None:
    said = {"rank": 0, "world_size": 1, "master": "localhost:29500"}
    one = process(10, container="a" * 64, **said)
    other = process(11, container="b" * 64, **said)
    assert len(jobs(Inventory([one, other]))) == 2
    assert len(jobs(Inventory([one, process(12, container="a" * 64, **said)]))) == 1


def test_the_container_that_we_are_in_tells_nothing_apart() -> None:
    here = [process(10, "a.py", container=CONTAINER), process(11, "b.py", container=CONTAINER)]
    assert len(jobs(Inventory(here, own=CONTAINER))) == 2
    assert len(jobs(Inventory(here))) == 1


def test_a_forked_worker_belongs_to_its_parent_and_a_shell_parts_jobs() -> None:
    tree = [
        process(10, "bash", words=("bash",)),
        process(11, "train.py", ppid=10),
        process(12, "train.py", ppid=11),
        process(13, "python3", ppid=11, words=("python3", "from multiprocessing.spawn import spawn_main")),
        process(14, "other.py", ppid=10),
        process(15, "ffmpeg", ppid=11, words=("ffmpeg",)),
    ]
    assert {job.id: job.pids for job in jobs(Inventory(tree))} == {
        "process:10": [10],
        "process:11": [11, 12, 13],
        "process:14": [14],
        "process:15": [15],
    }


def state(stuck: int, wait_ms: int, at_ms: int) -> State:
    return State(stuck, wait_ms * 1_000_000, at_ms * 1_000_000)


def test_who_suffers_clearly_is_chosen_and_nobody_else() -> None:
    still, waits = [state(0, 0, t) for t in (0, 500)], [state(0, 0, 0), state(0, 400, 500)]
    blocked = [state(1, 0, t) for t in (0, 500)]
    together = lambda *each: [dict(enumerate(now)) for now in zip(*each, strict=True)]  # noqa: E731
    assert most_stalled(together(still, waits)) == 1
    assert most_stalled(together(blocked, still, still)) == 0
    assert most_stalled(together(blocked, waits)) is None  # both do
    assert most_stalled(together(still, still)) is None
    assert most_stalled([]) is None


@pytest.mark.anyio
async def test_the_rank_that_suffers_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    resolution = found("llama-7b")
    monkeypatch.setattr(finding, "_most_stalled", lambda pids, look_s: 130)
    monkeypatch.setattr(finding.inventory, "start_ticks", lambda pid: 7)
    chosen = await finding.choose_rank(resolution)
    assert (chosen.pid, chosen.rank, chosen.start_ticks) == (130, 2, 7)
    assert chosen.how == ["name:llama-7b", "suffers"]
    asked = found("rank 1 of llama-7b")
    assert await finding.choose_rank(asked) is asked


@pytest.mark.parametrize(
    ("labels", "title"),
    [
        ({"service": "postgres"}, "slow queries"),  # a service, of whatever host
        ({"app": "serve"}, "latency"),
        ({"alertname": "PostgresDown"}, "POSTGRES does not answer"),
        ({"alertname": "NCCLTimeout"}, "NCCL timeout on node gpu-9"),
        ({"alertname": "Slow"}, "llama-7b is slow on node gpu-9"),
        ({"alertname": "Slow", "run_id": "llama-7b"}, "steps on dgx-12 are slow"),
    ],
)
def test_an_alert_of_a_service_or_another_host_means_no_process_here(labels: dict[str, str], title: str) -> None:
    resolution = found(Wanted(labels={**labels, "severity": "page"}, text=title))
    assert resolution.pid is None or "run_id" in labels


@pytest.mark.parametrize(
    ("title", "host"),
    [
        ("Xid 79 on node gpu-9", "gpu-9"),
        ("Xid 79 on dgx-12", "dgx-12"),
        ("节点 cn07 掉卡", "cn07"),
        ("Xid 79 on gpu3", None),  # a device
        ("llama-7b is slow on node gpu-7", None),  # this host
        ("model server qwen2-7b is slow", None),
        ("host memory at 95%", None),
    ],
)
def test_the_title_of_an_alert_may_name_a_host(title: str, host: str | None) -> None:
    terms = search_terms(Wanted(labels={"alertname": "Slow"}, text=title), ("gpu-7",))
    assert terms.elsewhere == host


def test_capitals_in_a_title_are_no_names() -> None:
    title = "GPUXidError: NCCL and XID on H100, llama-13b waits"
    assert search_terms(Wanted(text=title, labels={"alertname": "GPUXidError"}), ()).names == ("llama-13b",)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ({"slurm_job_id": "4242"}, "slurm job 4242"),
        ({"slurm_job_id": "4242", "rank": "3"}, "slurm job 4242 rank 3"),
        ({"container_id": f"containerd://{CONTAINER}", "pod": "x"}, f"container {CONTAINER}"),
        ({"pod_uid": UID}, UID),
        ({"pod": "train-0", "job_name": "llama-7b"}, None),
        ({"pid": "120"}, None),
    ],
)
def test_another_host_is_asked_by_exact_ids_only(labels: dict[str, str], words: str | None) -> None:
    assert words_for_host(Wanted(labels=labels)) == words


def test_quantities_in_a_title_are_no_names() -> None:
    title = "p95 of llama-13b is 3x the usual, 800ms, 40GiB, for the 2nd time in 10min"
    assert set(search_terms(Wanted(text=title, labels={"alertname": "Slow"}), ()).names) == {"p95", "llama-13b"}
