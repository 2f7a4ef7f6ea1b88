"""Capabilities one by one, and the command that grants what is missing, for every kind of place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from whystall.agent_server.doctor import rights
from whystall.agent_server.doctor.report_model import State
from whystall.agent_server.doctor.rights import capabilities, privilege, ptrace, symbols
from whystall.agent_server.doctor.view import View
from whystall.bpf.errors import BpfError
from whystall.bpf.privileges import NEEDED

MakeHost = Callable[..., View]
BITS = {"CAP_BPF": 39, "CAP_PERFMON": 38, "CAP_SYS_PTRACE": 19, "CAP_DAC_READ_SEARCH": 2, "CAP_SYSLOG": 34}
ALL = sum(1 << bit for bit in BITS.values())
SYS_ADMIN = 1 << 21
REFUSED = BpfError("no_privilege", "the kernel loads no BPF program of ours: Operation not permitted", "run as root")


def status(effective: int, more: str = "") -> dict[str, str]:
    text = f"Name:\tpython\nCapEff:\t{effective:016x}\n{more}"
    return {"/proc/self/status": text, "/proc/thread-self/status": text}


@pytest.fixture(autouse=True)
def _kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever runs here."""
    monkeypatch.setattr("platform.release", lambda: "6.1.0-50-amd64")


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that lets us load nothing."""
    monkeypatch.setattr(rights.probe, "refusal", lambda: REFUSED)


def test_the_numbers_here_are_those_of_what_is_needed() -> None:
    assert BITS.keys() == NEEDED.keys()


@pytest.mark.parametrize("lacking", BITS)
def test_each_missing_one_is_named_with_what_is_lost(lacking: str, host: MakeHost) -> None:
    check = capabilities(host(status(ALL & ~(1 << BITS[lacking])), uid=1000))
    assert check.state is State.LIMITED
    assert check.found.endswith(f"lacks {lacking}")
    assert check.means.startswith(f"without {lacking} ")
    assert all(f"+{name.removeprefix('CAP_').lower()}" in check.fix for name in NEEDED)


def test_all_of_them(host: MakeHost) -> None:
    check = capabilities(host(status(ALL), uid=1000))
    assert (check.state, check.found) == (State.OK, ", ".join(NEEDED))


def test_what_sys_admin_stands_for(host: MakeHost) -> None:
    check = capabilities(host(status(SYS_ADMIN), uid=1000))
    assert "lacks CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH, CAP_SYSLOG" in check.found


@pytest.mark.parametrize(
    ("files", "own", "uid", "fix"),
    [
        ({}, (), 1000, 'sudo env HOME="$HOME" setpriv --reuid=1000 '),
        ({}, (), 0, "start it with AmbientCapabilities=CAP_BPF CAP_PERFMON"),
        ({"/.dockerenv": ""}, ("pid",), 0, "docker run --pid=host --cap-add=BPF --cap-add=PERFMON"),
        ({"/run/.containerenv": ""}, ("pid",), 0, "sudo podman run --pid=host --cap-add=BPF"),
        (
            {"/proc/self/environ": "KUBERNETES_SERVICE_HOST=10.0.0.1\0"},
            ("pid",),
            0,
            "kubectl apply -f deploy/daemonset.yaml (or in this container's spec: securityContext.capabilities.add: "
            "[BPF, PERFMON, SYS_PTRACE, DAC_READ_SEARCH, SYSLOG])",
        ),
        ({"/proc/self/environ": "container=systemd-nspawn\0"}, ("pid",), 0, "start the container with these"),
    ],
)
def test_the_command_is_that_of_the_place(
    files: dict[str, str], own: tuple[str, ...], uid: int, fix: str, host: MakeHost
) -> None:
    assert capabilities(host({**status(0), **files}, own=own, uid=uid)).fix.startswith(fix)


def test_capabilities_within_a_user_namespace_do_not_count(host: MakeHost) -> None:
    check = capabilities(host(status(ALL), own=("user",)))
    assert check.state is State.LIMITED
    assert "only within this user namespace" in check.found
    assert check.fix.startswith("leave this user namespace")


@pytest.mark.usefixtures("refused")
@pytest.mark.parametrize(
    ("effective", "more", "own", "uid", "found", "fix"),
    [
        (0, "", (), 1000, "user id 1000, without capabilities", "sudo "),
        (1 << 39, "", (), 1000, "user id 1000 with CAP_BPF", "sudo "),
        (0, "NoNewPrivs:\t1\n", (), 1000, "user id 1000", "in a shell where sudo works"),
        (0, "", (), 0, "root without CAP_BPF", "start it with AmbientCapabilities="),
        (ALL, "", ("user",), 0, "user id 0 of a user namespace", "leave this user namespace"),
    ],
)
def test_who_may_not_is_told_how_to(
    effective: int, more: str, own: tuple[str, ...], uid: int, found: str, fix: str, host: MakeHost
) -> None:
    check = privilege(host(status(effective, more), own=own, uid=uid))
    assert check.state is State.MISSING
    assert check.found.startswith(found)
    assert "Operation not permitted" in check.found
    assert check.fix.startswith(fix)


@pytest.mark.usefixtures("refused")
@pytest.mark.parametrize(
    ("files", "own", "fix"),
    [
        ({}, (), "let bpf and perf_event_open through: a seccomp filter"),
        ({"/.dockerenv": ""}, ("pid",), "docker run --security-opt seccomp=unconfined"),
        ({"/proc/self/environ": "KUBERNETES_SERVICE_HOST=x\0"}, ("pid",), "let bpf and perf_event_open through: sec"),
    ],
)
def test_who_has_the_capabilities_is_not_told_to_get_them(
    files: dict[str, str], own: tuple[str, ...], fix: str, host: MakeHost
) -> None:
    assert privilege(host({**status(ALL), **files}, own=own)).fix.startswith(fix)


def test_the_kernels_word_counts_not_the_user_number(host: MakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rights.probe, "refusal", lambda: None)
    assert privilege(host(status(ALL), uid=1000)).state is State.OK


def test_before_5_11_the_limit_of_locked_memory_goes_with_the_capabilities(
    host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.release", lambda: "5.10.0-32-amd64")
    monkeypatch.setattr(rights.probe, "refusal", lambda: BpfError("memlock", "64 KiB may be locked", "raise it"))
    user = host(status(ALL), uid=1000)
    assert privilege(user).fix.startswith("sudo prlimit --memlock=unlimited env HOME=")
    assert privilege(replace(user, uid=0)).fix == "raise it"


@pytest.mark.parametrize("code", ["lockdown", "load_failed"])
def test_what_no_capability_mends_has_its_own_remedy(
    code: str, host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rights.probe, "refusal", lambda: BpfError(code, "why", "the remedy"))
    check = privilege(host(status(ALL), uid=1000))
    assert (check.state, check.fix) == (State.MISSING, "the remedy")


@pytest.mark.parametrize(
    ("scope", "effective", "state"),
    [
        ("0", 0, State.LIMITED),
        ("1", 0, State.LIMITED),
        ("1", ALL, State.OK),
        ("2", ALL, State.OK),
        ("3", ALL, State.LIMITED),
    ],
)
def test_others_are_looked_into_by_capability(scope: str, effective: int, state: State, host: MakeHost) -> None:
    view = host({**status(effective), "/proc/sys/kernel/yama/ptrace_scope": f"{scope}\n"}, uid=1000)
    assert ptrace(view).state is state


@pytest.mark.parametrize(
    ("address", "setting", "effective", "state", "fix"),
    [
        ("ffffffff81000000", "0", 0, State.OK, ""),
        ("0000000000000000", "0", 0, State.LIMITED, "sudo /"),
        ("0000000000000000", "1", 0, State.LIMITED, "sudo /"),
        ("0000000000000000", "2", ALL, State.LIMITED, "sudo sysctl kernel.kptr_restrict=1"),
    ],
)
def test_symbols_are_shown_by_the_rules_of_the_kernel(
    address: str, setting: str, effective: int, state: State, fix: str, host: MakeHost
) -> None:
    files = {"/proc/kallsyms": f"{address} T _text\n", "/proc/sys/kernel/kptr_restrict": f"{setting}\n"}
    check = symbols(host({**status(effective), **files}, uid=1000))
    assert (check.state, check.fix[: len(fix)]) == (state, fix)
