"""Accelerators as their drivers show them: device nodes, versions, tools."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from whystall.agent_server.doctor.accelerators import accelerators
from whystall.agent_server.doctor.report_model import State
from whystall.agent_server.doctor.view import View

MakeHost = Callable[..., View]


def card(place: str, vendor: str, kind: str) -> dict[str, str]:
    return {f"/sys/bus/pci/devices/{place}/vendor": f"{vendor}\n", f"/sys/bus/pci/devices/{place}/class": f"{kind}\n"}


NVIDIA_CARD = card("0000:3b:00.0", "0x10de", "0x030200")
NVIDIA_NODES = {"/dev/nvidia0": "", "/dev/nvidia1": "", "/dev/nvidiactl": "", "/dev/nvidia-uvm": ""}
NVIDIA_VERSION = {
    "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Sat Feb 17 2024\n"
}
NVIDIA_OPEN = {
    "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release\n"
}
SMI = {"/usr/bin/nvidia-smi": ""}
ASCEND = {
    **card("0000:c1:00.0", "0x19e5", "0x120000"),
    **{"/dev/davinci0": "", "/dev/davinci_manager": "", "/usr/local/bin/npu-smi": ""},
    "/usr/local/Ascend/driver/version.info": "Version=23.0.3\nascendhal_version=7.35\n",
}
AMD = {
    **card("0000:83:00.0", "0x1002", "0x120000"),
    **{"/dev/kfd": "", "/dev/dri/renderD128": "", "/opt/rocm/bin/rocm-smi": ""},
    "/sys/module/amdgpu/version": "6.3.6\n",
}


def test_none(host: MakeHost) -> None:
    assert accelerators(host()).found == "none on this host (NVIDIA, Ascend, AMD)"


@pytest.mark.parametrize(
    ("files", "found"),
    [
        (
            {**NVIDIA_CARD, **NVIDIA_NODES, **NVIDIA_VERSION, **SMI},
            "NVIDIA: 2 device node(s), driver 535.161.08, nvidia-smi",
        ),
        ({**NVIDIA_NODES, **NVIDIA_OPEN, **SMI}, "NVIDIA: 2 device node(s), driver 550.54.15, nvidia-smi"),
        (ASCEND, "Ascend: 1 device node(s), driver 23.0.3, npu-smi"),
        (AMD, "AMD: 1 device node(s), driver 6.3.6, rocm-smi"),
        (
            {**ASCEND, **NVIDIA_NODES, **NVIDIA_VERSION, **SMI},
            "NVIDIA: 2 device node(s), driver 535.161.08, nvidia-smi; Ascend: 1 device node(s), driver 23.0.3, npu-smi",
        ),
    ],
)
def test_those_that_work(files: dict[str, str], found: str, host: MakeHost) -> None:
    check = accelerators(host(files))
    assert (check.state, check.found) == (State.OK, found)


@pytest.mark.parametrize(
    ("files", "means", "fix"),
    [
        (NVIDIA_CARD, "1 accelerator(s) on the bus without a driver", "install NVIDIA's driver"),
        ({**NVIDIA_CARD, **NVIDIA_VERSION}, "the driver is loaded, but there is no device node", "give the container"),
        ({**NVIDIA_NODES, **NVIDIA_VERSION}, "nvidia-smi is missing", "install nvidia-smi"),
    ],
)
def test_those_that_do_not(files: dict[str, str], means: str, fix: str, host: MakeHost) -> None:
    check = accelerators(host(files))
    assert check.state is State.LIMITED
    assert check.means.startswith(means)
    assert check.fix.startswith(fix)


@pytest.mark.parametrize(
    "files",
    [
        card("0000:00:02.0", "0x1002", "0x030000"),  # a display, not an accelerator
        card("0000:01:00.0", "0x19e5", "0x020000"),  # a network card of Huawei's
        {"/dev/dri/renderD128": ""},  # a render node of whoever, without AMD's compute interface
        {"/dev/nvidiactl": ""},
    ],
)
def test_what_is_none(files: dict[str, str], host: MakeHost) -> None:
    assert accelerators(host(files)).found.startswith("none")
