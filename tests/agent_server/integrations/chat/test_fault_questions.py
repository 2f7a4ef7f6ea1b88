"""Faults described as people type them: the explanation that fits, no alert that does not, no name out of an error."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from chat_alerts import ROUTES

from whystall.agent_server.integrations.alerts.intake import Intake
from whystall.agent_server.integrations.chat.intents import subject_of, understand
from whystall.prompts.topics import topics_of

pytestmark = pytest.mark.anyio

PORT = {"alertname": "InfinibandPortDown", "severity": "critical", "instance": "gpu-12:9100", "description": "port 1"}
SPACE = {
    "alertname": "NodeFilesystemAlmostOutOfSpace",
    "severity": "warning",
    "instance": "stor-2:9100",
    "description": "/scratch has 3 % left",
}

LISTS = [("what's broken", "and the second one?"), ("现在有啥告警", "第二个是怎么回事")]


def fire(chat: Any, *alerts: dict[str, str]) -> None:
    """Receive firing alerts, for which no ticket is filed."""
    body = [{"status": "firing", "labels": one, "annotations": {"description": one["description"]}} for one in alerts]
    Intake(chat.kb, chat.settings, ROUTES).receive(json.dumps({"version": "4", "alerts": body}).encode(), time.time())


@pytest.mark.parametrize(
    ("message", "topic"),
    [
        ("DataLoader worker is killed by signal: Bus error, out of shared memory", "shared_memory"),
        ("CUDA error: an illegal memory access was encountered", "cuda_error"),
        ("socketStartConnect: Connect to 10.2.4.7<45117> failed : Connection refused", "connecting"),
        ("多机训练起不来一直卡在 init_process_group", "connecting"),
        ("vllm 首 token 特别慢，要十几秒", "inference"),
        ("GPU KV cache usage: 99.7%", "inference"),
        ("0/64 nodes are available: 64 Insufficient nvidia.com/gpu", "pending"),
        ("slurm node went drain with reason Kill task failed", "drained"),
        ("/data Read-only file system", "read_only"),
        ("pods evicted because of ephemeral storage", "evicted"),
        ("容器里还是 too many open files", "open_files"),
        ("free shows 900G buff/cache", "cached_memory"),
        ("EDAC MC0: 12 CE memory read error", "hardware_error"),
        ("pytorch 用了 64 个线程，limit 才 8 核", "threads"),
        ("nvidia-smi just hangs, no output", "driver_stuck"),
        ("gc 停顿会导致 rank 之间不齐吗", "gc_pause"),
        ("loader 那边老卡，锯齿状", "dataloader"),
        ("训练速度从3.2s/it掉到5.8s/it，早上发版之后", "slower_than_before"),
        ("NET/IB : Got completion from peer with status=12 vendor err 129", "network_link"),
        ("one gpu sits at 210 MHz", "gpu_heat"),
        ("kill -9 does nothing", "d_state"),
        ("ncclUnhandledCudaError: Last error: Cuda failure 'out of memory'", "cuda_oom"),
    ],
)
def test_the_explanation_fits(message: str, topic: str) -> None:
    assert topics_of(message)[0].id == topic


@pytest.mark.parametrize("message", ["CUDA out of memory", "CUDA error: out of memory"])
def test_memory_of_the_gpu_is_no_invalid_access(message: str) -> None:
    assert "cuda_error" not in [one.id for one in topics_of(message)]


def test_a_swapped_node_does_not_swap_memory() -> None:
    assert topics_of("right after the node got swapped") == []
    assert topics_of("the host swaps")[0].id == "memory_pressure"


@pytest.mark.parametrize(
    "message",
    [
        "torch.distributed.DistBackendError in torch/csrc/distributed/c10d/NCCLUtils.hpp:268, e.g. socket",
        "run with NCCL_DEBUG=INFO, from 3.2s/it",
        "npu 报 EI0002 超时",
        "卡在 init_process_group",
    ],
)
def test_an_error_message_names_no_job(message: str) -> None:
    assert subject_of(message)[0].text == ""
    assert subject_of("train_dlrm.py is slow")[0].text == "train_dlrm.py"


@pytest.mark.parametrize(
    ("message", "other"),
    [
        ("python proc stuck in D state 40 min, kill -9 does nothing", "observes_only"),
        ("进程 kill -9 也杀不死", "observes_only"),
        ("CUDA error: an illegal memory access was encountered... how bad is that", "state"),
    ],
)
def test_a_fault_is_no_command_and_no_overview(message: str, other: str) -> None:
    assert understand(message).name != other


@pytest.mark.parametrize("message", ["把进程 kill 掉", "kill pid 1", "how bad is it", "thx u saved my night"])
def test_what_was_understood_still_is(message: str) -> None:
    assert understand(message).name in ("observes_only", "state", "thanks")


async def test_a_word_for_machines_relates_no_alert(chat: Any) -> None:
    fire(chat, SPACE)
    answer = await chat.says("loss went to nan right after the node got replaced, could it be hw?")
    assert "NodeFilesystem" not in answer
    assert "checkpoint" in answer


@pytest.mark.parametrize(("asked", "then"), LISTS)
async def test_the_second_of_a_list_may_be_an_alert(chat: Any, asked: str, then: str) -> None:
    fire(chat, PORT, SPACE)
    await chat.says(asked)
    answer = await chat.says(then)
    assert "NodeFilesystemAlmostOutOfSpace" in answer
    assert "InfinibandPortDown" not in answer
    assert "InfinibandPortDown" not in await chat.says("ack the second one")


@pytest.mark.parametrize("asked", ["is anyone looking at gpu-12?", "gpu-12 网卡 down 了有人看吗"])
async def test_an_alert_without_a_ticket_has_nobody(chat: Any, asked: str) -> None:
    fire(chat, PORT, SPACE)
    chat.ticket("NFS /data hangs")
    answer = await chat.says(asked)
    assert "InfinibandPortDown" in answer
    assert "NFS" not in answer
    assert "nobody was notified" in answer or "没有通知过任何人" in answer
