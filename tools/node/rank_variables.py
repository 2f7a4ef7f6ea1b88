"""The variables of a process's environment that number its rank.

Names: torchrun ("Environment Variables" of torch.distributed.run), Open MPI ("mpirun" 5.0), PMIx, PMI-1, srun(1) of
Slurm, Ascend's rank tables.
"""

from __future__ import annotations

from pathlib import Path

RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "RANK_ID")
"""Variables with the rank of the process, the most certain first."""
SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS", "RANK_SIZE")
"""Variables with the number of ranks."""
_BYTES = 256 << 10


def rank_of(pid: int) -> tuple[int, int]:
    """Return the rank of a process and the number of ranks, by its environment; -1 for what it does not say."""
    try:
        with Path(f"/proc/{pid}/environ").open("rb") as file:
            raw = file.read(_BYTES)
    except OSError:
        return -1, -1
    found: dict[bytes, bytes] = {}
    for entry in raw.split(b"\0"):
        name, _, value = entry.partition(b"=")
        found.setdefault(name, value)
    return _number(found, RANKS), _number(found, SIZES)


def _number(found: dict[bytes, bytes], names: tuple[str, ...]) -> int:
    value = next((found[name.encode()] for name in names if name.encode() in found), b"")
    return int(value) if value.isdigit() and len(value) < 8 else -1
