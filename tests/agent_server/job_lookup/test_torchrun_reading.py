"""What a job of torchrun states and with whom it is connected: environments, command lines, sockets."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from pydantic import ValidationError

from whystall.agent_server.job_lookup.models import Inventory, Wanted
from whystall.agent_server.job_lookup.resolve import resolve
from whystall.agent_server.job_lookup.torchrun import Endpoints, _nodes, _options, _rendezvous, endpoints
from whystall.tools.contract.errors import ErrorCode, ToolError

from .test_job_resolving import process

Start = Callable[..., int]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a process with these variables, that sleeps; its pid."""
    with ExitStack() as stack:

        def started(**variables: str) -> int:
            words = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]
            running = stack.enter_context(subprocess.Popen(words, stdout=subprocess.PIPE, env=variables))
            stack.callback(running.kill)
            assert running.stdout is not None
            running.stdout.readline()
            return running.pid

        yield started


def rank(**changed: str) -> dict[str, str]:
    stated = {"RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "0", "MASTER_PORT": "29533"}
    return stated | {"MASTER_ADDR": "10.9.8.7", "TORCHELASTIC_RUN_ID": "none"} | changed


def test_what_a_rank_states(start: Start) -> None:
    shown = endpoints(start(**rank()))
    assert (shown.store, shown.nodes, shown.world_size, shown.local_size) == ("10.9.8.7:29533", 2, 8, 4)
    assert (shown.here, shown.serves, shown.clients, shown.servers, shown.peers) == ([0], False, [], [], [])
    assert "127.0.0.1" in shown.own
    assert shown.words == "torchrun 10.9.8.7:29533"


@pytest.mark.parametrize(
    ("changed", "nodes"),
    [
        ({"GROUP_WORLD_SIZE": "3"}, 3),  # nodes need not be of one size
        ({"LOCAL_WORLD_SIZE": "3"}, None),
        ({"LOCAL_WORLD_SIZE": ""}, None),
        ({"LOCAL_WORLD_SIZE": "0"}, None),
        ({"WORLD_SIZE": "many"}, None),
        ({"GROUP_WORLD_SIZE": "9999999"}, None),
        ({"MASTER_ADDR": "fd00::7"}, 2),
        ({"MASTER_ADDR": "[fd00::7]"}, 2),
        ({"MASTER_ADDR": "n0.example.com"}, 2),
    ],
)
def test_odd_or_missing_variables(start: Start, changed: dict[str, str], nodes: int | None) -> None:
    stated = rank(**changed)
    shown = endpoints(start(**stated))
    assert (shown.nodes, shown.store) == (nodes, f"{stated['MASTER_ADDR']}:29533")


@pytest.mark.parametrize(
    "changed",
    [
        {"MASTER_ADDR": ""},
        {"MASTER_PORT": ""},
        {"MASTER_PORT": "http"},
        {"MASTER_ADDR": "a; pid 1"},
        {"MASTER_ADDR": "\x1b[31m"},
        {"MASTER_ADDR": "x" * 300},
        {"MASTER_ADDR": "节点"},
    ],
)
def test_a_process_that_names_no_store_is_refused(start: Start, changed: dict[str, str]) -> None:
    with pytest.raises(ToolError) as caught:
        endpoints(start(**rank(**changed)))
    assert caught.value.code is ErrorCode.BAD_ARGUMENT


def test_a_process_that_does_not_run() -> None:
    with pytest.raises(ToolError) as caught:
        endpoints(7, Inventory([]))
    assert caught.value.code is ErrorCode.NO_SUCH_PROCESS


def of_this_process(store: str) -> Endpoints:
    """What this process shows, as a rank of the job with that store."""
    own = process(os.getpid(), rank=0, world_size=2, local_size=1, group_rank=0, master=store)
    return endpoints(os.getpid(), Inventory([own], host=("here",)))


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_connections_within_this_host_lead_nowhere(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with ExitStack() as stack:
        try:
            listener = stack.enter_context(socket.create_server((address, 0), family=family))
        except OSError:
            pytest.skip("no IPv6 here")
        port = listener.getsockname()[1]
        stack.enter_context(socket.create_connection((address, port)))
        stack.enter_context(listener.accept()[0])
        shown = of_this_process(f"{address}:{port}")
        assert (shown.serves, shown.clients, shown.servers, shown.peers) == (True, [], [], [])
    assert not of_this_process(f"{address}:{port}").serves


@pytest.mark.parametrize(
    ("words", "store", "nodes"),
    [
        ("--nnodes 2 --rdzv-endpoint n0:29400 train.py --master-port 1", "n0:29400", 2),
        ("--nnodes=1:4 --rdzv_endpoint=[fd00::1]:7", "[fd00::1]:7", None),
        ("--nnodes=4:4 --rdzv-endpoint n0", "n0:29400", 4),
        ("--master_addr 10.0.0.1 --nnodes x", "10.0.0.1:29500", None),
        ("--master-port=7", "127.0.0.1:7", None),
        ("--rdzv-endpoint a;b", "", None),
        ("--rdzv-endpoint", "", None),
        ("--nnodes 0", "", None),
        ("train.py", "", None),
    ],
)
def test_the_options_of_torchrun(words: str, store: str, nodes: int | None) -> None:
    options = _options(["python", "-m", "torch.distributed.run", *words.split()])
    assert (_rendezvous(options), _nodes([options])) == (store, nodes)


@pytest.mark.parametrize(
    "changed", [{"clients": ["x"]}, {"store": "a b:1"}, {"own": ["1.1.1.1"] * 20_001}, {"nodes": 0}]
)
def test_what_another_host_cannot_have_shown(changed: dict[str, Any]) -> None:
    good = of_this_process("n0:1").model_dump()
    assert Endpoints.model_validate(good)
    with pytest.raises(ValidationError):
        Endpoints.model_validate(good | changed)


JOB = Inventory(
    [
        process(10, "torchrun", words=("python3", "torchrun", "n1:29400", "train.py")),
        process(20, rank=0, local_rank=0, world_size=2, master="pid:7:29500"),
        process(30, "torchrun", words=("python3", "torchrun", "10.0.0.1", "29533", "train.py")),
        process(7, "other.py"),
    ],
    host=("here",),
)


@pytest.mark.parametrize(
    ("words", "pid"),
    [
        ("torchrun pid:7:29500", 20),  # an address, not another process
        ("torchrun n1:29400", 10),  # its ranks have not started
        ("torchrun 10.0.0.1:29533", 30),
        ("torchrun n9:29400", None),  # a store that no process names is final
        ("torchrun other.py:1", None),
    ],
)
def test_another_host_finds_the_job_by_its_store(words: str, pid: int | None) -> None:
    assert resolve(Wanted(text=words), JOB).pid == pid
