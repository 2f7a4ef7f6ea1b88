"""The kernel as it says itself at its documented places."""

from __future__ import annotations

import gzip
from collections.abc import Callable

import pytest

from whystall.agent_server.doctor.kernel import btf, kernel, kernel_config, kprobes, lockdown
from whystall.agent_server.doctor.place import cgroups, delay_accounting, proc
from whystall.agent_server.doctor.report_model import State
from whystall.agent_server.doctor.view import View

MakeHost = Callable[..., View]
SYSFS = "sysfs /sys sysfs rw 0 0\n"


@pytest.mark.parametrize(
    ("release", "state"),
    [
        ("6.12.95+deb12-amd64", State.OK),
        ("5.11.0", State.OK),
        ("5.10.0-32-amd64", State.OK),
        ("5.8.0", State.OK),
        ("5.7.19", State.MISSING),
        ("4.19.90-2003.4.0.0036.oe1.aarch64", State.MISSING),
        ("strange", State.MISSING),
    ],
)
def test_kernels_from_5_8_on_have_what_the_engine_needs(release: str, state: State, host: MakeHost) -> None:
    check = kernel(host(), release)
    assert (check.state, release in check.found) == (state, True)
    assert bool(check.fix) == (state is not State.OK)
    assert ("older than 5.11" in check.found) == (release in ("5.10.0-32-amd64", "5.8.0"))


def test_types_that_are_there_are_found(host: MakeHost) -> None:
    assert btf(host({"/sys/kernel/btf/vmlinux": b"\x9f\xeb"})).state is State.OK


@pytest.mark.parametrize(
    ("mounts", "uid", "fix"),
    [
        (SYSFS + "tmpfs /sys/kernel/btf tmpfs rw 0 0\n", 0, "umount /sys/kernel/btf"),
        (SYSFS + "tmpfs /sys/kernel/btf tmpfs rw 0 0\n", 1000, "sudo umount /sys/kernel/btf"),
        ("overlay / overlay rw 0 0\n", 0, "mount -t sysfs sysfs /sys"),
        ("/dev/vda / ext4 rw 0 0\n" + SYSFS, 0, "boot a kernel built with CONFIG_DEBUG_INFO_BTF=y"),
    ],
)
def test_missing_types_come_back_by_what_hides_them(mounts: str, uid: int, fix: str, host: MakeHost) -> None:
    check = btf(host({"/proc/self/mounts": mounts}, uid=uid))
    assert check.state is State.MISSING
    assert check.fix.startswith(fix)


@pytest.mark.parametrize(
    ("files", "state", "found"),
    [
        ({"/sys/kernel/security/lockdown": "none [integrity] confidentiality\n"}, State.OK, "integrity"),
        ({"/sys/kernel/security/lockdown": "none integrity [confidentiality]\n"}, State.MISSING, "confidentiality"),
        ({"/proc/cmdline": "quiet lockdown=confidentiality\n"}, State.MISSING, "confidentiality"),
        ({"/proc/cmdline": "quiet lockdown=integrity\n"}, State.OK, "integrity"),
        ({"/proc/cmdline": "quiet\n"}, State.OK, "not visible"),
        ({"/proc/self/mounts": "securityfs /sys/kernel/security securityfs rw 0 0\n"}, State.OK, "none"),
    ],
)
def test_lockdown(files: dict[str, str], state: State, found: str, host: MakeHost) -> None:
    check = lockdown(host(files))
    assert (check.state, check.found.startswith(found)) == (state, True)


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"/sys/kernel/debug/kprobes/enabled": "1\n"}, "built in and enabled"),
        ({"/proc/sys/debug/kprobes-optimization": "1\n"}, "built in"),
        ({"/proc/config.gz": gzip.compress(b"CONFIG_KPROBES=y\n")}, "built in"),
        ({"/proc/config.gz": gzip.compress(b"# CONFIG_KPROBES is not set\n")}, "not built"),
        ({"/proc/config.gz": b"no gzip"}, "this user may not see whether there are any"),
        ({"/sys/kernel/debug/tracing/trace_clock": "local"}, "not built"),
        ({}, "this user may not see whether there are any"),
    ],
)
def test_kprobes_are_no_fault_where_there_are_none(files: dict[str, str | bytes], found: str, host: MakeHost) -> None:
    check = kprobes(host(files))
    assert (check.state, check.found.startswith(found)) == (State.OK, True)


def test_disarmed_kprobes_are_a_fault_that_nobody_else_tells(host: MakeHost) -> None:
    check = kprobes(host({"/sys/kernel/debug/kprobes/enabled": "0\n"}, uid=1000))
    assert check.state is State.LIMITED
    assert check.fix == "echo 1 | sudo tee /sys/kernel/debug/kprobes/enabled"


def test_the_config_is_read_where_it_lies(host: MakeHost) -> None:
    view = host({"/boot/config-6.1.0-50-amd64": "CONFIG_KPROBES=y\nCONFIG_IKHEADERS=m\n# CONFIG_X is not set\n"})
    assert kernel_config(view, "6.1.0-50-amd64") == {"CONFIG_KPROBES", "CONFIG_IKHEADERS"}
    assert kernel_config(view, "6.1.0-51-amd64") is None


@pytest.mark.parametrize(
    ("release", "files", "state"),
    [
        ("6.1.0", {"/proc/sys/kernel/task_delayacct": "1\n"}, State.OK),
        ("6.1.0", {"/proc/sys/kernel/task_delayacct": "0\n"}, State.LIMITED),
        ("6.1.0", {}, State.LIMITED),
        ("5.10.0", {"/proc/cmdline": "quiet"}, State.OK),
        ("5.10.0", {"/proc/cmdline": "quiet nodelayacct"}, State.LIMITED),
    ],
)
def test_delays_are_accounted_by_default_before_5_14(
    release: str, files: dict[str, str], state: State, host: MakeHost
) -> None:
    assert delay_accounting(host(files), release).state is state


@pytest.mark.parametrize(
    ("files", "state", "found"),
    [
        ({"/sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids\n"}, State.OK, "version 2: cpuset, cpu"),
        ({"/sys/fs/cgroup/cgroup.controllers": "cpu io\n"}, State.LIMITED, "version 2"),
        (
            {f"/sys/fs/cgroup/{name}/cgroup.procs": "" for name in ("cpu,cpuacct", "memory", "blkio", "systemd")},
            State.OK,
            "version 1: blkio, cpu, cpuacct, memory",
        ),
        ({"/sys/fs/cgroup/memory/cgroup.procs": ""}, State.LIMITED, "version 1: memory"),
        ({}, State.LIMITED, "not mounted"),
    ],
)
def test_control_groups_of_both_versions(files: dict[str, str], state: State, found: str, host: MakeHost) -> None:
    check = cgroups(host(files))
    assert (check.state, check.found[: len(found)]) == (state, found)
    assert bool(check.fix and check.means) == (state is not State.OK)


def test_a_sidecar_has_the_control_groups_of_its_node(host: MakeHost) -> None:
    node = {
        "/proc/self/ns/mnt": "->mnt:[2]",
        "/proc/1/ns/mnt": "->mnt:[1]",
        "/proc/1/root/etc/hostname": "gpu-7",
        "/proc/1/root/sys/fs/cgroup/cgroup.controllers": "cpu io memory\n",
    }
    check = cgroups(host({**node, "/sys/fs/cgroup": None}))
    assert (check.state, check.found) == (State.OK, "version 2: cpu, io, memory")


def test_proc_hidden_and_absent(host: MakeHost) -> None:
    assert proc(host({"/proc/self/stat": "1", "/proc/stat": "cpu", "/proc/1/stat": "1"})).state is State.OK


def test_hidden_processes_are_told(host: MakeHost) -> None:
    check = proc(host({"/proc/self/stat": "1", "/proc/stat": "cpu"}, uid=1000))
    assert (check.state, check.fix) == (State.LIMITED, "sudo mount -o remount,hidepid=0 /proc")


def test_no_proc_at_all(host: MakeHost) -> None:
    assert proc(host()).state is State.MISSING


def test_proc_of_processes_only_is_told_apart_from_none(host: MakeHost) -> None:
    check = proc(host({"/proc/self/stat": "1", "/proc/1/stat": "1"}, uid=1000))
    assert (check.state, check.fix) == (State.MISSING, "sudo mount -t proc proc /proc")
    assert "subset=pid" in check.found
