"""The kernel is asked whether it loads programs of ours, and nothing is left of the question."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from whystall.bpf import probe
from whystall.bpf.errors import BpfError

BARE = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all,+dac_read_search")
READS = ("--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search")
ASK = "from whystall.bpf import probe; r = probe.refusal(); print(r.code if r else 'loads')"


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(os.geteuid() != 0 or not Path("/sys/kernel/btf/vmlinux").exists(), reason="needs root and BPF")
def test_root_may_and_nothing_is_left() -> None:
    assert probe.refusal(timers=True) is None
    before = descriptors()
    assert probe.refusal(timers=True) is None
    assert descriptors() == before


def test_who_has_no_capability_may_not() -> None:
    bare = [*BARE, *READS] if os.geteuid() == 0 else []
    done = subprocess.run([*bare, sys.executable, "-c", ASK], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["no_privilege"]


def test_a_kernel_that_refuses_only_its_memory_is_locked_down(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []

    def load(code: object) -> int:
        lengths.append(len(code))  # type: ignore[arg-type]
        return errno.EINVAL if len(lengths) == 1 else 0

    monkeypatch.setattr(probe, "_try_load", load)
    monkeypatch.setattr(probe, "_check_memlock", lambda: None)
    refused = probe.refusal()
    assert refused is not None
    assert (refused.code, refused.remedy) == ("lockdown", "boot with lockdown=integrity")
    assert lengths == [7, 2]


@pytest.mark.parametrize(
    ("number", "code"), [(errno.EPERM, "no_privilege"), (errno.ENOSYS, "load_failed"), (errno.E2BIG, "load_failed")]
)
def test_what_a_refusal_means(number: int, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_try_load", lambda _code: number)
    refused = probe.refusal()
    assert refused is not None
    assert refused.code == code
    assert refused.remedy


@pytest.mark.parametrize(("limit", "code"), [(65536, "memlock"), (1 << 30, None), (None, None)])
def test_locked_memory_counts_where_it_is_too_little(
    limit: int | None, code: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "_try_load", lambda _code: 0)
    monkeypatch.setattr(probe, "short_of_memlock", lambda: limit)
    refused = probe.refusal()
    assert (refused.code if refused else None) == code


def test_without_libbpf_that_is_what_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise BpfError("no_libbpf", "libbpf 1.x cannot be used", "install it")

    monkeypatch.setattr(probe, "library", missing)
    refused = probe.refusal()
    assert refused is not None
    assert refused.code == "no_libbpf"
