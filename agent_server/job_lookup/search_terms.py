"""Extract search terms from words or labels: exact ids, ranks, names. Pure.

The labels of alerts follow no standard; the names here are those of kube-state-metrics and cAdvisor (``pod``,
``namespace``, ``container_id``, ``uid``, ``id``), node_exporter and process-exporter (``instance``, ``groupname``),
prometheus-slurm-exporter and NVIDIA's DCGM exporter (``hpc_job``, ``Hostname``, ``pod``), and common custom ones.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass

from whystall.agent_server.job_lookup.models import Wanted
from whystall.knowledge_base.lexicon import plain_word
from whystall.tools.contract.text import clean

TEXT_LIMIT = 2000
_NAMES = 32

# Labels with an exact id, by kind.
_LABELS = {
    "pid": ("pid", "process_pid", "process_id"),
    "container": ("container_id", "containerid", "docker_id", "id", "cgroup", "cgroup_path"),
    "pod_uid": ("pod_uid", "uid", "poduid"),
    "slurm_job": ("slurm_job_id", "slurm_jobid", "slurm_job", "slurmjobid", "hpc_job", "jobid", "job_id"),
    "pod": ("pod", "pod_name", "podname", "kubernetes_pod_name", "exported_pod", "k8s_pod_name"),
    "run": ("run_id", "torchelastic_run_id", "rdzv_id"),
    "rank": ("rank", "global_rank", "torch_rank"),
}
_NAME_LABELS = (
    *("job_name", "training_job", "train_job", "exported_job", "slurm_job_name", "jobname", "workload", "deployment"),
    *("statefulset", "app", "process", "process_name", "comm", "groupname", "command", "program", "service", "model"),
    *("experiment", "run_name", "run", "task", "task_name", "label_app", "app_kubernetes_io_name", "container"),
)
_PROGRAM_LABELS = ("comm", "process", "process_name", "program", "command", "groupname")
# Labels whose value names a service, which runs on many hosts: alone they name no process of this one.
_SERVICE_LABELS = frozenset(
    {
        "app",
        "service",
        "label_app",
        "app_kubernetes_io_name",
        "deployment",
        "workload",
        "container",
        "task",
        "task_name",
    }
)
# Exporters are named in the labels of metrics that concern other programs.
_SCRAPED = re.compile(
    r"(?:^|[-_.])(?:exporter|kube-state-metrics|cadvisor|kubelet|prometheus|pushgateway|telegraf|otel-collector"
    r"|node-problem-detector|metrics-server|alertmanager)(?:$|[-_.])",
    re.I,
)
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}", re.I)
_HOST_LABELS = ("node", "host", "hostname", "nodename", "node_name", "exported_node", "instance")

_COUNT = r"(?!\s*(?:of\b|out of\b|/|times\b|次|个))"  # "process 3 of 8" counts them
# In the title of an alert, which is free text, only these cannot mean a count.
_UNAMBIGUOUS = re.compile(r"^(?:pid|tgid|slurm)", re.I)
_PID = re.compile(
    r"(?<![\w.])(?:pid|tgid|process(?: id)?|进程号?|進程號?)\s*[:=#＝：]?\s*(?P<pid>[0-9]{1,7})(?![\w.])" + _COUNT,
    re.I | re.A,
)
_RANK = re.compile(
    r"(?<![\w.])(?:global[ _-]?)?ranks?\s*[:=#＝：-]?\s*(?P<a>[0-9]{1,7})(?![\w.])"
    r"|(?P<b>[0-9]{1,7})\s*号\s*(?:rank|卡|进程)|第\s*(?P<c>[0-9]{1,7})\s*(?:个|号)?\s*(?:rank|卡)",
    re.I | re.A,
)
_SLURM = re.compile(
    r"(?<![\w.])(?:slurm(?:[ _-]?job)?|job(?:[ _-]?id)?|作业号?|任务号?)\s*[:=#＝：]?\s*(?P<job>[0-9]{1,12})(?![\w.-])"
    + _COUNT,
    re.I | re.A,
)
STORE = r"[A-Za-z0-9_.:\[\]-]{1,253}:[0-9]{1,5}"
"""``ADDRESS:PORT`` of a store of torchrun; an IPv6 address may have brackets."""
_STORE = re.compile(rf"(?<![\w.])torchrun\s+(?P<store>{STORE})(?![\w.:-])", re.I | re.A)
_UID = re.compile(r"(?<![0-9a-f-])[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![0-9a-f-])", re.I | re.A)
_CONTAINER = re.compile(r"(?<![\w-])(?:[a-z-]+://)?(?P<id>[0-9a-f]{12,64})(?![\w-])", re.I | re.A)
_NAMED_HOST = re.compile(
    r"(?<![\w-])(?:node|host|machine|server|节点|主机|机器|服务器)\s*[:：]?\s*(?P<a>[a-z][\w.-]*\d[\w.-]*)"
    r"|(?P<b>(?<![\w.-])[a-z][\w.-]*\d[\w-]*)\s*(?:这台|那台)?(?:节点|主机|机器|服务器)",
    re.I | re.A,
)
# A host in the title of an alert: node x7, on dgx-07, @cn012. ``gpu3`` is a device.
_HOST_IN_TITLE = re.compile(
    r"(?:\b(?:node|host|machine)|节点|主机|机器)\s*[:=：]?\s*(?P<named>[a-z][\w.-]*\d[\w-]*)"
    r"|(?:\bon|\bat|\bof|\bfrom|@|在)\s*(?P<host>(?:[a-z]+[-_])*(?:(?:gpu|npu)[-_]|(?:node|host|cn|dgx|hgx|srv|server|"
    r"worker|compute)[-_]?)\d[a-z0-9-]*(?:\.[a-z][a-z0-9.-]*)?)(?![\w-])",
    re.I | re.A,
)
_TOKEN = re.compile(r"[A-Za-z0-9_][\w./:@+-]*[A-Za-z0-9_]|[A-Za-z0-9_]", re.A)
_ADDRESS = re.compile(r"^(?:[0-9.]+|\[?[0-9a-fA-F:]+\]?)(?::[0-9]+)?$")


@dataclass(frozen=True)
class SearchTerms:
    """What to search for.

    `exact`: kind and id, by decreasing trust; `names`: possible names, of which `given_names` were given as such, not
    only found in a sentence; `bare`: a lone number; `elsewhere`: another host that the labels, or the title of an
    alert, name; `named_host`: a word for a host other than this one. `alert`: from labels, with `pod`, `namespace` and
    `programs`, which a process must not contradict. `services`: of `given_names`, those that name a service; `here`:
    the labels name this host.
    """

    exact: tuple[tuple[str, str], ...]
    names: tuple[str, ...]
    given_names: frozenset[str]
    rank: int | None
    bare: int | None
    elsewhere: str | None
    named_host: str | None = None
    alert: bool = False
    pod: str | None = None
    namespace: str | None = None
    programs: tuple[str, ...] = ()
    services: frozenset[str] = frozenset()
    here: bool = False


def search_terms(wanted: Wanted, host: tuple[str, ...], addresses: tuple[str, ...] = ()) -> SearchTerms:
    """Return the terms of `wanted`, on a host with the names `host` and `addresses` (empty: unknown)."""
    labels = _measured_labels({name.lower(): value for name, value in wanted.labels.items()})
    exact = list(_exact(labels))
    if wanted.pid is not None:
        exact.insert(0, ("pid", str(wanted.pid)))
    text = clean(wanted.text, TEXT_LIMIT)
    rank = wanted.rank
    if rank is None and (given := _label(labels, "rank")) is not None and given.isdigit():
        rank = int(given)
    text, found, rank = _ids_in_text(text, rank, alert=bool(labels))
    exact += found
    given_names = [value for name in _NAME_LABELS if (value := labels.get(name)) and len(value) <= 200]
    names, bare = _names(text, alert=bool(labels))
    place = _host_label(labels, addresses)
    elsewhere = _elsewhere(place, host, addresses)
    if labels and place is None:
        elsewhere = _host_in_title(text, host)
    kept = list(dict.fromkeys([*given_names, *names]))[:_NAMES]
    return SearchTerms(
        exact=tuple(dict.fromkeys(exact)),
        names=tuple(kept),
        given_names=frozenset(given_names),
        rank=rank,
        bare=bare if not exact else None,
        elsewhere=elsewhere,
        named_host=_named_host(text, host) if not labels else None,
        alert=bool(labels),
        pod=_label(labels, "pod"),
        namespace=labels.get("namespace"),
        programs=tuple(value for name in _PROGRAM_LABELS if (value := labels.get(name))),
        services=frozenset(value for name in _SERVICE_LABELS if (value := labels.get(name))),
        here=place is not None and elsewhere is None,
    )


def words_for_host(wanted: Wanted) -> str | None:
    """Return words by which ``find_job`` of the alert's host finds its job, and no other: a Slurm job, a container or a
    pod's uid. None: the alert has no such id. A pid may belong to another process by now.
    """
    terms = search_terms(wanted, ())
    phrases = {"slurm_job": "slurm job {}", "container": "container {}", "pod_uid": "{}"}
    words = next((phrases[kind].format(value) for kind, value in terms.exact if kind in phrases), None)
    return f"{words} rank {terms.rank}" if words is not None and terms.rank is not None else words


def _measured_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of the measured object: without names of exporters, and with ``exported_NAME`` as ``NAME``."""
    own = {name: value for name, value in labels.items() if not _SCRAPED.search(value) or name in _HOST_LABELS}
    exported = {name.removeprefix("exported_"): value for name, value in labels.items() if name.startswith("exported_")}
    return own | {name: value for name, value in exported.items() if name != "job"}


def _label(labels: Mapping[str, str], kind: str) -> str | None:
    return next((labels[name] for name in _LABELS[kind] if labels.get(name)), None)


def _exact(labels: Mapping[str, str]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for kind in ("container", "pod_uid", "slurm_job", "pid", "pod", "run"):
        value = _label(labels, kind)
        if value is None:
            continue
        if kind == "container":
            ids = re.findall(r"[0-9a-f]{64}|(?<![0-9a-f])[0-9a-f]{12}(?![0-9a-f])", value)
            found += [(kind, ids[-1])] if ids else []
        elif kind in ("pid", "slurm_job"):
            found += [(kind, value)] if re.fullmatch(r"[0-9]{1,12}", value) else []
        elif kind == "pod_uid":
            found += [(kind, value.lower())] if _UUID.fullmatch(value) else []  # a ``uid`` may be that of a user
        else:
            found.append((kind, clean(value, 300)))
    return found


def _ids_in_text(text: str, rank: int | None, alert: bool) -> tuple[str, list[tuple[str, str]], int | None]:
    """Return `text` without ids, the ids, and the rank."""
    found: list[tuple[str, str]] = []
    if not alert:  # first: an address may hold numbers that look like other ids
        found += [("store", match["store"]) for match in _STORE.finditer(text)]
        text = _STORE.sub(" ", text)
    for kind, pattern, group in (("pid", _PID, "pid"), ("slurm_job", _SLURM, "job")):
        meant = [match for match in pattern.finditer(text) if not alert or _UNAMBIGUOUS.match(match[0])]
        found += [(kind, match[group].lstrip("0") or "0") for match in meant]
        text = pattern.sub(" ", text)
    if (match := _RANK.search(text)) is not None:
        rank = rank if rank is not None else int(match["a"] or match["b"] or match["c"])
        text = _RANK.sub(" ", text)
    for match in _UID.finditer(text):
        found.append(("pod_uid", match[0].lower()))
    text = _UID.sub(" ", text)
    for match in _CONTAINER.finditer(text):
        if not match["id"].isdigit():
            found.append(("container", match["id"].lower()))
    return _CONTAINER.sub(lambda m: m[0] if m["id"].isdigit() else " ", text), found, rank


def _names(text: str, alert: bool) -> tuple[list[str], int | None]:
    """Return possible names in `text` and a lone number. In the title of an alert only unusual words in lower case are
    names: capitals are abbreviations and names of alerts (``NCCL``, ``GPUXidError``).
    """
    tokens = [token.strip("._-/:") for token in _TOKEN.findall(text)]
    numbers = [int(t) for t in tokens if re.fullmatch(r"[0-9]{1,12}", t)]
    named = [t for t in tokens if t and not t.isdigit()]
    marked = [t for t in named if may_be_name(t)]
    if marked or alert:
        named = [t for t in marked if t == t.lower()] if alert else marked
    return list(dict.fromkeys(named)), numbers[0] if len(numbers) == 1 and not named and not alert else None


_QUANTITY = re.compile(r"[0-9][0-9.]*(?:x|k|st|nd|rd|th|us|ms|s|min|h|d|[kmgt]i?b(?:/s)?|fps|hz)")


def may_be_name(token: str) -> bool:
    """Return whether `token` is neither a plain word nor a quantity (``3x``, ``800ms``)."""
    if _QUANTITY.fullmatch(token.lower()):
        return False
    if re.search(r"[0-9_./:@+]", token) and re.search(r"[A-Za-z]", token):
        return True
    parts = [part for part in token.lower().split("-") if part]
    return token.isascii() and any(part.isalpha() and len(part) > 2 and not plain_word(part) for part in parts)


def _named_host(text: str, host: tuple[str, ...]) -> str | None:
    """Return the host named in `text` if it is another one."""
    match = _NAMED_HOST.search(text)
    return _elsewhere(match["a"] or match["b"], host, ()) if match is not None else None


def _host_in_title(text: str, host: tuple[str, ...]) -> str | None:
    """Return the host that the title of an alert names if it is another one."""
    match = _HOST_IN_TITLE.search(text)
    return _elsewhere(match["named"] or match["host"], host, ()) if match is not None else None


def _host_label(labels: Mapping[str, str], addresses: tuple[str, ...]) -> str | None:
    """Return the first host that the labels name; without addresses if ours are unknown."""
    for name in _HOST_LABELS:
        value = labels.get(name, "").strip()
        if not value or "/" in value or value.partition(":")[0].lower() in ("localhost", ""):
            continue
        if _ADDRESS.match(value) and (not addresses or _address(value) is None):
            continue
        return value
    return None


def _elsewhere(value: str | None, host: tuple[str, ...], addresses: tuple[str, ...]) -> str | None:
    """Return the host `value` if it is another one."""
    if value is None:
        return None
    if _ADDRESS.match(value) and (address := _address(value)) is not None:
        ours = address.is_loopback or str(address) in addresses
        return None if ours else clean(str(address), 200)
    known = {one.lower() for one in host}
    bare = value.partition(":")[0].lower()
    short, _, domain = bare.partition(".")
    if bare in known or (short in known and (not domain or not any("." in one for one in known))):
        return None
    return clean(bare, 200)


def _address(value: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address in ``10.0.0.7:9100``, ``[fe80::1]:9100`` or alone; None if it is invalid."""
    found = re.fullmatch(r"\[(?P<six>[^]]+)\](?::\d+)?|(?P<four>[\d.]+)(?::\d+)?|(?P<bare>.+)", value)
    try:
        return ipaddress.ip_address(next(part for part in found.groups() if part)) if found else None
    except ValueError:
        return None
