"""What labels of alerts state; tickets whose alerts concern the same node, job, pod or GPU at about the same time.

The tickets are only possibly related; merging takes a diagnosis that shows the same fault (`TicketService.attach`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime

from whystall.agent_server.stores import Stores
from whystall.agent_server.ticketing.stall_tickets import is_alert_on_stall, subject_of
from whystall.knowledge_base.classify.severities import severity_of_word
from whystall.knowledge_base.ticket_models import Link, Ticket
from whystall.knowledge_base.times import rfc3339
from whystall.tools.contract.findings import Severity
from whystall.tools.node.vantage import host_name

LINKS = 5
"""Maximum links added to one ticket at a time."""
_THINGS = 200  # per ticket
# Conventional label names of Prometheus exporters, kube-state-metrics, dcgm-exporter and Slurm exporters.
_NAMES = {
    "node": (
        *("node", "nodename", "node_name", "host", "hostname", "host_name", "kubernetes_node", "Hostname", "machine"),
        *("主机", "主机名", "节点", "节点名", "机器", "服务器"),
    ),
    "slurm": ("slurm_job_id", "slurm_jobid", "slurm_job", "jobid", "job_id", "SLURM_JOB_ID"),
    "job": ("job_name", "training_job", "exported_job", "workload", "run_name"),
    "gpu": ("gpu_uuid", "uuid", "UUID", "GPU_UUID"),
}
SEVERITY_LABELS = ("severity", "priority", "level", "级别", "告警级别", "等级", "告警等级", "严重程度")
"""Labels in which senders state how severe an alert is; the first that is there counts."""
_PORT = re.compile(r"(?P<host>[^:]+|\[[0-9a-fA-F:]+\]):\d{1,5}")


def things_of(labels: Mapping[str, str]) -> list[str]:
    """Return what an alert concerns: ``node:gpu03``, ``slurm:4711``, ``pod:ml/train-0``, ``job:llm-7b``; an alert of
    our own rules also ``stall:gpu03/llm-7b``.

    Prometheus' ``job`` is the scrape job, which many nodes share; it counts only without an ``instance``.
    """
    found = [f"{kind}:{labels[name]}" for kind, names in _NAMES.items() for name in names if labels.get(name)]
    if instance := labels.get("instance"):
        address = _PORT.fullmatch(instance)
        found.append(f"node:{address['host'] if address else instance}")
    elif job := labels.get("job"):
        found.append(f"job:{job}")
    if pod := labels.get("pod"):
        found.append(f"pod:{labels.get('namespace', '')}/{pod}")
    if is_alert_on_stall(labels) and (stall := subject_of(labels)) is not None:
        found.append(stall)
    return list(dict.fromkeys(found))


def hosts_of(things: Iterable[str], most: int = 3) -> list[str]:
    """Return at most `most` hosts among `things`, each once."""
    found = dict.fromkeys(name for kind, _, name in (thing.partition(":") for thing in things) if kind == "node")
    return list(found)[:most]


def names_this_host(things: Iterable[str]) -> bool:
    """Return whether `things` name this host and no other one."""
    known = list(things)
    return bool(hosts_of(known)) and not other_hosts(known)


def other_hosts(things: Iterable[str]) -> list[str]:
    """Return the hosts among `things` besides this one, each once."""
    own = host_name().partition(".")[0].casefold()
    hosts = [value for kind, _, value in (thing.partition(":") for thing in things) if kind == "node"]
    local = {own, "localhost", "127.0.0.1", "[::1]"}
    return [host for host in dict.fromkeys(hosts) if host.casefold() not in local and _bare(host) != own]


def _bare(host: str) -> str:
    """Return the name of a host without its domain; an address as it is."""
    first = host.partition(".")[0].casefold()
    return host if first.isdigit() else first


def severity_word(labels: Mapping[str, str]) -> str:
    """Return the severity of an alert in its sender's word; empty without any."""
    return next((labels[name] for name in SEVERITY_LABELS if name in labels), "")


def severity_of(labels: Mapping[str, str]) -> Severity | None:
    """Return the severity of an alert; None if its sender states none that is known."""
    word = severity_word(labels)
    return severity_of_word(word) if word else None


def relate(kb: Stores, ticket: Ticket, things: Iterable[str], at: datetime, minutes: int) -> Ticket:
    """Link `ticket` to open tickets that concern the same `things` and began within `minutes`; return it."""
    about = list(dict.fromkeys(things))[:_THINGS]
    cause = ticket.classification.cause if ticket.classification is not None else None
    if cause is not None:
        about.append(f"cause:{cause.value}")
    if not about or minutes == 0:
        return ticket
    moment, span = at.timestamp(), 60.0 * minutes
    known = {ticket.id, *(link.ticket for link in ticket.links)}
    shared: dict[str, list[str]] = defaultdict(list)
    for other, thing in kb.alerts.tickets_about(about, moment - span, moment + span):
        if other not in known:
            shared[other].append(thing)
    # A shared cause alone is a weak hint: use it only without a better one, and for one link.
    strong = [other for other in shared if any(not thing.startswith("cause:") for thing in shared[other])]
    nearest = sorted(strong, key=lambda other: (-len(shared[other]), -int(other)))[:LINKS] or list(shared)[:1]
    for other in nearest:
        link = Link(kind="related", ticket=other, why=sorted(shared[other])[:10], by="engine", at=rfc3339(at))
        ticket = kb.tickets.link(ticket.id, link)
    kb.alerts.put_subjects(ticket.id, about, moment)
    return ticket
