"""cluster_topology on files in the shapes that nvidia-smi, lstopo and whystall write."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nvml_stub import Library, gpu
from rank_files import write_rank
from topologies import lstopo, matrix, own, result

from whystall.agent_server.inputs.topology import open_topology
from whystall.agent_server.presentation.topology_pages import topology_pages
from whystall.tools.collect.topology import smi_matrix, sysfs, this_host
from whystall.tools.collect.topology.lstopo import mask_list, parse
from whystall.tools.collect.topology.nvml_links import NvmlLinks
from whystall.tools.collect.topology.rows import Rows
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.findings import Polarity
from whystall.tools.contract.registry import Judgement
from whystall.tools.host.cluster_topology.data import Data
from whystall.tools.host.cluster_topology.tool import Params, judge


def judged(folder: Path, **files: str) -> Judgement[Data]:
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text, encoding="utf-8")
    params = Params(files=[str(folder)], top=200)
    return judge(open_topology(params, None), params)


def far(found: Judgement[Data]) -> list[tuple[int, str]]:
    return [(row.rank, row.what) for row in found.data.affinity]


@pytest.mark.parametrize("form", [410, 470, 510, 535])
@pytest.mark.parametrize("tabs", [True, False])
def test_a_matrix_is_read_in_the_forms_of_several_drivers(form: int, tabs: bool) -> None:
    found = smi_matrix.parse("$ nvidia-smi topo -m\n" + matrix(form=form, tabs=tabs))
    assert found is not None
    assert found.odd == 0
    assert len(found.names) == 16
    assert found.relations["GPU0", "GPU7"] == "NV18"
    assert found.relations["GPU5", "mlx5_5"] == "PIX"
    assert found.relations["GPU0", "mlx5_7"] == "SYS"
    assert found.cpus["GPU4"] == "56-111,168-223"
    assert found.nodes.get("GPU4") == (1 if form >= 470 else None)


def test_a_damaged_line_of_a_matrix_is_left_out() -> None:
    found = smi_matrix.parse(matrix(2, 2).replace("GPU1\tNV18", "GPU1\tNV18\x1b[31m?"))
    assert found is not None
    assert found.odd == 1
    assert "GPU1" not in found.names


@pytest.mark.parametrize("version", [1, 2, 3])
def test_lstopo_states_nodes_numbers_and_bridges(version: int, tmp_path: Path) -> None:
    found = judged(tmp_path, lstopo__xml=lstopo(version))
    (host,) = found.data.hosts
    assert (host.host, host.gpus, host.nics, host.numa_nodes) == ("node9", 2, 2, 2)
    gpus = {row.device: row for row in found.data.devices if row.kind == "gpu"}
    assert (gpus["GPU1"].numa_node, gpus["GPU1"].nearest, gpus["GPU1"].relation) == (0, "mlx5_0", "PIX")
    assert gpus["GPU0"].cpus == "8-15,24-31"


def test_an_entity_in_xml_is_refused() -> None:
    bomb = '<!DOCTYPE topology [<!ENTITY a "aaaa">]><topology>&a;</topology>'
    with pytest.raises(ToolError, match="entity"):
        parse(bomb.encode())


@pytest.mark.parametrize("text", ["<topology>", "<html/>", "<topology>" + "<object>" * 300])
def test_xml_that_is_no_topology_is_one_error(text: str) -> None:
    with pytest.raises(ToolError):
        parse(text.encode())


def test_a_mask_is_a_list_of_cpus() -> None:
    assert mask_list("0x00ff00ff") == "0-7,16-23"
    assert mask_list("0x1,,0x3") == "0-1,64"
    assert mask_list("0xf...f") == ""


def test_a_gpu_by_address_alone_is_not_joined_to_a_number(tmp_path: Path) -> None:
    found = judged(tmp_path, node9__topo=matrix(2, 2), node9__xml=lstopo(nvml=False))
    assert found.data.hosts[0].gpus == 2
    assert "topology_unmatched" in [code for code, _ in found.not_seen]


def test_ranks_near_their_gpus_are_normal(tmp_path: Path) -> None:
    found = judged(tmp_path, topology__json=own(2))
    assert far(found) == []
    assert found.data.judged == {"cpu": 16, "memory": 16, "nic": 16}
    assert {one.polarity for one in found.findings} == {Polarity.NORMAL}


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"cpus": "56-111"}, ["cpu"]),
        ({"cpus": "0,56-111"}, []),
        ({"memory": "1"}, ["memory"]),
        ({"memory": "0-1"}, []),
        ({"nics": "mlx5_6 mlx5_7"}, ["nic"]),
        ({"nics": "mlx5_1 mlx5_7"}, []),
        # what is not known is not judged
        ({"cpus": ""}, []),
        ({"nics": "mlx5_99"}, []),
        ({"device": "", "cpus": "56-111", "memory": "1", "nics": "mlx5_7"}, []),
    ],
)
def test_a_rank_far_from_its_gpu_is_found(changed: dict[str, Any], what: list[str], tmp_path: Path) -> None:
    found = judged(tmp_path, topology__json=own(2, r1=changed))
    assert far(found) == [(1, one) for one in what]


def test_results_of_other_tools_mark_hosts_devices_and_ranks(tmp_path: Path) -> None:
    slow = result("slow_node_check", ("rank.compute_slow", {"rank": 9}, "major"))
    sick = result("gpu_health", ("gpu.xid", {"device": "GPU1"}, "critical"))
    found = judged(tmp_path, topology__json=own(2), slow_node_check__json=slow, node0__json=sick)
    marks = [(row.host, row.device, row.rank, row.kind) for row in found.data.marks]
    assert sorted(marks, key=str) == [("node0", "GPU1", None, "gpu.xid"), ("node1", "", 9, "rank.compute_slow")]


def test_what_is_stored_is_read_again(tmp_path: Path) -> None:
    first = judged(tmp_path, topology__json=own(2, r1={"cpus": "56-111"}))
    (stored,) = first.artifacts
    again = tmp_path / "again"
    again.mkdir()
    assert judged(again, topology__json=stored.text).data.model_dump() == first.data.model_dump()


@pytest.mark.parametrize(
    "text", ["", "\0\0", "{", "[]", '{"whystall_topology": 1, "tables": {"numa": [[1]]}}', "[" * 9999]
)
def test_a_file_of_something_else_is_an_error_or_a_blind_spot(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text(text)
    with pytest.raises(ToolError):
        open_topology(Params(files=[str(tmp_path / "x.txt")]), None)
    assert "topology_unread" in [
        spot.code
        for spot in open_topology(Params(files=[str(tmp_path)]), None).manifest.collectors["topology"].not_seen
    ]


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_thousand_gpus_stay_a_small_page(lang: Any, tmp_path: Path) -> None:
    found = judged(tmp_path, topology__json=own(128, r700={"cpus": "0-1"}), node0__json=json.dumps({"findings": []}))
    page, svg = topology_pages(found, lang)
    assert len(page.text) < 2_000_000
    assert page.text.count('class="gpu') >= 1024
    assert ("r700" if lang == "en" else "700号") in svg.text


def test_this_host_is_read_from_sysfs(tmp_path: Path) -> None:
    for bus, pci_class, node in (("0000:03:00.0", "0x030200", 0), ("0000:83:00.0", "0x020700", 1)):
        real = tmp_path / f"devices/pci0000:{bus[5]}0" / bus
        (real / "infiniband/mlx5_0").mkdir(parents=True)
        for name, text in (
            ("class", pci_class),
            ("vendor", "0x10de"),
            ("numa_node", str(node)),
            ("local_cpulist", "0-3"),
        ):
            (real / name).write_text(text)
        (tmp_path / "bus/pci/devices").mkdir(parents=True, exist_ok=True)
        (tmp_path / "bus/pci/devices" / bus).symlink_to(real)
    rows = Rows()
    assert sysfs.add(rows, "h", {"0000:03:00.0": (4, "GPU-1", "H100")}, tmp_path) == 2
    assert [row[2] for row in rows.devices] == ["GPU4", "mlx5_0"]
    assert rows.links == [("h", "GPU4", "mlx5_0", "SYS", False)]


def test_a_host_without_gpus_says_what_it_could_not_see(tmp_path: Path) -> None:
    rows = Rows()
    this_host.read(rows, "h", proc=tmp_path, sys=tmp_path)
    assert "no_gpus" in [code for code, _ in rows.not_seen]


def test_nvml_states_nvlinks_and_the_gpu_of_a_process(tmp_path: Path) -> None:
    buses = ("0000:3b:00.0", "0000:86:00.0")
    for bus in buses:
        of_bus = tmp_path / "sys/bus/pci/devices" / bus
        of_bus.mkdir(parents=True)
        for name, text in (("class", "0x030200"), ("vendor", "0x10de"), ("numa_node", "0"), ("local_cpulist", "0-3")):
            (of_bus / name).write_text(text)
    process = tmp_path / "proc/4711"
    process.mkdir(parents=True)
    (process / "environ").write_bytes(b"RANK=3\0WORLD_SIZE=8\0")
    (process / "status").write_text("Name:\tpython\nPPid:\t1\nCpus_allowed_list:\t0-1\nMems_allowed_list:\t0\n")
    gpus = [
        gpu(
            f"0000{bus}",
            nvmlDeviceGetNvLinkRemoteDeviceType=0,
            nvmlDeviceGetNvLinkRemotePciInfo=SimpleNamespace(busId=f"0000{other}".upper()),
            nvmlDeviceGetComputeRunningProcesses=[SimpleNamespace(pid=pid, usedGpuMemory=1)],
        )
        for bus, other, pid in ((buses[0], buses[1], 1), (buses[1], buses[0], 4711))
    ]
    rows = Rows()
    this_host.read(rows, "h", proc=tmp_path / "proc", sys=tmp_path / "sys", nvml=Library(*gpus))
    assert [row[2] for row in rows.devices] == ["GPU0", "GPU1"]
    assert ("h", "GPU0", "GPU1", "NV4", True) in rows.links
    assert rows.ranks == [("h", 3, 4711, "python", "GPU1", "0-1", "0", "")]


def test_nvlinks_to_switches_join_all_gpus_behind_them(tmp_path: Path) -> None:
    far_end = SimpleNamespace(busId="00000000:C1:00.0")
    switched = {"nvmlDeviceGetNvLinkRemoteDeviceType": 2, "nvmlDeviceGetNvLinkRemotePciInfo": far_end}
    found = NvmlLinks(Library(*(gpu(f"00000000:0{at}:00.0", **switched) for at in range(3))))
    found.start()
    found.read()
    assert [count for _, _, count in found.links()] == [4, 4, 4]


def test_traces_lay_ranks_groups_and_stages_over_the_hosts(tmp_path: Path) -> None:
    traces, hosts = tmp_path / "traces", tmp_path / "hosts"
    hosts.mkdir()
    for rank in range(4):
        path = write_rank(traces / f"rank{rank}.json", rank, world=4, host=f"node{rank // 2}")
        content = json.loads(path.read_text())
        stages = {"pg_name": "1", "pg_desc": "pipeline_parallel", "pg_size": 2, "ranks": [rank % 2, rank % 2 + 2]}
        content["distributedInfo"]["pg_config"].append(stages)
        path.write_text(json.dumps(content))
    for host in ("node0", "node1"):
        (hosts / f"{host}.topo.txt").write_text(matrix(2, 2))
    params = Params(files=[str(hosts)], traces=str(traces), top=200)
    found = judge(open_topology(params, None), params)
    placed = [(row.rank, row.host, row.device, row.placed, row.stage) for row in found.data.ranks]
    assert placed == [
        (0, "node0", "GPU0", "order", 0),
        (1, "node0", "GPU1", "order", 0),
        (2, "node1", "GPU0", "order", 1),
        (3, "node1", "GPU1", "order", 1),
    ]
    spans = sorted((row.name, row.ranks, row.hosts) for row in found.data.groups)
    assert spans == [("default_pg", "0-3", 2), ("pipeline_parallel", "0, 2", 2), ("pipeline_parallel", "1, 3", 2)]
    assert far(found) == []


def test_a_page_counts_one_host_in_the_singular(tmp_path: Path) -> None:
    found = judged(tmp_path, topology__json=own(1, r1={"cpus": "56-111", "memory": "1"}))
    page, svg = topology_pages(found, "en")
    for drawn in (page.text, svg.text):
        assert "1 host, 8 GPUs, 8 NICs, 8 ranks" in drawn
        assert "far from their GPU or NIC: 1" in drawn
        assert "A: rank far from its GPU or NIC." in drawn


# --- latency of requests ---------------------------------------------------------------------------------------------


def histogram(name: str, scale: float = 1.0, requests: int = 1000) -> str:
    """Metrics of a server; 60 % of requests take up to 0.5 s, 95 % up to 1 s (times `scale`)."""
    rows = [(0.3, 0.2), (0.5, 0.6), (1.0, 0.95), (2.5, 1.0)]
    lines = [f"# TYPE {name} histogram"]
    lines += [f'{name}_bucket{{le="{bound * scale}",model_name="m"}} {share * requests}' for bound, share in rows]
    return "\n".join([*lines, f'{name}_bucket{{le="+Inf",model_name="m"}} {requests}.0', f"{name}_count {requests}.0"])


@pytest.mark.parametrize(
    "name", ["vllm:e2e_request_latency_seconds", "tgi_request_duration", "sglang:e2e_request_latency_seconds"]
)
def test_a_node_whose_requests_take_longer_is_marked(tmp_path: Path, name: str) -> None:
    files = {f"node{at}__prom": histogram(name, 3.0 if at == 2 else 1.0 + at / 50) for at in range(4)}
    found = judged(tmp_path, topology__json=own(4), **files)
    (bad,) = [one for one in found.findings if one.kind == "topology.latency_high"]
    assert (bad.subject.host, bad.severity.value, bad.polarity.value) == ("node2", "major", "abnormal")
    assert bad.metrics["p90_ms"] == pytest.approx(3 * (500 + 500 * 0.30 / 0.35), rel=0.01)
    assert (found.data.latency[0].host, found.data.latency[0].high) == ("node2", True)
    assert "topology.latency_high" in next(row.marks for row in found.data.hosts if row.host == "node2")
    page, svg = topology_pages(found, "en")
    assert "T node2" in svg.text
    assert "Latency of requests" in page.text


def test_latencies_of_few_requests_or_two_nodes_are_not_compared(tmp_path: Path) -> None:
    name = "tgi_request_duration"
    few = {f"node{at}__prom": histogram(name, 1 + 4 * at, 99) for at in range(4)}
    two = {f"node{at}__prom": histogram(name, 1 + 4 * at) for at in range(2)}
    for at, files in enumerate((few, two)):
        (place := tmp_path / str(at)).mkdir()
        found = judged(place, topology__json=own(4), **files)
        assert [row.peers_ms for row in found.data.latency] == [None] * len(files)
        assert not [one for one in found.findings if one.kind == "topology.latency_high"]


def test_means_of_triton_and_stated_latencies_are_compared(tmp_path: Path) -> None:
    triton = {
        f"node{at}__prom": f'nv_inference_request_duration_us{{model="m"}} {(2 if at else 7) * 10**8}\n'
        'nv_inference_request_success{model="m"} 1000'
        for at in range(3)
    }
    stated = {
        f"node{at}__latency__json": json.dumps(
            {"latency_ms": {"p50": 20, "p90": 90 if at == 1 else 40, "requests": 500}}
        )
        for at in range(3)
    }
    found = judged(tmp_path, topology__json=own(3), **triton, **stated)
    high = [(row.host, row.source, row.p90_ms) for row in found.data.latency if row.high]
    assert sorted(high) == [("node0", "triton", 700.0), ("node1", "stated", 90.0)]


@pytest.mark.parametrize(
    "text",
    [
        'tgi_request_duration_bucket{le="x"} 3',
        'tgi_request_duration_bucket{le="1"} nan\ntgi_request_duration_bucket{le="+Inf"} 1e999',
        'tgi_request_duration_bucket{le="+Inf"} 5',
        "nv_inference_request_success 0",
        '{"latency_ms": {"p50": true, "p90": 1, "requests": 5}}',
        'tgi_request_duration_bucket{le="1' + '"' * 9000,
    ],
)
def test_odd_metrics_are_no_latency(tmp_path: Path, text: str) -> None:
    (tmp_path / "node1.prom").write_text(text)
    with pytest.raises(ToolError) as raised:
        open_topology(Params(files=[str(tmp_path / "node1.prom")]), None)
    assert raised.value.code is ErrorCode.BAD_TRACE


def test_a_rank_whose_device_another_tool_found_at_fault_is_named(tmp_path: Path) -> None:
    sick = result("gpu_health", ("gpu.pcie", {"device": "GPU3"}, "major"))
    found = judged(tmp_path, topology__json=own(2), node1__json=sick)
    (bad,) = [one for one in found.findings if one.kind == "topology.device_marked"]
    assert (bad.subject.rank, bad.subject.host, bad.attributes["found"]) == (11, "node1", "gpu.pcie")
