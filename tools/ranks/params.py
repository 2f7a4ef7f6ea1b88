"""Parameters shared by the tools over the ranks of a job."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from whystall.tools.contract.params import Params

Directory = Annotated[
    str | None,
    Field(min_length=1, max_length=4096, description="path of the ranks' traces, a directory"),
]

BaselineName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class RankParams(Params):
    """How the traces of ranks are read; each tool adds which ones, and its own options."""

    scheduler: Annotated[
        str | None, Field(min_length=1, max_length=500, description="dask scheduler that reads them: tcp://HOST:PORT")
    ] = None
    jobs: Annotated[int | None, Field(ge=1, le=256, description="processes that read them here")] = None
    top: Annotated[int, Field(ge=1, le=200, description="rows per table")] = 10
