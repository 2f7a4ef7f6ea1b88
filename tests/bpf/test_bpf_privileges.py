"""What a process may do is read from the kernel's account, not guessed from who it is."""

from __future__ import annotations

import errno
import resource
from pathlib import Path

import pytest

from whystall.bpf import libbpf, privileges
from whystall.bpf.privileges import NEEDED, held, short_of_memlock


@pytest.mark.parametrize(
    ("mask", "names"),
    [
        ("0000000000000000", set()),
        ("000000c400080004", set(NEEDED)),
        ("0000000000200000", {"CAP_SYS_ADMIN"}),
        ("0000000000000001", set()),  # CAP_CHOWN: nothing here asks about it
    ],
)
def test_the_effective_set_counts(tmp_path: Path, mask: str, names: set[str]) -> None:
    status = tmp_path / "status"
    status.write_text(f"Name:\tpython3\nCapPrm:\t000001ffffffffff\nCapEff:\t{mask}\nCapBnd:\t000001ffffffffff\n")
    assert held(status) == names


def test_without_proc_nothing_is_claimed(tmp_path: Path) -> None:
    assert held(tmp_path / "status") == frozenset()
    (tmp_path / "status").write_text("Name:\tpython3\n")
    assert held(tmp_path / "status") == frozenset()


@pytest.mark.parametrize(
    ("release", "soft", "capabilities", "expected"),
    [
        ("5.10.0-32-amd64", 65536, NEEDED, 65536),
        ("5.8.0", 0, NEEDED, 0),
        ("5.10.0-32-amd64", resource.RLIM_INFINITY, NEEDED, None),
        ("5.10.0-32-amd64", 65536, {"CAP_SYS_RESOURCE"}, None),
        ("5.11.0", 65536, NEEDED, None),
        ("6.12.95+deb12-amd64", 65536, (), None),
    ],
)
def test_bpf_memory_is_locked_memory_before_5_11(
    monkeypatch: pytest.MonkeyPatch, release: str, soft: int, capabilities: set[str], expected: int | None
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, resource.RLIM_INFINITY))
    monkeypatch.setattr(privileges, "held", lambda: frozenset(capabilities))
    assert short_of_memlock(release) == expected


def test_who_has_the_capabilities_is_not_told_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libbpf, "held", lambda: frozenset(NEEDED))
    monkeypatch.setattr(libbpf, "short_of_memlock", lambda: 8 << 20)
    assert "8192 KiB" in libbpf._privilege_remedy()
    monkeypatch.setattr(libbpf, "held", lambda: frozenset({"CAP_BPF"}))
    assert "CAP_PERFMON" in libbpf._privilege_remedy()
    monkeypatch.setattr(libbpf, "held", lambda: frozenset(NEEDED))
    monkeypatch.setattr(libbpf, "short_of_memlock", lambda: None)
    assert "seccomp" in libbpf._privilege_remedy()
    assert "CAP_" not in libbpf._privilege_remedy()


@pytest.mark.parametrize(("number", "remedy"), [(errno.EMFILE, "ulimit -n"), (errno.E2BIG, "report"), (0, "report")])
def test_a_limit_of_ours_is_no_fault_of_the_program(number: int, remedy: str) -> None:
    assert remedy in libbpf._failed("load_failed", "the kernel refused it", number, "report the log").remedy
