"""The cause gpu_fault: a wait for the device is a fault of the hardware only with an error that its driver reported."""

from __future__ import annotations

import pytest
from making import finding
from test_causes import candidates

from whystall.tools.contract.findings import Finding


def xid(age_s: float | None = 60, **words: str) -> Finding:
    told = {"xid": "79", "meaning": "off_bus", "area": "bus", "action": "restart_bm"} | words
    return finding("gpu.xid", words=told, **({"count": 1.0} | ({"age_s": age_s} if age_s is not None else {})))


@pytest.mark.parametrize("wait", ["device", "collective"])
def test_a_wait_for_the_device_with_a_recent_error_is_its_fault(wait: str) -> None:
    waits = finding("path.wait", words={"wait": wait}, window_pct=95)
    assert "gpu_fault" in candidates(waits, xid())
    assert "gpu_fault" in candidates(waits, finding("gpu.lost", words={"error": "GPU is lost"}, count=1))


@pytest.mark.parametrize(
    "error",
    [
        xid(age_s=90_000),  # yesterday
        xid(age_s=None),
        xid(xid="31", meaning="page_fault", area="application", action="restart_app"),  # the program's own
        xid(xid="45", meaning="cleanup", area="consequence", action="follow_other"),
        xid(xid="63", meaning="row_remap", area="memory", action="ignore"),
    ],
)
def test_an_old_error_or_one_of_the_program_is_no_fault_of_the_gpu(error: Finding) -> None:
    waits = finding("path.wait", words={"wait": "device"}, window_pct=95)
    assert "gpu_fault" not in candidates(waits, error)


def test_an_error_beside_a_job_that_does_not_wait_for_the_device_is_no_cause() -> None:
    assert "gpu_fault" not in candidates(finding("path.wait", words={"wait": "file"}, window_pct=95), xid())
