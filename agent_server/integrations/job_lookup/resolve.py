"""Which process of this host is meant. Pure: nothing is read, and nothing is guessed.

Exact ids first; one that is given and not there ends it, whatever else matches. Then names: what a job calls itself
before what its command line only mentions. Where several jobs fit equally well, all are told.
"""

from __future__ import annotations

import difflib
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from whystall.agent_server.integrations.job_lookup.grouping import job_of, keys_of, names_of
from whystall.agent_server.integrations.job_lookup.models import LISTED, Inventory, Job, Process, Resolution, Wanted
from whystall.agent_server.integrations.job_lookup.search_terms import SearchTerms, search_terms
from whystall.knowledge_base.faults import generic_program

# How well a name fits: what a job is called, a part of that, what its command line mentions.
_CALLED, _PART, _MENTIONED = 3, 2, 1
# difflib's own "close match" is 0.6; with 0.8 one letter in five may be wrong.
_CLOSE = 0.8
_LONGEST = 100  # letters of a name that is compared letter by letter
_IDS = ("pid", "slurm_job", "container", "pod_uid")
_SHORTEST = 3  # letters of a name that may be a part of another


def resolve(wanted: Wanted, inventory: Inventory) -> Resolution:
    """The process that `wanted` means; see `Resolution`. Of a job with several ranks, and none asked for, it is the one
    with the lowest; `find` looks which of them suffers.
    """
    sought = search_terms(wanted, inventory.host, inventory.addresses)
    search = _Search(inventory)
    said = sought.said_host
    if said is not None and not any(_fit(said, process) for process in search.processes):
        sought = replace(sought, elsewhere=said)
    tried = [f"elsewhere:{sought.elsewhere}"] if sought.elsewhere else []
    processes, how, missing = _by_id(sought, search)
    tried += missing
    if how:
        if sought.alert and (why := _doubt(sought, processes, how, missing, inventory.host)) is not None:
            return search.nothing([*tried, *how, *why])
        return search.settle(processes, how, tried, sought.rank)
    if sought.bare is not None:
        return _by_number(sought.bare, search, tried, sought.rank)
    # An id that is not here settles it; the name of a pod is seldom told to its processes, and its words may still fit
    if sought.elsewhere is not None or any(kind in _IDS for kind, _ in sought.exact):
        return search.nothing(tried)
    names = [*sought.names, *(value for kind, value in sought.exact if kind in ("pod", "run"))]
    if sought.alert:
        return _of_alert(sought, list(dict.fromkeys(names)), search, tried)
    if not names:
        return _unnamed(search, [*tried, "words"], sought.rank)
    return _by_name(list(dict.fromkeys(names)), search, tried, sought.rank)


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
        """The process `pid`."""
        return self._by_pid[pid]

    def members(self) -> Iterable[Sequence[Process]]:
        """The processes of each job."""
        return self._members.values()

    def whole(self, process: Process) -> Job:
        """The job of `process`."""
        key = self._keys[process.pid]
        return job_of(key, self._members[key], self._now)

    def nothing(self, tried: Sequence[str], jobs: Sequence[Job] = ()) -> Resolution:
        """Nothing was found."""
        kept = list(dict.fromkeys(tried))
        shown = list(jobs)[:LISTED]
        return Resolution(
            status="none", tried=kept, jobs=shown, left_out=len(jobs) - len(shown), missed=self.inventory.missed
        )

    def several(self, jobs: Sequence[Job], how: Sequence[str], tried: Sequence[str]) -> Resolution:
        """More than one may be meant."""
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
        """The jobs of `found`, each once."""
        return list({(job := self.whole(process)).id: job for process in found}.values())

    def settle(
        self, found: Sequence[Process], how: Sequence[str], tried: Sequence[str], rank: int | None
    ) -> Resolution:
        """What `found`, which all fit, leaves to choose: one job and the process of it to look at, or a question."""
        jobs = {(job := self.whole(process)).id: job for process in found}
        if rank is not None:
            having = {id: job for id, job in jobs.items() if any(r.rank == rank for r in job.ranks)}
            if not having:
                return self.nothing([*tried, *how, f"rank:{rank}"], list(jobs.values()))
            jobs, how = having, [*how, f"rank:{rank}"]
        if len(jobs) != 1:
            return self.several(list(jobs.values()), how, tried)
        job = next(iter(jobs.values()))
        pids = {process.pid for process in found}
        chosen, which, why = _which(job, pids, rank, found[0].identity.rank)
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


def _which(job: Job, found: set[int], rank: int | None, own_rank: int | None) -> tuple[int, int | None, list[str]]:
    """The process of `job` to look at, its rank, and codes of why that one; `found`: those that fit,
    of which the first says that it is `own_rank`.
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


def _by_id(sought: SearchTerms, search: _Search) -> tuple[list[Process], list[str], list[str]]:
    """The processes that have every id that any process has, codes of these ids, and codes of those nobody has."""
    left = list(search.processes)
    how: list[str] = []
    missing: list[str] = []
    for kind, value in sought.exact:
        if kind == "pid" and sought.elsewhere is not None:
            continue  # that number means another process here
        having = [p for p in left if _HAS[kind](p, value)]
        if having:
            left, how = having, [*how, f"{kind}:{value}"]
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
}


def _by_number(number: int, search: _Search, tried: Sequence[str], rank: int | None) -> Resolution:
    """A number alone may be that of a process, or of a job."""
    found = [p for p in search.processes if p.pid == number]
    how = [f"pid:{number}"] if found else []
    jobs = [p for p in search.processes if p.slurm_job == str(number)]
    if jobs and not found:
        return search.settle(jobs, [f"slurm_job:{number}"], tried, rank)
    if jobs:
        both = {job.id: job for job in (search.whole(p) for p in (*found, *jobs))}
        if len(both) > 1:
            return search.several(list(both.values()), [*how, f"slurm_job:{number}"], tried)
    if found:
        return search.settle(found, how, tried, rank)
    return search.nothing([*tried, f"pid:{number}", f"slurm_job:{number}"])


# --- what an alert says, who cannot be asked --------------------------------------------------------------------------


def _doubt(
    sought: SearchTerms, found: Sequence[Process], how: Sequence[str], missing: Sequence[str], host: Sequence[str]
) -> Sequence[str] | None:
    """Codes of why `found`, which have ids of an alert, are not what it means; None: they may be.

    A number of a process is that of another one elsewhere and later: it counts only where nothing else that the alert
    says speaks against it.
    """
    kinds = {code.partition(":")[0] for code in how}
    if kinds <= {"pid", "pod", "run"} and any(
        m.partition(":")[0] in ("container", "pod_uid", "slurm_job") for m in missing
    ):
        return []
    if kinds.isdisjoint({"container", "pod_uid"}) and not any(_in_pod(sought, process, host) for process in found):
        return [f"pod:{sought.pod}"]
    if kinds == {"pid"} and sought.programs and not any(_fit(name, p) for name in sought.programs for p in found):
        return [f"name:{name}" for name in sought.programs]
    return None


def _in_pod(sought: SearchTerms, process: Process, host: Sequence[str]) -> bool:
    """Whether `process` may be of the pod that is sought, as far as it says."""
    if sought.pod is None:
        return True
    said = process.identity
    name = None if said.pod_name in host else said.pod_name  # in the network of the host, a pod is called as it is
    if name is None and process.pod_uid is None:
        return False
    if name not in (None, sought.pod):
        return False
    return None in (said.namespace, sought.namespace) or said.namespace == sought.namespace


def _of_alert(sought: SearchTerms, names: Sequence[str], search: _Search, tried: Sequence[str]) -> Resolution:
    """The job that bears one of `names`: as it is called, not as parts of it or of a command line are; what stands in
    the title alone has to be what a job calls itself.
    """
    scored: list[tuple[int, list[Process], list[str]]] = []
    for members in search.members():
        kept = [process for process in members if _in_pod(sought, process, search.inventory.host)]
        hits = [name for name in names if any(_bears(name, p, name in sought.sure) for p in kept)]
        if hits:
            fitting = [p for p in kept if any(_bears(name, p, name in sought.sure) for name in hits)]
            scored.append((len(hits), fitting, hits))
    shown = [f"name:{name}" for name in names] or ["words"]
    if not scored:
        return search.nothing([*tried, *shown])
    top = max(count for count, _, _ in scored)
    found = [process for count, fitting, _ in scored if count == top for process in fitting]
    hits = next(names for count, _, names in scored if count == top)
    how = [f"name:{name}" for name in hits]
    if all(generic_program(name) for name in hits):  # which any job may run
        return search.several([job for _, fitting, _ in scored for job in search.jobs(fitting)], how, tried)
    return search.settle(found, how, tried, sought.rank)


def _bears(name: str, process: Process, given: bool) -> bool:
    """Whether `process` is called `name`, which is `given` as a name or stands in a title only."""
    wanted, said = name.lower(), process.identity
    own = [known.lower() for known in (said.job_name, said.run_id, said.pod_name, said.slurm_array) if known]
    if wanted in own:
        return True
    if not given or process.program in _SHELLS:
        return False
    if any(wanted in (known.lower(), _stem(known.lower())) for known in names_of(process)):
        return True
    if said.pod_name is not None and _OF_SET.fullmatch(said.pod_name.lower().removeprefix(f"{wanted}-")):
        return said.pod_name.lower().startswith(f"{wanted}-")
    parts = {part for word in process.words for part in (word.lower(), *word.lower().split("/"))}
    return not generic_program(wanted) and wanted in parts | {_stem(part) for part in parts}


# What Kubernetes adds to the name of a set: an ordinal, five letters, or a hash and five letters
_OF_SET = re.compile(r"\d+|[a-z0-9]{5}|[a-z0-9]{8,10}-[a-z0-9]{5}")


# --- by name --------------------------------------------------------------------------------------------------------


def _by_name(names: Sequence[str], search: _Search, tried: Sequence[str], rank: int | None) -> Resolution:
    """The jobs that fit most of `names`, and of these best."""
    scored: list[tuple[int, int, list[Process], list[str]]] = []
    for members in search.members():
        best = {name: max(_fit(name, process) for process in members) for name in names}
        hits = {name: fit for name, fit in best.items() if fit}
        if hits:
            fitting = [p for p in members if max(_fit(name, p) for name in hits) == max(hits.values())]
            scored.append((len(hits), sum(hits.values()), fitting, [f"name:{name}" for name in hits]))
    if not scored:
        return _close(names, search, [*tried, *(f"name:{name}" for name in names)])
    top = max((count, total) for count, total, _, _ in scored)
    best_of = [(found, how) for count, total, found, how in scored if (count, total) == top]
    found = [process for processes, _ in best_of for process in processes]
    return search.settle(found, best_of[0][1], tried, rank)


def _fit(name: str, process: Process) -> int:
    """How well `name` fits `process`; 0: not at all."""
    wanted = name.lower()
    called = [known.lower() for known in names_of(process)]
    if any(wanted in (known, _stem(known)) for known in called):
        return _CALLED
    if any(_is_part(wanted, known) for known in called):
        return _PART
    if process.program in _SHELLS:
        return 0  # their arguments are those of what they start
    return _MENTIONED if any(_is_part(wanted, word.lower()) for word in process.words) else 0


_SHELLS = frozenset(
    {"bash", "sh", "dash", "zsh", "ksh", "fish", "su", "sudo", "env", "timeout", "nohup", "ssh", "grep"}
)


def _stem(name: str) -> str:
    leaf = name.rpartition("/")[2]
    return leaf.rpartition(".")[0] or leaf


def _is_part(wanted: str, whole: str) -> bool:
    """Whether `wanted` stands in `whole` between its signs: llama-7b in runs/llama-7b-v2.yaml, not in xllama-7b."""
    if wanted == whole:
        return True
    if len(wanted) < _SHORTEST:
        return False
    start = whole.find(wanted)
    while start >= 0:
        end = start + len(wanted)
        before, after = whole[start - 1 : start], whole[end : end + 1]
        if not (before.isalnum() and before.isascii()) and not (after.isalnum() and after.isascii()):
            return True
        start = whole.find(wanted, start + 1)
    return False


def _close(names: Sequence[str], search: _Search, tried: Sequence[str]) -> Resolution:
    """Nothing fits; what is written nearly the same is asked about, however few there are."""
    found: dict[str, Job] = {}
    for members in search.members():
        known = {other.lower() for process in members for other in (*names_of(process),) if len(other) > _SHORTEST}
        known |= {_stem(name) for name in known}
        if any(
            difflib.get_close_matches(name.lower(), known, 1, _CLOSE)
            for name in names
            if _SHORTEST < len(name) <= _LONGEST
        ):
            job = search.whole(members[0])
            found[job.id] = job
    return search.several(list(found.values()), ["close"], tried) if found else search.nothing(tried)


def _unnamed(search: _Search, tried: Sequence[str], rank: int | None) -> Resolution:
    """Nobody named a job: the only one with ranks, if there is one; else those with ranks are told."""
    ranked = [members for members in search.members() if any(p.identity.rank is not None for p in members)]
    if rank is not None and ranked:
        return search.settle([p for members in ranked for p in members], [], tried, rank)
    if len(ranked) == 1:
        return search.settle(ranked[0], ["only_job"], [], None)
    jobs = [search.whole(members[0]) for members in ranked]
    if jobs:
        return search.several(jobs, [], tried)
    return search.nothing([*tried, *([f"rank:{rank}"] if rank is not None else [])])
