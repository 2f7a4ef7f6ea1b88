"""The collector gpu_state, by a library in place of pynvml."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from nvml_stub import DRIVER_NOT_LOADED, GPU_IS_LOST, Library, NVMLError, gpu

from whystall.tools.collect import nvml_engine
from whystall.tools.collect.nvml import Nvml
from whystall.tools.recording.collector import Capture


def read(library: Library, answer_s: float = 5.0) -> Capture:
    reader = Nvml(library, 100_000_000, answer_s=answer_s)
    reader.start()
    return reader.read()


def test_the_state_of_a_gpu_is_read() -> None:
    library = Library(gpu())
    capture = read(library)
    (state,) = capture.tables["gpus"].to_dicts()
    assert (state["device"], state["model"]) == ("0000:3b:00.0", "NVIDIA H100 80GB HBM3")
    assert (state["clock_max_mhz"], state["pcie_width_max"], state["recovery"]) == (1980, 16, 0)
    reading = capture.tables["readings"].to_dicts()[0]
    assert (reading["busy_pct"], reading["power_mw"], reading["pcie_generation"]) == (97, 640_000, 5)
    assert sorted(set(capture.tables["links"]["link"].to_list())) == [0, 1, 2, 3]
    assert capture.tables["processes"].rows()[0][:2] == ("0000:3b:00.0", 1)
    assert capture.proven
    assert capture.not_seen == []
    assert library.shut


def test_a_sensor_that_a_gpu_lacks_is_unknown_and_no_failure() -> None:
    capture = read(Library({"busId": b"00000000:3B:00.0"}))
    (state,) = capture.tables["gpus"].to_dicts()
    assert {state["clock_max_mhz"], state["ecc_uncorrected"], state["remap_failed"], state["recovery"]} == {-1}
    assert capture.not_seen == []


@pytest.mark.parametrize(
    ("answer", "name"),
    [
        (NVMLError(GPU_IS_LOST), "GPU is lost"),
        (NVMLError(999), "Unknown Error"),
        (lambda *_: int("no number"), "ValueError"),
    ],
)
def test_an_error_midway_is_a_blind_spot(answer: Any, name: str) -> None:
    lost = gpu("00000000:5E:00.0", nvmlDeviceGetTemperature=answer)
    capture = read(Library(gpu(), lost))
    assert capture.tables["gpus"].height == 2
    failures = capture.tables["failures"].to_dicts()
    assert {(row["device"], row["call"], row["error"]) for row in failures} == {
        ("0000:5e:00.0", "nvmlDeviceGetTemperature", name)
    }
    assert [code for code, _ in capture.not_seen] == ["gpus_unread"]


def test_answers_of_a_wrong_kind_are_unknown() -> None:
    odd = gpu(
        nvmlDeviceGetRemappedRows=(1, 2),
        nvmlDeviceGetFieldValues=[],
        nvmlDeviceGetClockInfo="fast",
        nvmlDeviceGetPowerUsage=(1 << 64) - 1,
        nvmlDeviceGetMemoryInfo=SimpleNamespace(),
        nvmlDeviceGetComputeRunningProcesses=[SimpleNamespace(pid=7, usedGpuMemory=None)],
    )
    capture = read(Library(odd))
    (state,) = capture.tables["gpus"].to_dicts()
    assert (state["remap_failed"], state["recovery"], state["memory_bytes"]) == (-1, -1, -1)
    assert capture.tables["readings"]["clock_mhz"].to_list()[0] == -1
    assert capture.tables["processes"].rows() == [("0000:3b:00.0", 7, capture.tables["processes"]["comm"][0], -1)]


@pytest.mark.parametrize("library", [Library(refused=DRIVER_NOT_LOADED), Library()])
def test_no_gpu_is_stated(library: Library) -> None:
    capture = read(library)
    assert capture.tables["gpus"].is_empty()
    assert not capture.proven
    assert [code for code, _ in capture.not_seen] == ["no_gpus"]


def test_a_call_that_does_not_return_is_left_behind() -> None:
    release = threading.Event()

    def hang(*_: Any) -> int:
        release.wait(20)
        return 0

    reader = Nvml(Library(gpu(nvmlDeviceGetTemperature=hang)), 100_000_000, answer_s=0.1)
    reader.start()
    capture = reader.read()
    assert not capture.proven
    assert capture.not_seen == [("gpus_unread", "nvmlDeviceGetTemperature of 0000:3b:00.0 has not returned for 0 s")]
    release.set()
    reader.stop()


def test_the_engine_states_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = nvml_engine.NvmlEngine()
    monkeypatch.setattr(nvml_engine, "_DRIVER", ("/no/such/file",))
    assert engine.unavailable() == "no driver of NVIDIA is loaded on this host"
    monkeypatch.setattr(nvml_engine, "_DRIVER", ("/proc/self/stat",))
    monkeypatch.setattr(nvml_engine, "library", lambda: None)
    missing = engine.unavailable()
    assert missing is not None
    assert "pip install 'whystall[nvml]'" in missing
    monkeypatch.setattr(nvml_engine, "library", lambda: Library(gpu()))
    assert engine.unavailable() is None
