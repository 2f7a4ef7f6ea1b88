"""Two hosts as network namespaces, with a link between them that can be made slow, narrow or lossy."""

from __future__ import annotations

import sys
from collections.abc import Generator

from benchmarks.faults.case import PARTS, Case
from benchmarks.faults.injectors.disks import call

HERE, THERE = "10.77.0.1", "10.77.0.2"
_DEVICES = ("eth7", "eth8")


def _hosts(case: Case, there: list[str]) -> tuple[str, str]:
    """Make two namespaces; programs of the roles in `there` run in the second one, `job` in the first."""
    names = (f"{case.name}-a", f"{case.name}-b")
    for name in names:
        case.journal.add("run", ["ip", "netns", "del", name])
        call("ip", "netns", "add", name)
        call("ip", "-n", name, "link", "set", "lo", "up")
    for process in case.scenario.processes:
        case.wrap(process.role, ["ip", "netns", "exec", names[process.role in there]])
    case.facts |= {"here": HERE, "there": THERE}
    return names


def _cable(case: Case, there: list[str]) -> tuple[str, str]:
    """Make both hosts, connected by a pair of virtual Ethernet devices."""
    hosts = _hosts(case, there)
    call(
        *("ip", "link", "add", _DEVICES[0], "netns", hosts[0]),
        *("type", "veth", "peer", "name", _DEVICES[1], "netns", hosts[1]),
    )
    for host, device, address in zip(hosts, _DEVICES, (HERE, THERE), strict=True):
        call("ip", "-n", host, "addr", "add", f"{address}/24", "dev", device)
        call("ip", "-n", host, "link", "set", device, "up")
    return hosts


def narrow_link(case: Case, mbit: float, there: list[str]) -> Generator[None, None, None]:
    """Connect the hosts by a pair of virtual Ethernet devices; later shape both directions (tbf)."""
    hosts = _cable(case, there)
    yield
    for host, device in zip(hosts, _DEVICES, strict=True):
        shape = ("tbf", "rate", f"{mbit}mbit", "burst", "32k", "latency", "100ms")
        call("ip", "netns", "exec", host, "tc", "qdisc", "add", "dev", device, "root", *shape)


def emulated_link(
    case: Case, there: list[str], delay_ms: int = 0, loss_pct: float = 0.0, mbit: float = 0.0
) -> Generator[None, None, None]:
    """Connect the hosts by a pair of virtual Ethernet devices; later emulate a long, lossy or narrow link (netem).

    Both directions are delayed, lose packets, and are limited to `mbit`; 0: not so.
    """
    hosts = _cable(case, there)
    yield
    shape = ["delay", f"{delay_ms}ms"]
    shape += ["loss", f"{loss_pct}%"] if loss_pct else []
    shape += ["rate", f"{mbit}mbit"] if mbit else []
    for host, device in zip(hosts, _DEVICES, strict=True):
        call("ip", "netns", "exec", host, "tc", "qdisc", "add", "dev", device, "root", "netem", *shape)


def relayed_link(
    case: Case, there: list[str], delay_s: float = 0.0, loss_pct: float = 0.0, role: str = "link"
) -> Generator[None, None, None]:
    """Connect the hosts by a program that passes packets on; later it delays or drops some of them."""
    hosts = _hosts(case, there)
    for host, address in zip(hosts, (HERE, THERE), strict=True):
        call("ip", "-n", host, "tuntap", "add", "dev", "tun7", "mode", "tun")
        call("ip", "-n", host, "addr", "add", f"{address}/24", "dev", "tun7")
        call("ip", "-n", host, "link", "set", "tun7", "up")
    path = case.install_program(PARTS / "tunnel.py", "tunnel.py")
    settings = case.write_settings(role, {"hosts": list(hosts), "delay_s": 0.0, "loss": 0.0})
    case.spawn(role, [sys.executable, str(path), str(settings)])
    case.wait_ready(role)
    yield
    case.change(role, {"delay_s": delay_s, "loss": loss_pct / 100})
