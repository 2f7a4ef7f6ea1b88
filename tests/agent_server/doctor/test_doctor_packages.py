"""Commands that install, and whether BCC has what it runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from whystall.agent_server.doctor import bcc as doctor_bcc
from whystall.agent_server.doctor.bcc import bcc, headers
from whystall.agent_server.doctor.packages import install_command
from whystall.agent_server.doctor.report_model import State
from whystall.agent_server.doctor.view import View
from whystall.tools.contract.commands import COMMANDS

MakeHost = Callable[..., View]
RELEASE = "6.1.0-50-amd64"
DEBIAN = {"/etc/os-release": "ID=debian\n"}
BUILD = f"/usr/src/linux-headers-{RELEASE}"


@pytest.mark.parametrize(
    ("release", "uid", "command"),
    [
        ("ID=debian\n", 1000, "sudo apt-get install -y libbpf1"),
        ('ID=ubuntu\nID_LIKE="debian"\n', 0, "apt-get install -y libbpf1"),
        ('ID="openEuler"\n', 1000, "sudo dnf install -y libbpf"),
        ("ID=fedora\n", 0, "dnf install -y libbpf"),
        ('ID="somethingelse"\nID_LIKE="rhel fedora"\n', 1000, "sudo dnf install -y libbpf"),
        ("ID=arch\n", 0, "install libbpf1 (Debian's names)"),
        ("", 0, "install libbpf1 (Debian's names)"),
    ],
)
def test_packages_are_named_as_the_distribution_names_them(
    release: str, uid: int, command: str, host: MakeHost
) -> None:
    assert install_command("libbpf", host({"/etc/os-release": release}, uid=uid)).startswith(command)


def test_several_at_once_and_those_of_a_kernel(host: MakeHost) -> None:
    view = host(DEBIAN)
    assert install_command("bcc,kernel headers", view, RELEASE) == (
        f"apt-get install -y python3-bpfcc bpfcc-tools linux-headers-{RELEASE}"
    )


def stock(*names: str) -> dict[str, str]:
    return {COMMANDS[f"bcc.{name}"].places[0]: "" for name in names}


TOOLS = ("biolatency", "cachestat", "fileslower", "hardirqs", "offcputime", "runqlat", "softirqs")
MODULE = {"/usr/lib/python3/dist-packages/bcc/__init__.py": ""}


@pytest.mark.parametrize(
    ("files", "state", "found"),
    [
        ({}, State.LIMITED, "not installed"),
        ({**stock(*TOOLS), **MODULE}, State.OK, f"Python module and stock tools: {', '.join(TOOLS)}"),
        (MODULE, State.LIMITED, f"stock tools: none; lacks {', '.join(TOOLS)}"),
        (
            {**stock(*TOOLS[:-1]), "/usr/lib/python3.9/site-packages/bcc/__init__.py": ""},
            State.LIMITED,
            f"stock tools: {', '.join(TOOLS[:-1])}; lacks softirqs",
        ),
        (
            stock(*TOOLS),
            State.LIMITED,
            f"stock tools: {', '.join(TOOLS)}; lacks the module of /usr/bin/python3",
        ),
    ],
)
def test_what_of_bcc_is_installed(files: dict[str, str], state: State, found: str, host: MakeHost) -> None:
    check = bcc(host({**DEBIAN, **files}))
    assert (check.state, check.found) == (state, found)
    assert check.fix == ("" if state is State.OK else "apt-get install -y python3-bpfcc bpfcc-tools")


def tree(release: str) -> dict[str, str]:
    """Headers where a Debian package puts them, and the link to them."""
    return {
        f"{BUILD}/include/generated/utsrelease.h": f'#define UTS_RELEASE "{release}"\n',
        f"{BUILD}/include/config/kernel.release": f"{release}\n",
        f"{BUILD}/include/linux/kconfig.h": "",
        f"{BUILD}/include/config/auto.conf": "CONFIG_SMP=y\n",
        f"/lib/modules/{RELEASE}/build": f"->../../..{BUILD}",
    }


def test_headers_of_this_kernel(host: MakeHost) -> None:
    assert headers(host({**DEBIAN, **tree(RELEASE)}), RELEASE).state is State.OK


def test_headers_of_another_kernel_are_refused_with_the_command(host: MakeHost) -> None:
    check = headers(host({**DEBIAN, **tree("6.1.0-49-amd64")}, uid=1000), RELEASE)
    assert check.state is State.LIMITED
    assert "6.1.0-49-amd64" in check.found
    assert check.fix == f"sudo apt-get install -y linux-headers-{RELEASE}"


@pytest.mark.parametrize(
    ("files", "own", "fix"),
    [
        ({f"/boot/vmlinuz-{RELEASE}": ""}, (), f"apt-get install -y linux-headers-{RELEASE}"),
        ({f"/boot/config-{RELEASE}": "CONFIG_IKHEADERS=m\n"}, (), "modprobe kheaders"),
        ({}, (), "install the headers that came with this kernel"),
        ({"/.dockerenv": ""}, ("pid",), "in a container: mount the host's /lib/modules and /usr/src"),
    ],
)
def test_the_way_to_headers_is_that_of_the_place(
    files: dict[str, str], own: tuple[str, ...], fix: str, host: MakeHost
) -> None:
    check = headers(host({**DEBIAN, **files}, own=own), RELEASE)
    assert check.state is State.LIMITED
    assert check.fix.startswith(fix)


def test_a_variable_that_leads_astray_is_named(host: MakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_bcc.platform, "release", lambda: RELEASE)
    monkeypatch.setenv("BCC_KERNEL_SOURCE", "/nowhere")
    assert "BCC_KERNEL_SOURCE" in headers(host({**DEBIAN, **tree(RELEASE)}), RELEASE).fix
