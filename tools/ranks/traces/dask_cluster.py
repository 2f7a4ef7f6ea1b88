"""Run tasks on an existing dask cluster: the same function as locally, on its workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.extras import extra
from whystall.tools.contract.text import clean

T = TypeVar("T")
R = TypeVar("R")

_PATIENCE = "10s"


def on_cluster(
    function: Callable[[T], R], tasks: Sequence[T], scheduler: str, failed: Callable[[T, str], R]
) -> list[R]:
    """Return `function` of each of `tasks`, in their order, from the workers of `scheduler` (``tcp://host:8786``).

    `failed` makes the answer for a task that failed or killed its worker, from the task and the reason. Raises
    `ToolError`: bad_argument when dask.distributed is not installed here, or whystall not on the workers; io_error when
    the scheduler does not answer, or has no worker.
    """
    with extra("ranks"):
        import distributed
    connect: Any = distributed.Client  # its types are half there
    try:
        client = connect(scheduler, timeout=_PATIENCE, set_as_default=False, asynchronous=False)
    except (OSError, ValueError, TypeError) as error:
        why = f"no dask scheduler answers at {scheduler}: {error}"
        raise ToolError(ErrorCode.IO_ERROR, why, "check the address, or leave it out to read here") from None
    with client:
        if not client.scheduler_info()["workers"]:
            raise ToolError(ErrorCode.IO_ERROR, f"the scheduler at {scheduler} has no workers", "start some")
        futures = client.map(function, tasks, pure=False)
        answers = []
        for task, future in zip(tasks, futures, strict=True):
            failure = future.exception()
            if isinstance(failure, ImportError):
                why = f"a worker of {scheduler} cannot import: {failure}"
                raise ToolError(ErrorCode.BAD_ARGUMENT, why, "install the same whystall there")
            answers.append(future.result() if failure is None else failed(task, clean(f"its reader failed: {failure}")))
        return answers
