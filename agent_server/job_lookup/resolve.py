"""Resolve search terms to a process of this host. Pure, and without guessing.

Exact ids come first; a given id that does not exist ends the search. Then names: those of a job before words of its
command line. If several jobs match equally well, all are returned.
"""

from __future__ import annotations

import difflib
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from whystall.agent_server.job_lookup.cmdline import AGENTS
from whystall.agent_server.job_lookup.grouping import job_of, keys_of, names_of
from whystall.agent_server.job_lookup.models import LISTED, Inventory, Job, Process, Resolution, Wanted
from whystall.agent_server.job_lookup.search_terms import SearchTerms, search_terms
from whystall.knowledge_base.faults import generic_program

# How well a name matches: a name of the job, a part of one, a word of its command line.
_FULL_NAME, _PART_OF_NAME, _IN_ARGUMENTS = 3, 2, 1
# difflib's default is 0.6; with 0.8 one letter in five may differ.
_SIMILARITY = 0.8
_LONGEST = 100  # letters of a name that is compared fuzzily
_IDS = ("pid", "slurm_job", "container", "pod_uid", "store")
_SHORTEST = 3  # minimum letters of a part of a name


def resolve(wanted: Wanted, inventory: Inventory) -> Resolution:
    """Return the process that `wanted` means. Without a given rank it is the lowest one of the job; `find` then samples
    which rank is most stalled.
    """
    terms = search_terms(wanted, inventory.host, inventory.addresses)
    search = _Search(inventory)
    host = terms.named_host
    if host is not None and not any(_fit(host, process) for process in search.processes):
        terms = replace(terms, elsewhere=host)
    tried = [f"elsewhere:{terms.elsewhere}"] if terms.elsewhere else []
    processes, how, missing = _by_id(terms, search)
    tried += missing
    if how:
        if terms.alert and (why := _contradiction(terms, processes, how, missing, inventory.host)) is not None:
            return search.nothing([*tried, *how, *why])
        return search.choose(processes, how, tried, terms.rank)
    if terms.bare is not None:
        return _by_number(terms.bare, search, tried, terms.rank)
    # A missing id is final, but for a pod's name, which its processes seldom know.
    if terms.elsewhere is not None or any(kind in _IDS for kind, _ in terms.exact):
        return search.nothing(tried)
    names = [*terms.names, *(value for kind, value in terms.exact if kind in ("pod", "run"))]
    if terms.alert:
        return _by_alert_names(terms, list(dict.fromkeys(names)), search, tried)
    if not names:
        return _only_job(search, [*tried, "words"], terms.rank)
    return _by_name(list(dict.fromkeys(names)), search, tried, terms.rank)


class _Search:
    """The processes and their jobs."""

    def __init__(self, inventory: Inventory) -> None:
        self.inventory = inventory
        self.processes = inventory.processes
        self._keys = keys_of(inventory)
        self._now = inventory.now_s
        self._members: dict[tuple[str, str], list[Process]] = defaultdict(list)
        for process in self.processes:
            self._members[self._keys[process.pid]].append(process)
        self._by_pid = {process.pid: process for process in self.processes}

    def process(self, pid: int) -> Process:
        return self._by_pid[pid]

    def members(self) -> Iterable[Sequence[Process]]:
        return self._members.values()

    def job_of_process(self, process: Process) -> Job:
        key = self._keys[process.pid]
        return job_of(key, self._members[key], self._now)

    def nothing(self, tried: Sequence[str], jobs: Sequence[Job] = ()) -> Resolution:
        kept = list(dict.fromkeys(tried))
        shown = list(jobs)[:LISTED]
        return Resolution(
            status="none", tried=kept, jobs=shown, left_out=len(jobs) - len(shown), missed=self.inventory.missed
        )

    def several(self, jobs: Sequence[Job], how: Sequence[str], tried: Sequence[str]) -> Resolution:
        ordered = sorted(jobs, key=lambda job: (not job.ranks, -job.age_s, job.pid))
        return Resolution(
            status="several",
            jobs=ordered[:LISTED],
            left_out=max(0, len(ordered) - LISTED),
            how=list(how),
            tried=list(tried),
            missed=self.inventory.missed,
        )

    def jobs(self, found: Sequence[Process]) -> list[Job]:
        return list({(job := self.job_of_process(process)).id: job for process in found}.values())

    def choose(
        self, found: Sequence[Process], how: Sequence[str], tried: Sequence[str], rank: int | None
    ) -> Resolution:
        """Return the process of the only job among the matching processes `found`, or several jobs."""
        jobs = {(job := self.job_of_process(process)).id: job for process in found}
        if rank is not None:
            with_rank = {id: job for id, job in jobs.items() if any(r.rank == rank for r in job.ranks)}
            if not with_rank:
                return self.nothing([*tried, *how, f"rank:{rank}"], list(jobs.values()))
            jobs, how = with_rank, [*how, f"rank:{rank}"]
        if len(jobs) != 1:
            return self.several(list(jobs.values()), how, tried)
        job = next(iter(jobs.values()))
        pids = {process.pid for process in found}
        chosen, which, why = _choose_process(job, pids, rank, found[0].identity.rank)
        return Resolution(
            status="found",
            pid=chosen,
            start_ticks=self.process(chosen).start_ticks,
            rank=which,
            job=job,
            how=[*how, *why],
            tried=list(tried),
            missed=self.inventory.missed,
        )


def _choose_process(
    job: Job, found: set[int], rank: int | None, own_rank: int | None
) -> tuple[int, int | None, list[str]]:
    """Return the process of `job`, its rank, and codes of why it was chosen. `found`: matching pids; `own_rank`: of the
    first one.
    """
    ranks = {one.rank: one.pid for one in job.ranks}
    if rank is not None:
        return ranks[rank], rank, []
    of_pid = {pid: number for number, pid in ranks.items()}
    if len(found) == 1:
        only = next(iter(found))
        return only, of_pid.get(only, own_rank), []
    fitting = [number for number, pid in sorted(ranks.items()) if pid in found] or sorted(ranks)
    if fitting:
        first = fitting[0]
        return ranks[first], first, [f"lowest_rank:{first}"] if len(ranks) > 1 else []
    workers = [pid for pid in job.workers if pid in found] or job.workers
    return workers[0], None, [f"first_of:{len(workers)}"] if len(workers) > 1 else []


# --- by id ----------------------------------------------------------------------------------------------------------


def _by_id(terms: SearchTerms, search: _Search) -> tuple[list[Process], list[str], list[str]]:
    """Return the processes that match all existing ids, codes of these ids, and codes of ids that do not exist."""
    left = list(search.processes)
    how: list[str] = []
    missing: list[str] = []
    for kind, value in terms.exact:
        if kind == "pid" and terms.elsewhere is not None:
            continue  # the same pid is another process here
        with_rank = [p for p in left if _HAS[kind](p, value)]
        if with_rank:
            left, how = with_rank, [*how, f"{kind}:{value}"]
        else:
            missing.append(f"{kind}:{value}")
    return (left, how, missing) if how else ([], [], missing)


def _has_container(process: Process, value: str) -> bool:
    known = process.grouped.container
    return known is not None and (known == value or (len(value) >= 12 and known.startswith(value)))


_HAS: dict[str, Callable[[Process, str], bool]] = {
    "pid": lambda p, value: p.pid == int(value),
    "container": _has_container,
    "pod_uid": lambda p, value: p.pod_uid == value,
    "slurm_job": lambda p, value: value in (p.slurm_job, p.identity.slurm_array),
    "pod": lambda p, value: p.identity.pod_name == value,
    "run": lambda p, value: p.identity.run_id == value,
    "store": lambda p, value: p.identity.master == value or _meets_at(p, value),
}


def _meets_at(process: Process, store: str) -> bool:
    """Return whether `process` is a torchrun whose arguments name the rendezvous ``ADDRESS:PORT`` `store`."""
    said = process.words if process.program in AGENTS else ()
    return store in said or set(store.rpartition(":")[::2]) <= set(said)


def _by_number(number: int, search: _Search, tried: Sequence[str], rank: int | None) -> Resolution:
    """Resolve a lone number: a pid or a Slurm job."""
    found = [p for p in search.processes if p.pid == number]
    how = [f"pid:{number}"] if found else []
    jobs = [p for p in search.processes if p.slurm_job == str(number)]
    if jobs and not found:
        return search.choose(jobs, [f"slurm_job:{number}"], tried, rank)
    if jobs:
        both = {job.id: job for job in (search.job_of_process(p) for p in (*found, *jobs))}
        if len(both) > 1:
            return search.several(list(both.values()), [*how, f"slurm_job:{number}"], tried)
    if found:
        return search.choose(found, how, tried, rank)
    return search.nothing([*tried, f"pid:{number}", f"slurm_job:{number}"])


# --- alerts, about which nobody can be asked --------------------------------------------------------------------------


def _contradiction(
    terms: SearchTerms, found: Sequence[Process], how: Sequence[str], missing: Sequence[str], host: Sequence[str]
) -> Sequence[str] | None:
    """Return codes of what in the alert contradicts `found`, or None.

    A pid may belong to another process by now, so it counts only if nothing else in the alert contradicts it.
    """
    kinds = {code.partition(":")[0] for code in how}
    if kinds <= {"pid", "pod", "run"} and any(
        m.partition(":")[0] in ("container", "pod_uid", "slurm_job") for m in missing
    ):
        return []
    if kinds.isdisjoint({"container", "pod_uid"}) and not any(_in_pod(terms, process, host) for process in found):
        return [f"pod:{terms.pod}"]
    if kinds == {"pid"} and terms.programs and not any(_fit(name, p) for name in terms.programs for p in found):
        return [f"name:{name}" for name in terms.programs]
    return None


def _in_pod(terms: SearchTerms, process: Process, host: Sequence[str]) -> bool:
    """Return whether `process` may belong to the alert's pod."""
    if terms.pod is None:
        return True
    identity = process.identity
    name = (
        None if identity.pod_name in host else identity.pod_name
    )  # with host networking, a pod's host name is the host's
    if name is None and process.pod_uid is None:
        return False
    if name not in (None, terms.pod):
        return False
    return None in (identity.namespace, terms.namespace) or identity.namespace == terms.namespace


def _by_alert_names(terms: SearchTerms, names: Sequence[str], search: _Search, tried: Sequence[str]) -> Resolution:
    """Return the job with most of `names`, as whole names; a name from the title only must be stated by the job."""
    scored: list[tuple[int, list[Process], list[str]]] = []
    for members in search.members():
        kept = [process for process in members if _in_pod(terms, process, search.inventory.host)]
        hits = [name for name in names if any(_is_named(name, p, terms) for p in kept)]
        if hits:
            fitting = [p for p in kept if any(_is_named(name, p, terms) for name in hits)]
            scored.append((len(hits), fitting, hits))
    shown = [f"name:{name}" for name in names] or ["words"]
    if not scored:
        return search.nothing([*tried, *shown])
    top = max(count for count, _, _ in scored)
    found = [process for count, fitting, _ in scored if count == top for process in fitting]
    hits = next(names for count, _, names in scored if count == top)
    how = [f"name:{name}" for name in hits]
    if all(generic_program(name) for name in hits):  # programs that any job may run
        return search.several([job for _, fitting, _ in scored for job in search.jobs(fitting)], how, tried)
    return search.choose(found, how, tried, terms.rank)


def _is_named(name: str, process: Process, terms: SearchTerms) -> bool:
    """Return whether `process` is called `name`. What its program and command line call it counts only for a name of a
    label, and not found in a title; of a service only if the alert names this host, or the name is unusual.
    """
    wanted, identity = name.lower(), process.identity
    own = [
        known.lower()
        for known in (identity.job_name, identity.run_id, identity.pod_name, identity.slurm_array)
        if known
    ]
    if wanted in own:
        return True
    if name not in terms.given_names or process.program in _SHELLS:
        return False
    if name in terms.services and not terms.here and not _UNUSUAL.search(wanted):
        return _of_set(wanted, process)
    if any(wanted in (known.lower(), _stem(known.lower())) for known in names_of(process)):
        return True
    if _of_set(wanted, process):
        return True
    parts = {part for word in process.words for part in (word.lower(), *word.lower().split("/"))}
    return not generic_program(wanted) and wanted in parts | {_stem(part) for part in parts}


def _of_set(wanted: str, process: Process) -> bool:
    """Return whether `process` runs in a pod of the set `wanted`."""
    pod = (process.identity.pod_name or "").lower()
    return pod.startswith(f"{wanted}-") and _OF_SET.fullmatch(pod.removeprefix(f"{wanted}-")) is not None


_UNUSUAL = re.compile(r"[0-9_.]")  # in a name: not just any service has it
# Suffixes that Kubernetes adds to the name of a set: an ordinal, five letters, or a hash and five letters.
_OF_SET = re.compile(r"\d+|[a-z0-9]{5}|[a-z0-9]{8,10}-[a-z0-9]{5}")


# --- by name --------------------------------------------------------------------------------------------------------


def _by_name(names: Sequence[str], search: _Search, tried: Sequence[str], rank: int | None) -> Resolution:
    """Return the jobs that match most of `names`, and of these the best."""
    scored: list[tuple[int, int, list[Process], list[str]]] = []
    for members in search.members():
        best = {name: max(_fit(name, process) for process in members) for name in names}
        hits = {name: fit for name, fit in best.items() if fit}
        if hits:
            fitting = [p for p in members if max(_fit(name, p) for name in hits) == max(hits.values())]
            scored.append((len(hits), sum(hits.values()), fitting, [f"name:{name}" for name in hits]))
    if not scored:
        return _by_similar_name(names, search, [*tried, *(f"name:{name}" for name in names)])
    top = max((count, total) for count, total, _, _ in scored)
    best_of = [(found, how) for count, total, found, how in scored if (count, total) == top]
    found = [process for processes, _ in best_of for process in processes]
    return search.choose(found, best_of[0][1], tried, rank)


def _fit(name: str, process: Process) -> int:
    """Return how well `name` matches `process`; 0: not at all."""
    wanted = name.lower()
    called = [known.lower() for known in names_of(process)]
    if any(wanted in (known, _stem(known)) for known in called):
        return _FULL_NAME
    if any(_is_part(wanted, known) for known in called):
        return _PART_OF_NAME
    if process.program in _SHELLS:
        return 0  # its arguments belong to its child
    return _IN_ARGUMENTS if any(_is_part(wanted, word.lower()) for word in process.words) else 0


_SHELLS = frozenset(
    {"bash", "sh", "dash", "zsh", "ksh", "fish", "su", "sudo", "env", "timeout", "nohup", "ssh", "grep"}
)


def _stem(name: str) -> str:
    leaf = name.rpartition("/")[2]
    return leaf.rpartition(".")[0] or leaf


def _is_part(wanted: str, name: str) -> bool:
    """Return whether `wanted` is a delimited part of `name`: llama-7b of runs/llama-7b-v2.yaml, not of xllama-7b."""
    if wanted == name:
        return True
    if len(wanted) < _SHORTEST:
        return False
    start = name.find(wanted)
    while start >= 0:
        end = start + len(wanted)
        before, after = name[start - 1 : start], name[end : end + 1]
        if not (before.isalnum() and before.isascii()) and not (after.isalnum() and after.isascii()):
            return True
        start = name.find(wanted, start + 1)
    return False


def _by_similar_name(names: Sequence[str], search: _Search, tried: Sequence[str]) -> Resolution:
    """Return jobs with a similar name, to be confirmed."""
    found: dict[str, Job] = {}
    for members in search.members():
        known = {other.lower() for process in members for other in (*names_of(process),) if len(other) > _SHORTEST}
        known |= {_stem(name) for name in known}
        if any(
            difflib.get_close_matches(name.lower(), known, 1, _SIMILARITY)
            for name in names
            if _SHORTEST < len(name) <= _LONGEST
        ):
            job = search.job_of_process(members[0])
            found[job.id] = job
    return search.several(list(found.values()), ["close"], tried) if found else search.nothing(tried)


def _only_job(search: _Search, tried: Sequence[str], rank: int | None) -> Resolution:
    """Return the only job with ranks, or all jobs with ranks, if no job was named."""
    ranked = [members for members in search.members() if any(p.identity.rank is not None for p in members)]
    if rank is not None and ranked:
        return search.choose([p for members in ranked for p in members], [], tried, rank)
    if len(ranked) == 1:
        return search.choose(ranked[0], ["only_job"], [], None)
    jobs = [search.job_of_process(members[0]) for members in ranked]
    if jobs:
        return search.several(jobs, [], tried)
    return search.nothing([*tried, *([f"rank:{rank}"] if rank is not None else [])])
