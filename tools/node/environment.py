"""Read the job of a process from its environment. Only the variables named here are read, since an environment also
contains keys and tokens. Pure.

Names: sbatch(1) and srun(1) of Slurm; torchrun ("Environment Variables" of torch.distributed.run); the Downward API of
Kubernetes, with names chosen by the author of the pod; Open MPI ("mpirun" 5.0, environment variables), PMI-1,
PMIx, Intel MPI; LSF and PBS.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from whystall.tools.contract.text import clean

LIMIT = 256 << 10
"""Maximum bytes of an environment; a longer one is cut."""
_VALUE = 200

_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "RANK_ID")
_LOCAL = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
_GROUP = ("GROUP_RANK", "OMPI_COMM_WORLD_NODE_RANK", "SLURM_NODEID")
_SIZE = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS", "RANK_SIZE")
_GROUPS = ("GROUP_WORLD_SIZE",)
_LOCAL_SIZE = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
# ``4(x2)``: four tasks on each of two nodes; other forms are of nodes with different numbers
_SLURM_LOCAL_SIZE = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
_SLURM_JOB = ("SLURM_JOB_ID", "SLURM_JOBID")
_SLURM_STEP = ("SLURM_STEP_ID", "SLURM_STEPID")
_ARRAY = ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID")
_NAME = ("JOB_NAME", "SLURM_JOB_NAME", "LSB_JOBNAME", "PBS_JOBNAME")
_MPI = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "LSB_JOBID", "PBS_JOBID")
_RUN = ("TORCHELASTIC_RUN_ID",)
_MASTER = ("MASTER_ADDR", "MASTER_PORT")
_POD = ("POD_NAME", "K8S_POD_NAME", "MY_POD_NAME")
_NAMESPACE = ("POD_NAMESPACE", "K8S_NAMESPACE", "MY_POD_NAMESPACE")
_UID = ("POD_UID", "K8S_POD_UID", "MY_POD_UID")
_HOST = ("HOSTNAME",)
_KUBERNETES = ("KUBERNETES_SERVICE_HOST",)

NAMES: frozenset[str] = frozenset(
    name
    for names in (
        *(
            _RANKS,
            _LOCAL,
            _GROUP,
            _SIZE,
            _GROUPS,
            _LOCAL_SIZE,
            _SLURM_LOCAL_SIZE,
            _SLURM_JOB,
            _SLURM_STEP,
            _ARRAY,
            _NAME,
            _MPI,
            _RUN,
            _MASTER,
        ),
        *(_POD, _NAMESPACE, _UID, _HOST, _KUBERNETES),
    )
    for name in names
)
"""All variables that are read."""
# torchrun sets "none" without --rdzv-id.
_NO_RUN = ("none", "")


@dataclass(frozen=True, slots=True)
class Identity:
    """What the environment of a process states about its job; None: not stated. Nothing else of it is kept.
    `local_rank`, `local_size`: its number among the ranks of its host, and how many those are; `groups`: nodes, of
    torchrun."""

    slurm_job: str | None = None
    slurm_step: str | None = None
    slurm_array: str | None = None  # ``JOB_TASK``, as squeue shows it
    job_name: str | None = None
    run_id: str | None = None
    mpi_job: str | None = None
    master: str | None = None  # ``ADDRESS:PORT``
    rank: int | None = None
    local_rank: int | None = None
    local_size: int | None = None
    group_rank: int | None = None
    world_size: int | None = None
    pod_name: str | None = None
    namespace: str | None = None
    pod_uid: str | None = None
    hostname: str | None = None  # of the container
    groups: int | None = None


def identity(raw: bytes) -> Identity:
    """Parse /proc/PID/environ (``RANK=0\\0WORLD_SIZE=8\\0``), ignoring invalid entries: a process can overwrite it."""
    found = _variables(raw)
    array = [_first(found, (name,)) for name in _ARRAY]
    address, port = (_first(found, (name,)) for name in _MASTER)
    run = _first(found, _RUN)
    pod = _first(found, _POD)
    if pod is None and _first(found, _KUBERNETES):
        pod = _first(found, _HOST)  # by default containers have the pod's name as host name
    return Identity(
        slurm_job=_first(found, _SLURM_JOB),
        slurm_step=_first(found, _SLURM_STEP),
        slurm_array="_".join(part for part in array if part) if all(array) else None,
        job_name=_first(found, _NAME),
        run_id=None if run is None or run.lower() in _NO_RUN else run,
        mpi_job=_first(found, _MPI),
        master=f"{address}:{port or ''}" if address else None,
        rank=_number(_first(found, _RANKS)),
        local_rank=_number(_first(found, _LOCAL)),
        local_size=_number(_first(found, _LOCAL_SIZE) or _uniform(_first(found, _SLURM_LOCAL_SIZE))),
        group_rank=_number(_first(found, _GROUP)),
        world_size=_number(_first(found, _SIZE)),
        pod_name=pod,
        namespace=_first(found, _NAMESPACE),
        pod_uid=_first(found, _UID),
        hostname=_first(found, _HOST),
        groups=_number(_first(found, _GROUPS)),
    )


def _variables(raw: bytes) -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in raw[:LIMIT].split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if not equals or len(name) > 40:
            continue
        known = name.decode("ascii", "replace")
        if known in NAMES and known not in found:
            found[known] = clean(value, _VALUE).strip()
    return found


def _first(found: dict[str, str], names: tuple[str, ...]) -> str | None:
    return next((found[name] for name in names if found.get(name)), None)


def _uniform(tasks: str | None) -> str | None:
    """Return the number of tasks on each node, of Slurm's ``4(x2)``; None if nodes differ (``4,2``)."""
    same = re.fullmatch(r"([0-9]+)(?:\(x[0-9]+\))?", tasks or "")
    return same[1] if same else None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,7}", text) else None
