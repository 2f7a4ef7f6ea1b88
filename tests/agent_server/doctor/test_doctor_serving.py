"""Which engine serves what: as the Window gives collectors away."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from whystall.agent_server.doctor import serving as module
from whystall.agent_server.doctor.serving import serving
from whystall.bpf.errors import BpfError
from whystall.tools.collect.engines import ENGINES
from whystall.tools.collect.procfs_engine import ProcfsEngine
from whystall.tools.recording.collector import Engine

EVERYTHING = frozenset({"syscalls", "switches", "block", "samples", "page_cache", "interrupts", "run_queue", "ftrace"})


def engine(
    name: str, serves: frozenset[str], why: str | None = None, cannot: dict[str, str] | None = None
) -> Callable[[], Engine]:
    """The class of an engine that says this of itself."""

    class Said(ProcfsEngine):
        def unavailable(self) -> str | None:
            return why

        def cannot(self, collector: str) -> str | None:
            return (cannot or {}).get(collector)

    Said.name, Said.serves = name, serves
    return Said


@pytest.fixture(autouse=True)
def _bpf_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_bpf", lambda _timers: None)


def test_the_first_that_can_serves() -> None:
    found = serving([engine("ebpf", EVERYTHING), ProcfsEngine])
    assert found.order == found.engines == ["ebpf", "procfs"]
    assert found.refused == {}
    assert {found.tools[name] for name in ("fileslower", "cpu_profile", "page_cache", "runqlat")} == {"ebpf"}
    assert found.tools["host_snapshot"] == "procfs"
    assert found.tools["compare_runs"] == "traces"
    assert not any(found.why.values())


def test_an_engine_that_cannot_run_is_named_with_why_and_the_next_takes_over() -> None:
    bcc = engine("bcc", frozenset({"syscalls", "page_cache"}), None, {"page_cache": "cachestat is missing"})
    found = serving([engine("ebpf", EVERYTHING, "no BTF"), bcc, ProcfsEngine])
    assert found.engines == ["bcc", "procfs"]
    assert found.refused == {"ebpf": "no BTF"}
    assert (found.tools["fileslower"], found.why["fileslower"]) == ("bcc", {"ebpf": "no BTF"})
    assert (found.tools["biolatency"], found.why["biolatency"]) == ("procfs", {"ebpf": "no BTF"})
    assert found.tools["page_cache"] == "none"
    assert found.why["page_cache"] == {"ebpf": "no BTF", "bcc": "cachestat is missing"}
    assert (found.tools["cpu_profile"], found.why["cpu_profile"]) == ("procfs", {"ebpf": "no BTF"})


def test_without_timers_only_what_samples_is_left_to_the_next_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = BpfError("no_privilege", "cannot open a sampling timer", "")
    monkeypatch.setattr(module, "_bpf", lambda timers: refused if timers else None)
    found = serving([engine("ebpf", EVERYTHING), ProcfsEngine])
    assert found.engines == ["ebpf", "procfs"]
    assert found.tools["fileslower"] == "ebpf"
    assert found.collectors["samples"] == found.tools["cpu_profile"] == "procfs"
    assert found.why["cpu_profile"] == {"ebpf": "cannot open a sampling timer"}


def test_a_kernel_that_loads_no_program_leaves_the_ebpf_engine_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_bpf", lambda _timers: BpfError("no_privilege", "not permitted", ""))
    found = serving([engine("ebpf", EVERYTHING), ProcfsEngine])
    assert (found.engines, found.refused) == (["procfs"], {"ebpf": "not permitted"})


def test_a_fix_that_an_engine_names_is_left_to_its_check() -> None:
    found = serving([engine("bcc", EVERYTHING, "no headers (fix: install them)"), ProcfsEngine])
    assert found.refused == {"bcc": "no headers"}


def test_every_engine_there_is_is_asked() -> None:
    found = serving()
    assert found.order == list(dict.fromkeys(make().name for make in ENGINES))
    assert set(found.engines) | set(found.refused) == set(found.order)
    assert not set(found.engines) & set(found.refused)
    assert {*found.tools.values(), *found.collectors.values()} <= {*found.engines, "none", "traces"}
