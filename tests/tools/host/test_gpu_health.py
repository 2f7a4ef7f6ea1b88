"""gpu_health: messages in their context, GPUs by NVML, counters of the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import polars as pl
import pytest
from nvml_stub import GPU_IS_LOST, Library, NVMLError, gpu

from whystall.tools.collect.engines import ENGINES
from whystall.tools.collect.log_file import recording_of_log
from whystall.tools.collect.nvml import Nvml
from whystall.tools.collect.tables import COLLECTORS
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.findings import Finding, Polarity, Severity
from whystall.tools.contract.registry import Judgement
from whystall.tools.contract.result import Status
from whystall.tools.host.gpu_health.data import Data
from whystall.tools.host.gpu_health.tool import TOOL, Params, judge
from whystall.tools.recording.judging import judge as judged
from whystall.tools.recording.manifest import CollectorManifest, Manifest
from whystall.tools.recording.redact import redact
from whystall.tools.recording.store import Recording
from whystall.tools.recording.target import Target
from whystall.tools.recording.window import observe

A, B = "PCI:0000:3b:00", "PCI:0000:5e:00"
Told = dict[str, tuple[Severity, dict[str, str]]]


def of_log(tmp_path: Path, *lines: str) -> Recording:
    path = tmp_path / "dmesg.txt"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return recording_of_log(path)


def told(recording: Recording) -> Told:
    """Return severity and attributes of each message, by its code and the bus of its GPU."""
    found = judge(recording, Params(kernel_log="x")).findings
    buses = [(one.subject.device or "")[5:7] for one in found]
    return {
        f"{one.attributes['xid']}@{bus}": (one.severity, one.attributes) for one, bus in zip(found, buses, strict=True)
    }


def recorded(collector: str, tables: Mapping[str, pl.DataFrame | list[dict[str, Any]]]) -> Recording:
    """Return a recording of 10 s with the tables of one collector."""
    made = {
        f"{collector}.{name}": found
        if isinstance(found := tables.get(name, []), pl.DataFrame)
        else pl.DataFrame(found, schema)
        for name, schema in COLLECTORS[collector].items()
    }
    manifest = Manifest(
        id="r1",
        host="node7",
        kernel="6.18.0",
        machine="x86_64",
        cpus=2,
        target=Target(everything=True),
        started="2025-01-01T00:00:00Z",
        start_ns=1,
        window_ns=10**10,
        requested_ns=10**10,
        collectors={collector: CollectorManifest(engine="procfs", proven=True)},
    )
    return Recording.in_memory(manifest, made)


# --- messages -------------------------------------------------------------------------------------------------


def test_a_lost_gpu_is_critical_with_the_vendors_actions(tmp_path: Path) -> None:
    uuid = "GPU-2a3c9c1e-1111-2222-3333-444455556666"
    recording = of_log(
        tmp_path,
        f"[  10.000000] NVRM: GPU at {A}: {uuid}",
        f"[ 100.000000] NVRM: Xid ({A}): 79, pid=812, name=python3, GPU has fallen off the bus.",
        "[ 400.000000] eth0: up",
    )
    (found,) = judge(recording, Params(kernel_log="x")).findings
    assert (found.kind, found.severity, found.subject.device) == ("gpu.xid", Severity.CRITICAL, "0000:3b:00.0")
    assert found.metrics == {"count": 1, "age_s": 300, "line": 2}
    assert found.attributes == {
        "xid": "79",
        "meaning": "off_bus",
        "area": "bus",
        "action": "restart_bm",
        "further": "contact_support",
        "process": "python3 (812)",
        "uuid": uuid,
        "log": "dmesg.txt",
    }
    (row,) = judge(recording, Params(kernel_log="x")).data.messages
    assert (row.mnemonic, row.pids, row.last_s) == ("ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS", [812], 300)


@pytest.mark.parametrize(
    ("cause", "cleanup", "root"),
    [
        # named by the message itself
        ("", f"[5.000000] NVRM: Xid ({A}): 45, pid=9, name=p, Ch 1 caused by previous Xid 145", "Xid 145"),
        # of the same GPU, shortly before
        (f"[4.000000] NVRM: Xid ({A}): 94, x", f"[5.000000] NVRM: Xid ({A}): 45, pid=9, name=p, Ch 1", "Xid 94"),
        # of another GPU of the job
        (
            f"[4.000000] NVRM: Xid ({B}): 94, x",
            f"[5.000000] NVRM: Xid ({A}): 45, pid=9, name=p, Ch 1",
            "Xid 94 (0000:5e:00.0)",
        ),
        # without instants the order counts
        (f"NVRM: Xid ({A}): 94, x", f"NVRM: Xid ({A}): 45, pid=9, name=p, Ch 1", "Xid 94"),
    ],
)
def test_xid_45_follows_another_error(tmp_path: Path, cause: str, cleanup: str, root: str) -> None:
    severity, attributes = told(of_log(tmp_path, cause, cleanup))["45@3b"]
    assert (severity, attributes["root"], attributes["action"]) == (Severity.INFO, root, "follow_other")


@pytest.mark.parametrize("cause", ["", f"[4.000000] NVRM: Xid ({A}): 94, x", f"[900.000000] NVRM: Xid ({A}): 94, x"])
def test_xid_45_alone_asks_for_the_fabric_manager(tmp_path: Path, cause: str) -> None:
    severity, attributes = told(of_log(tmp_path, cause, f"[500.000000] NVRM: Xid ({A}): 45, pid=9, name=p, Ch 1"))[
        "45@3b"
    ]
    assert (severity, attributes["action"]) == (Severity.MINOR, "restart_fm")
    assert "root" not in attributes


def test_xid_154_states_what_another_error_needs(tmp_path: Path) -> None:
    change = "GPU recovery action changed from 0x0 (None) to"
    recording = of_log(
        tmp_path,
        f"[4.000000] NVRM: Xid ({A}): 145, RLW_REMAP Nonfatal XC0 i0 Link 03 (0x00000004 0x00000001)",
        f"[4.100000] NVRM: Xid ({A}): 154, {change} 0x1 (GPU Reset Required)",
        f"[4.200000] NVRM: Xid ({B}): 94, pid=7, name=p, Contained",
        f"[4.300000] NVRM: Xid ({B}): 154, {change} 0x2 (Node Reboot Required)",
    )
    found = told(recording)
    assert found.keys() == {"145.0@3b", "94@5e"}  # 154 is no error of its own
    severity, attributes = found["145.0@3b"]
    assert (severity, attributes["action"], attributes["recovery"]) == (Severity.MAJOR, "reset_gpu", "gpu_reset")
    severity, attributes = found["94@5e"]  # more than the catalogue asks for
    assert (severity, attributes["action"], attributes["recovery"]) == (Severity.CRITICAL, "restart_app", "node_reboot")


def test_xid_154_alone_is_reported_and_the_last_one_counts(tmp_path: Path) -> None:
    lines = [
        f"[4.000000] NVRM: Xid ({A}): 154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)",
        f"[9.000000] NVRM: Xid ({A}): 154, GPU recovery action changed from 0x4 (Drain and Reset) to 0x0 (None)",
    ]
    severity, attributes = told(of_log(tmp_path, lines[0]))["154@3b"]
    assert (severity, attributes["recovery"]) == (Severity.MAJOR, "drain_and_reset")
    severity, attributes = told(of_log(tmp_path, *lines))["154@3b"]
    assert (severity, attributes["recovery"], attributes["action"]) == (Severity.INFO, "none", "ignore")


@pytest.mark.parametrize(
    ("message", "severity", "action"),
    [
        ("Xid ({}): 63, Row Remapper - New row marked for remapping", Severity.MINOR, "ignore"),
        ("Xid ({}): 13, pid=1, name=p, Graphics Exception", Severity.MINOR, "restart_app"),
        ("Xid ({}): 119, pid=1, name=p, Timeout", Severity.MAJOR, "reset_gpu"),
        ("Xid ({}): 167, x", Severity.MINOR, None),  # without an action in the catalogue
        ("Xid ({}): 171, x", Severity.MINOR, None),
        ("Xid ({}): 150, MSE_WATCHDOG Fatal (0x0 0x0)", Severity.MAJOR, "reset_gpu"),
        ("Xid ({}): 144, SAW_MVB Nonfatal Link 00 (0x1 0x20)", Severity.MINOR, "ignore"),
        ("Xid ({}): 1, x", Severity.MINOR, "contact_support"),
        ("Xid ({}): 999, x", Severity.MINOR, None),
    ],
)
def test_severity_follows_the_action(tmp_path: Path, message: str, severity: Severity, action: str | None) -> None:
    (found,) = told(of_log(tmp_path, f"NVRM: {message.format(A)}")).values()
    assert (found[0], found[1].get("action")) == (severity, action)


def test_an_unknown_code_shows_its_message(tmp_path: Path) -> None:
    (found,) = told(of_log(tmp_path, f"NVRM: Xid ({A}): 999, something new")).values()
    assert (found[1]["meaning"], found[1]["message"]) == ("unknown", "something new")


def test_links_of_one_code_are_one_message(tmp_path: Path) -> None:
    unit = "149, NETIR_LINK_EVT Fatal XC0 i0 Link"
    lines = [f"[{n}.000000] NVRM: Xid ({A}): {unit} {n:02} (0x021425c6 0x00000000)" for n in (3, 1, 2)]
    (found,) = judge(of_log(tmp_path, *lines), Params(kernel_log="x")).findings
    assert (found.attributes["links"], found.metrics["count"]) == ("1, 2, 3", 3)


def test_switches_are_graded_by_the_guide_and_unknown_codes_by_their_words(tmp_path: Path) -> None:
    switch = "nvidia-nvswitch3: SXid (PCI:0000:05:00.0):"
    recording = of_log(
        tmp_path,
        f"{switch} 12021, Non-fatal, Link 32 egress ECC limit",
        f"{switch} 20034, Fatal, Link 30 LTSSM Fault Up",
        f"{switch} 29998, Non-fatal, Link 2 something new",
    )
    verdict = judge(recording, Params(kernel_log="x"))
    told = [(one.attributes["xid"], one.severity, one.attributes["meaning"]) for one in verdict.findings]
    assert told == [
        ("20034", Severity.MAJOR, "switch_link_down"),
        ("12021", Severity.MINOR, "switch_corrected"),
        ("29998", Severity.MINOR, "switch"),
    ]
    assert ("switch_codes", "29998") in verdict.not_seen


def test_a_log_without_messages_is_no_proof_of_health(tmp_path: Path) -> None:
    result = judged(TOOL, of_log(tmp_path, "[1.000000] eth0: up"), Params(kernel_log="x"))
    assert result.findings == []
    assert "no_driver_messages" in {spot.code for spot in result.coverage.not_seen}
    loaded = of_log(tmp_path, "[1.000000] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.86")
    result = judged(TOOL, loaded, Params(kernel_log="x"))
    assert "no_driver_messages" not in {spot.code for spot in result.coverage.not_seen}


def test_a_recording_can_be_judged_again_and_redacted(tmp_path: Path) -> None:
    recording = of_log(tmp_path, f"3,1,1,-;NVRM: Xid ({A}): 94, pid=812, name=train, secret words")
    recording.save(tmp_path / "kept")
    again = Recording.open(tmp_path / "kept", COLLECTORS)
    assert judge(again, Params()).findings == judge(recording, Params()).findings
    hidden = redact(again)
    (row,) = judge(hidden, Params()).data.messages
    assert (row.what, row.action, row.pids, row.text) == ("Xid 94", "restart_app", [812], "")
    assert "train" not in row.process
    assert row.gpu != "0000:3b:00.0"


def test_what_a_recording_lacks_is_stated_or_refused() -> None:
    partly = judge(recorded("hardware", {}), Params())
    assert {detail for code, detail in partly.not_seen if code == "less_told"} == {"device_log", "gpu_state"}
    with pytest.raises(ToolError) as error:
        judge(recorded("calibration", {}), Params())
    assert error.value.code is ErrorCode.MISSING_COLLECTOR


# --- GPUs ------------------------------------------------------------------------------------------------------------


def of_gpus(*gpus: dict[str, Any]) -> Judgement[Data]:
    reader = Nvml(Library(*gpus), 100_000_000)
    reader.start()
    return judge(recorded("gpu_state", reader.read().tables), Params())


def found_of(*gpus: dict[str, Any]) -> list[Finding]:
    return [one for one in of_gpus(*gpus).findings if one.polarity is Polarity.ABNORMAL]


def test_a_healthy_gpu_is_measured_as_such() -> None:
    verdict = of_gpus(gpu())
    assert {(one.kind, one.polarity) for one in verdict.findings} == {
        ("gpu.throttled", Polarity.NORMAL),
        ("gpu.memory", Polarity.NORMAL),
    }
    (row,) = verdict.data.gpus
    assert (row.clock_mhz, row.power_w, row.pcie, row.pcie_max) == (1950, 640, "5x16", "5x16")
    assert [process.pid for process in verdict.data.processes] == [1]


def test_an_idle_gpu_with_low_clocks_is_no_fault() -> None:
    idle = gpu(
        nvmlDeviceGetUtilizationRates=SimpleNamespace(gpu=0, memory=0),
        nvmlDeviceGetClockInfo=345,
        nvmlDeviceGetCurrentClocksEventReasons=0x1,
        nvmlDeviceGetCurrPcieLinkGeneration=1,
    )
    assert found_of(idle) == []
    # nor is it measured to be fast
    assert [one.kind for one in of_gpus(idle).findings] == ["gpu.memory"]


@pytest.mark.parametrize(
    ("reasons", "clock", "throttle", "severity"),
    [
        (0x40 | 0x8, 900, "hw_thermal", Severity.MAJOR),
        (0x20, 1900, "sw_thermal", Severity.MINOR),
        (0x80 | 0x8, 300, "power_brake", Severity.MAJOR),
        (0x8, 900, "hw_slowdown", Severity.MAJOR),
        (0x2, 900, "application_clocks", Severity.MINOR),
        (0x4, 900, "power_cap", Severity.MINOR),
        (0x4, 1900, None, None),  # at its power limit, as it should be
    ],
)
def test_reasons_of_a_low_clock(reasons: int, clock: int, throttle: str | None, severity: Severity | None) -> None:
    slow = gpu(nvmlDeviceGetCurrentClocksEventReasons=reasons, nvmlDeviceGetClockInfo=clock)
    found = [(one.attributes["throttle"], one.severity) for one in found_of(slow) if one.kind == "gpu.throttled"]
    assert found == ([(throttle, severity)] if throttle else [])


@pytest.mark.parametrize(
    ("changed", "kind", "severity", "attributes"),
    [
        (
            {"nvmlDeviceGetRemappedRows": (0, 3, 1, 0)},
            *("gpu.memory", Severity.MINOR, {"condition": "remap_pending", "action": "reset_gpu"}),
        ),
        (
            {"nvmlDeviceGetRemappedRows": (0, 3, 0, 1)},
            *("gpu.memory", Severity.MAJOR, {"condition": "remap_failed", "action": "contact_support"}),
        ),
        (
            {"nvmlDeviceGetTotalEccErrors": lambda kind, span: 2 if kind == 1 else 900},
            *("gpu.memory", Severity.MAJOR, {"condition": "uncorrected", "action": "reset_gpu"}),
        ),
        ({"nvmlDeviceGetCurrPcieLinkWidth": 8}, "gpu.pcie", Severity.MAJOR, {"action": "reseat"}),
        ({"nvmlDeviceGetCurrPcieLinkGeneration": 4}, "gpu.pcie", Severity.MINOR, {"action": "reseat"}),
        (
            {"nvmlDeviceGetNvLinkState": lambda link: int(link in (0, 1, 3))},
            *("gpu.nvlink", Severity.MAJOR, {"links": "2", "action": "workflow_nvlink_err"}),
        ),
        (
            {"nvmlDeviceGetFieldValues": [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=2))]},
            *("gpu.recovery", Severity.CRITICAL, {"recovery": "node_reboot", "action": "restart_bm"}),
        ),
        (
            {"nvmlDeviceGetTemperature": NVMLError(GPU_IS_LOST)},
            *("gpu.lost", Severity.CRITICAL, {"error": "GPU is lost", "action": "restart_bm"}),
        ),
    ],
)
def test_faults_of_a_gpu(changed: dict[str, Any], kind: str, severity: Severity, attributes: dict[str, str]) -> None:
    (found,) = found_of(gpu(), gpu("00000000:5E:00.0", **changed))
    assert (found.kind, found.severity, found.attributes) == (kind, severity, attributes)
    assert found.subject.device == "0000:5e:00.0"


def test_a_gpu_without_nvlink_has_no_broken_links() -> None:
    assert found_of(gpu(nvmlDeviceGetNvLinkState=lambda link: 0)) == []


def test_links_that_a_model_leaves_unused_are_no_fault() -> None:
    unused = {"nvmlDeviceGetNvLinkState": lambda link: int(link not in (1, 2))}
    assert found_of(gpu(**unused), gpu("00000000:5E:00.0", **unused)) == []
    worse = gpu("00000000:5E:00.0", nvmlDeviceGetNvLinkState=lambda link: int(link not in (1, 2, 3)))
    (found,) = found_of(gpu(**unused), worse)
    assert (found.attributes["links"], found.metrics["links_down"]) == ("3", 1)


def test_an_idle_gpu_that_lowers_its_link_has_no_fault() -> None:
    idle = SimpleNamespace(gpu=0, memory=0)
    low = {"nvmlDeviceGetCurrPcieLinkWidth": 8, "nvmlDeviceGetCurrPcieLinkGeneration": 1}
    assert found_of(gpu(nvmlDeviceGetUtilizationRates=idle, **low)) == []


# --- counters -------------------------------------------------------------------------------------------------

Counter = tuple[str, str, int, str, int, int]


def of_counters(counters: Sequence[Counter], ports: Sequence[tuple[Any, ...]] = ()) -> Judgement[Data]:
    """Judge counters (kind, device, port, name, before, after) of a window of 10 s."""
    rows = [
        {"at_ns": at, "kind": kind, "device": device, "port": port, "name": name, "value": value}
        for kind, device, port, name, *values in counters
        for at, value in zip((0, 10**10), values, strict=True)
    ]
    columns = ("kind", "device", "port", "state", "rate_mbps", "link")
    found = [dict(zip(columns, port, strict=True)) for port in ports]
    return judge(recorded("hardware", {"counters": rows, "ports": found}), Params())


@pytest.mark.parametrize(
    ("counter", "kind", "severity"),
    [
        (("memory", "mc0", -1, "ce_count", 4, 9), "host.memory", Severity.MINOR),
        (("memory", "mc0", -1, "ce_count", 9, 9), None, None),  # corrected long ago
        (("memory", "mc0", -1, "ue_count", 1, 1), "host.memory", Severity.MAJOR),
        (("memory", "mc0", -1, "ue_count", 0, 1), "host.memory", Severity.CRITICAL),
        (("machine_check", "cpu1", -1, "exceptions", 2, 2), "host.machine_check", Severity.MINOR),
        (("machine_check", "cpu1", -1, "exceptions", 2, 3), "host.machine_check", Severity.MAJOR),
        (("thermal", "cpu0", -1, "core_throttle_count", 5, 5), None, None),
        (("thermal", "cpu0", -1, "core_throttle_count", 5, 7), "host.thermal", Severity.MINOR),
        (("rdma", "mlx5_0", 1, "symbol_error", 5, 700), "port.errors", Severity.MINOR),
        (("rdma", "mlx5_0", 1, "symbol_error", 700, 700), None, None),
        (("rdma", "mlx5_0", 1, "link_downed", 1, 2), "port.errors", Severity.MAJOR),
        (("rdma", "mlx5_0", 1, "port_xmit_data", 1, 9_000_000), None, None),
        (("ethernet", "eth0", -1, "rx_crc_errors", (1 << 32) - 2, 3), "port.errors", Severity.MINOR),
        (("ethernet", "eth0", -1, "rx_prio3_pause", 0, 5000), "port.pauses", Severity.MINOR),
        (("ethernet", "eth0", -1, "rx_prio3_pause", 0, 5), None, None),
        (("ethernet", "eth0", -1, "rx_prio3_pause_duration", 0, 5_000_000), "port.pauses", Severity.CRITICAL),
    ],
)
def test_counters_that_rise_are_faults(counter: Counter, kind: str | None, severity: Severity | None) -> None:
    assert [(one.kind, one.severity) for one in of_counters([counter]).findings] == ([(kind, severity)] if kind else [])


def test_modules_and_times_are_named() -> None:
    memory = [("memory", "mc0", -1, "ue_count", 0, 1), ("memory", "mc0", 2, "dimm_ue_count", 0, 1)]
    slowed = ("thermal", "cpu0", -1, "core_throttle_total_time_ms", 0, 5000)
    hot = [("thermal", "cpu0", -1, "core_throttle_count", 0, 1), slowed]
    found = {one.kind: one for one in of_counters([*memory, *hot]).findings}
    assert found["host.memory"].attributes["counters"] == "dimm2"
    assert found["host.thermal"].metrics["throttled_pct"] == pytest.approx(50)
    assert found["host.thermal"].severity is Severity.CRITICAL


def test_a_port_is_compared_with_the_others_of_its_host() -> None:
    ports = [("rdma", f"mlx5_{n}", 1, "active", 400_000, "infiniband") for n in range(6)]
    slow = [("rdma", "mlx5_6", 1, "active", 200_000, "infiniband"), ("rdma", "mlx5_7", 1, "down", 10_000, "infiniband")]
    other = [("rdma", "mlx5_8", 1, "active", 25_000, "ethernet")]
    found = of_counters([], [*ports, *slow, *other]).findings
    conditions = {one.subject.device: one.attributes["condition"] for one in found}
    assert conditions == {"mlx5_6/1": "slow", "mlx5_7/1": "down"}
    assert of_counters([], [*ports[:2], *slow]).findings == []  # too few alike


def test_the_whole_host_is_observed_without_an_error() -> None:
    recording = anyio.run(lambda: observe(TOOL.needs(Params()), Target(everything=True), 0.1, ENGINES))
    result = judged(TOOL, recording, Params())
    assert result.status in (Status.PARTIAL, Status.OK)
    assert isinstance(recording.table("hardware.counters"), pl.DataFrame)
