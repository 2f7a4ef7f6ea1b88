"""With which hosts a job of torchrun communicates, read on one of them: from what the environments of its ranks and the
command lines of its agents state, and from their connections.

Each agent (``torchrun``) stays connected to the store of the rendezvous, each rank to that at
``MASTER_ADDR:MASTER_PORT``, which the agent of node 0 or rank 0 serves: the sockets of a store's server name all nodes.
Ranks are also connected with each other (gloo, NCCL), at ports that the kernel chose.

Source, in PyTorch 2: torch/distributed/run.py, rendezvous.py (``_create_c10d_store``), elastic/rendezvous/
(static_tcp_rendezvous.py, dynamic_rendezvous.py, c10d_rendezvous_backend.py).
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from whystall.agent_server.job_lookup import addresses, inventory
from whystall.agent_server.job_lookup.cmdline import AGENTS, LIMIT, argv
from whystall.agent_server.job_lookup.grouping import keys_of
from whystall.agent_server.job_lookup.models import Inventory, Process
from whystall.agent_server.job_lookup.search_terms import STORE
from whystall.tools.collect.objects_proc import Proc
from whystall.tools.collect.sock_diag import LISTEN, STATES, Channels, InetSocket
from whystall.tools.contract.errors import ErrorCode, ToolError

_ESTABLISHED = STATES.index("established")
_MOST_SOCKETS = 100_000
_MOST_NAMESPACES = 16
_MOST_ADDRESSES = 20_000
_MOST_RANKS = 1 << 20
_OPTIONS = ("rdzv-endpoint", "master-addr", "master-port", "nnodes")
_C10D_PORT, _STATIC_PORT = 29400, 29500  # of torchrun, if none is given
_FIRST_OWN_PORT = 32768  # ip_local_port_range by default

Address = Annotated[str, StringConstraints(max_length=45), AfterValidator(lambda text: str(ipaddress.ip_address(text)))]
Addresses = Annotated[list[Address], Field(max_length=_MOST_ADDRESSES)]
Number = Annotated[int, Field(ge=1, le=_MOST_RANKS)]


class Endpoints(BaseModel):
    """What one host shows of the hosts of a job.

    `store`: ``ADDRESS:PORT`` of the ranks' store, as they state it, else of the rendezvous. `nodes`, `world_size`,
    `local_size`: as stated; None: unknown. `here`: the node ranks (GROUP_RANK) on this host. `names`, `own`: of this
    host and its addresses. `serves`: whether a store is served here, to which `clients` are connected; `servers`: hosts
    of stores to which processes here are connected; `peers`: others whose connections have ports that kernels chose.
    The three never hold addresses of this host.
    """

    model_config = ConfigDict(frozen=True)

    store: Annotated[str, StringConstraints(pattern=rf"^{STORE}$")]
    nodes: Number | None = None
    world_size: Number | None = None
    local_size: Number | None = None
    here: Annotated[list[Annotated[int, Field(ge=0, lt=_MOST_RANKS)]], Field(max_length=1024)] = Field(
        default_factory=list
    )
    names: Annotated[list[Annotated[str, StringConstraints(max_length=255)]], Field(max_length=8)]
    own: Addresses
    serves: bool
    clients: Addresses
    servers: Addresses
    peers: Addresses

    @property
    def words(self) -> str:
        """Return the words by which ``find_job`` finds the job on its hosts."""
        return f"torchrun {self.store}"


def endpoints(pid: int, seen: Inventory | None = None) -> Endpoints:
    """Return what the job of the process `pid`, a rank or an agent, shows. `seen`: the processes of this host. Blocks.

    Raises `ToolError`: no_such_process; bad_argument if it is of no such job; no_privilege if its connections cannot be
    read.
    """
    seen = seen or inventory.read(also=[pid])
    keys = keys_of(seen)
    if pid not in keys:
        raise ToolError(ErrorCode.NO_SUCH_PROCESS, f"no process {pid} runs here", "`whystall jobs` lists what runs")
    members = [one for one in seen.processes if keys[one.pid] == keys[pid]]
    proc = Proc()
    agents = [one for one in members if one.program in AGENTS]
    options = [_options(argv(proc.read(one.pid, "cmdline", most=LIMIT))) for one in agents]
    meeting = [store for one in options if (store := _rendezvous(one))]
    ranks = [one for one in members if one.identity.master and re.fullmatch(STORE, one.identity.master)]
    stated = [str(one.identity.master) for one in ranks if one.pid == pid] or [
        str(one.identity.master) for one in ranks
    ]
    if not (stated or meeting):
        remedy = "name a rank or its torchrun: `whystall jobs` lists them"
        message = f"process {pid} states no MASTER_ADDR and MASTER_PORT, and is no torchrun with an endpoint"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, remedy)
    store = Counter(stated or meeting).most_common(1)[0][0]
    of_job = [one for one in ranks if one.identity.master == store]
    ports = {int(one.rpartition(":")[2]) for one in (store, *meeting)}
    found, own = _sockets(proc, [*of_job, *agents])
    clients, servers, peers = _others(found, own, ports)
    first = of_job[0].identity if of_job else None
    world, local = (first.world_size, first.local_size) if first else (None, None)
    return Endpoints(
        store=store,
        nodes=_possible(first.groups or _quotient(world, local)) if first else _nodes(options),
        world_size=_possible(world),
        local_size=_possible(local),
        here=sorted({one.identity.group_rank for one in of_job if one.identity.group_rank is not None})[:1024],
        names=list(seen.host)[:8],
        own=sorted(own)[:_MOST_ADDRESSES],
        serves=any(one.state == LISTEN and one.local.port in ports for one in found),
        clients=clients,
        servers=servers,
        peers=peers,
    )


def _options(arguments: Sequence[str]) -> dict[str, str]:
    """Return the options of torchrun that are of use: ``--rdzv-endpoint=node0:29400``, ``--master_port 29500``."""
    found: dict[str, str] = {}
    for place, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        name = name.removeprefix("--").replace("_", "-")
        if argument.startswith("--") and name in _OPTIONS:
            found.setdefault(name, value if equals else next(iter(arguments[place + 1 :]), ""))
    return found


def _rendezvous(options: dict[str, str]) -> str:
    """Return where the agents meet, ``ADDRESS:PORT``; empty if the options do not name it."""
    store = options.get("rdzv-endpoint", "").strip()
    if not store and ("master-addr" in options or "master-port" in options):
        store = f"{options.get('master-addr', '127.0.0.1')}:{options.get('master-port', _STATIC_PORT)}"
    if store and not re.fullmatch(STORE, store):
        store = f"{store}:{_C10D_PORT}"
    return store if re.fullmatch(STORE, store) else ""


def _nodes(options: Iterable[dict[str, str]]) -> int | None:
    """Return ``--nnodes``; None if it is a range."""
    stated = next((one["nnodes"] for one in options if "nnodes" in one), "")
    low, _, high = stated.partition(":")
    return _possible(int(low)) if re.fullmatch(r"[0-9]{1,7}", low) and high in ("", low) else None


def _quotient(world: int | None, local: int | None) -> int | None:
    return world // local if world and local and world % local == 0 else None


def _possible(number: int | None) -> int | None:
    return number if number is not None and 1 <= number <= _MOST_RANKS else None


def _sockets(proc: Proc, processes: Collection[Process]) -> tuple[list[InetSocket], set[str]]:
    """Return the TCP sockets of `processes`, and the addresses of their network namespaces."""
    namespaces: dict[bytes, int] = {}
    owned: set[bytes] = set()
    for one in processes:
        namespaces.setdefault(proc.link(one.pid, "ns/net"), one.pid)
        owned.update(link for _, link in proc.descriptors(one.pid) if link.startswith(b"socket:["))
    namespaces.pop(b"", None)
    if not namespaces or (not owned and proc.denied):
        message = f"the connections of {len(processes)} processes cannot be read"
        raise ToolError(ErrorCode.NO_PRIVILEGE, message, "run it as their user, or as root")
    here = os.readlink("/proc/self/ns/net").encode()
    found: list[InetSocket] = []
    own: set[str] = set()
    for link, pid in list(namespaces.items())[:_MOST_NAMESPACES]:
        try:
            channels = Channels(None if link == here else f"{proc.root}/{pid}/ns/net", _MOST_SOCKETS)
            try:
                listed = channels.inet("tcp")
            finally:
                channels.close()
        except OSError as error:
            message = f"the connections of process {pid} cannot be read: {error.strerror}"
            raise ToolError(ErrorCode.NO_PRIVILEGE, message, "run it as root") from None
        found += [one for one in listed if b"socket:[%d]" % one.inode in owned]
        own.update(addresses.own(Path(proc.root, str(pid))))
    return found, own


def _others(
    found: Sequence[InetSocket], own: Collection[str], ports: set[int]
) -> tuple[list[str], list[str], list[str]]:
    """Return the addresses of clients and servers of the stores at `ports`, and of peers."""
    served = {one.local.port for one in found if one.state == LISTEN} & ports
    lowest = _first_own_port()
    kinds: tuple[dict[str, None], dict[str, None], dict[str, None]] = ({}, {}, {})
    for one in found:
        remote = str(ipaddress.ip_address(one.remote.address))
        if one.state != _ESTABLISHED or one.remote.loopback or remote in own:
            continue
        if one.local.port in served:
            kinds[0][remote] = None
        elif one.remote.port in ports:
            kinds[1][remote] = None
        elif min(one.local.port, one.remote.port) >= lowest:
            kinds[2][remote] = None
    clients, servers, peers = (sorted(one)[:_MOST_ADDRESSES] for one in kinds)
    return clients, servers, peers


def _first_own_port() -> int:
    """Return the lowest port that the kernel chooses for a socket without one."""
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _FIRST_OWN_PORT
