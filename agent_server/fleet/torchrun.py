"""The hosts of a job that torchrun started, from what one of its hosts shows (`job_lookup.torchrun`).

The host of the ranks' store knows all nodes, so it is asked too. Addresses are resolved to hosts of the settings.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
from pydantic import ValidationError

from whystall.agent_server.fleet.answers import Answer, Target, line
from whystall.agent_server.fleet.fan_out import Limits, fan_out
from whystall.agent_server.fleet.inventory import Inventory, same_host
from whystall.agent_server.inputs.recordings import in_thread
from whystall.agent_server.job_lookup.torchrun import Endpoints, endpoints
from whystall.agent_server.settings.loopback import is_loopback
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.timeline.rank_data.rank_list import rank_list

_LOOKUP_S = 5.0
_AT_ONCE = 64
_UNKNOWN = "unknown node"


@dataclass(frozen=True)
class TorchrunJob:
    """The `hosts` of a job, and the words by which each finds it. `seen`: nodes on them, `nodes`: those that the job
    states; `world_size`, `local_size`: ranks of the job, of a node; None: unknown.
    """

    hosts: Sequence[str]
    words: str
    seen: int
    nodes: int | None
    world_size: int | None
    local_size: int | None

    def missing(self, answers: Sequence[Answer]) -> list[Answer]:
        """Return an answer for each node that no host was found for, given the `answers` of the others; one if it is
        unknown how many there are. Nodes of which a host reports the ranks are found.
        """
        ranks = {rank for one in answers if one.located for rank in (one.located.ranks or {}).values()}
        left = [rank for rank in range(self.world_size or 0) if rank not in ranks]
        if self.world_size and not left:
            return []
        if self.nodes is None:
            return [Answer(_UNKNOWN, "not_asked", "how many nodes the job has is unknown")]
        count = self.nodes - self.seen
        reasons = [f"no connection of the job leads to it ({self.seen} of {self.nodes} nodes found)"]
        places: list[int] = []
        if ranks and self.local_size and all(one.status in ("answered", "absent") for one in answers):
            places = sorted({rank // self.local_size for rank in left})  # torchrun numbers ranks node by node
            reasons.append(f"its ranks are among {rank_list(left)}")
        named = [f"node rank {place}" for place in places] if len(places) == count else [_UNKNOWN] * count
        return [Answer(name, "not_asked", "; ".join(reasons)) for name in named]


async def job_of(named: str, inventory: Inventory, limits: Limits) -> TorchrunJob:
    """Return the job of ``PID`` on this host, or of ``HOST/PID``: a rank, or its torchrun.

    Raises `ToolError`: bad_argument, and what `endpoints` raises; io_error if HOST does not answer.
    """
    host, _, number = named.rpartition("/")
    if not (number.isascii() and number.isdigit() and len(number) <= 7):
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"torchrun: {named[:100]!r} is no PID or HOST/PID", "write 4242")
    if host and not inventory.knows(host):
        remedy = "add it to hosts or allow in [fleet] of the settings"
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"torchrun: {host[:100]} may not be asked", remedy)
    if host:
        shown = await _asked(Target(inventory.host(host)), int(number), limits)
        if isinstance(shown, Answer):
            message = f"torchrun: {host} shows no connections: {shown.detail or shown.status}"
            raise ToolError(ErrorCode.IO_ERROR, message, "name a process of the job on another host")
        first = shown
    else:
        first = await in_thread(lambda: endpoints(int(number)))
    reports = {host or _own_name(first, inventory): first}
    server = "" if first.serves else await _server(first, inventory)
    if server and server not in reports and inventory.knows(server):
        other = await _asked(Target(inventory.host(server), first.words), None, limits)
        if isinstance(other, Endpoints) and other.store == first.store:
            reports[server] = other
    served = any(one.serves for one in reports.values())
    # the clients of a store are the whole job; without them, whoever its processes communicate with
    found = {
        address: None
        for one in reports.values()
        for address in [*one.clients, *one.servers, *([] if served else one.peers)]
    }
    own = {address: name for name, one in reports.items() for address in one.own}
    names = await _names([address for address in found if address not in own], inventory) | own
    hosts = list(dict.fromkeys([*reports, *([server] if server else []), *(names[address] for address in found)]))
    seen = sum(max(1, len(one.here)) for one in reports.values()) + len(hosts) - len(reports)
    return TorchrunJob(hosts, first.words, seen, first.nodes, first.world_size, first.local_size)


async def _asked(target: Target, pid: int | None, limits: Limits) -> Endpoints | Answer:
    """Return what a host shows of the job of its process `pid`, None: which it finds; or why it shows nothing."""
    (answer,) = await fan_out(
        [target],
        "",
        {},
        limits,
        resource=lambda found: f"whystall://endpoints/{pid if pid is not None else found.pid if found else 0}",
    )
    if answer.status != "answered":
        return answer
    try:
        shown = Endpoints.model_validate_json(answer.content)
    except ValidationError:
        return replace(answer, status="invalid", detail="it shows no connections of a job")
    if target.host.identity and not any(same_host(name, target.host.name) for name in shown.names):
        return replace(answer, status="wrong_host", detail=line(f"it calls itself {' '.join(shown.names)}"))
    return shown


def _own_name(shown: Endpoints, inventory: Inventory) -> str:
    """Return the name of this host in the settings, else its own."""
    same = (name for name in inventory.known if any(same_host(own, name) for own in shown.names))
    candidates = [*shown.names, *same, *shown.own]
    return next((name for name in candidates if inventory.knows(name)), "") or (shown.names or ["this host"])[0]


async def _server(shown: Endpoints, inventory: Inventory) -> str:
    """Return the host of the ranks' store; empty if it is not known. A name must be in the settings literally: what a
    job states must not choose among the names that a pattern permits.
    """
    stated = shown.store.rpartition(":")[0].strip("[]")
    for name in (stated, stated.partition(".")[0]):
        if name in inventory.known:
            return name
    try:
        addresses = [str(ip_address(stated))]
    except ValueError:
        addresses = shown.servers if len(shown.servers) == 1 else []
    addresses = [one for one in addresses if one not in shown.own and not ip_address(one).is_loopback]
    return (await _names(addresses, inventory))[addresses[0]] if addresses else ""


async def _names(addresses: Sequence[str], inventory: Inventory) -> dict[str, str]:
    """Return for each address the first host that the settings name and that has it, by DNS or /etc/hosts or in the URL
    of its override; else the address itself.
    """
    if not addresses:
        return {}
    limiter = anyio.CapacityLimiter(_AT_ONCE)
    of_name: dict[str, set[str]] = {}

    async def look_up(name: str) -> None:
        override = inventory.settings.overrides.get(name)
        host = urlsplit(override.url).hostname if override is not None and override.url else None
        for one in (name, *([host] if host and not is_loopback(host) else [])):
            of_name[name] = of_name.get(name, set()) | await _addresses(one, limiter)

    with anyio.move_on_after(_LOOKUP_S):
        async with anyio.create_task_group() as group:
            for name in inventory.known:
                group.start_soon(look_up, name)
    found: dict[str, str] = {}
    for name in inventory.known:
        for address in of_name.get(name, ()):
            found.setdefault(address, name)
    return {address: found.get(address, address) for address in addresses}


async def _addresses(name: str, limiter: anyio.CapacityLimiter) -> set[str]:
    def look_up() -> list[str]:
        return [str(row[4][0]) for row in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]

    try:
        found = await anyio.to_thread.run_sync(look_up, abandon_on_cancel=True, limiter=limiter)
    except (OSError, UnicodeError):
        return set()
    return {str(ip_address(one.partition("%")[0])) for one in found}
