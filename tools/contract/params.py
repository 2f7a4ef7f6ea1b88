"""Parameters common to all tools."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from whystall.tools.contract.errors import ErrorCode, ToolError


class Params(BaseModel):
    """Base of all tool parameters: flat, bounded, without unknown names."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _no_truth_as_number(cls, values: Any) -> Any:
        """Reject booleans for integer fields: `true` would become pid 1."""
        for name, value in values.items() if isinstance(values, dict) else ():
            field = cls.model_fields.get(name)
            if isinstance(value, bool) and field is not None and not _takes_truth(field.annotation):
                raise ValueError(f"{name} is no truth value")
        return values

    def observed(self) -> LiveParams | None:
        """Return what to observe for a call with these parameters; None: nothing, files are read."""
        return None


def _takes_truth(annotation: Any) -> bool:
    return annotation is bool or bool in get_args(annotation)


class TargetParams(Params):
    """The processes to observe: at most one of `pid`, `comm`, `cgroup`; without any the whole host."""

    pid: Annotated[int | None, Field(ge=1, le=4194304, description="process id (like 812), all its threads")] = None
    comm: Annotated[
        str | None,
        Field(min_length=1, max_length=15, description="exact command name: python3"),
    ] = None
    cgroup: Annotated[
        str | None, Field(min_length=1, max_length=4096, description="cgroup path, container id or pod:NAME")
    ] = None
    children: Annotated[bool, Field(description="also child processes")] = False

    @model_validator(mode="after")
    def _one_target(self) -> TargetParams:
        if sum(x is not None for x in (self.pid, self.comm, self.cgroup)) > 1:
            raise ValueError("give only one of pid, comm, cgroup")
        if self.children and self.pid is None and self.comm is None and self.cgroup is None:
            raise ValueError("children needs a pid or comm")  # the whole host includes children
        return self


class LiveParams(TargetParams):
    """A target and a duration."""

    duration: Annotated[float, Field(ge=0.1, le=600, description="seconds to observe")] = 10.0
    top: Annotated[int, Field(ge=1, le=200, description="rows per table")] = 10

    def observed(self) -> LiveParams | None:
        """Return these parameters."""
        return self


class JobParams(LiveParams):
    """All processes of a job: by words, or by one of its processes; without any the only job with ranks."""

    job: Annotated[
        str | None,
        Field(min_length=1, max_length=200, description="name or number of a job: llama-sft"),
    ] = None

    @model_validator(mode="after")
    def _one_job(self) -> JobParams:
        if self.job is not None and (self.pid, self.comm, self.cgroup) != (None, None, None):
            raise ValueError("give only one of job, pid, comm, cgroup")
        return self


ParamsT = TypeVar("ParamsT", bound="Params")
MinMs = Annotated[float, Field(ge=0, le=600_000, description="list from this length, ms; 0: all")]


def parse_params(model: type[ParamsT], values: dict[str, Any]) -> ParamsT:
    """Validate `values` as `model`; raise `ToolError` (bad_argument) naming the fault and the valid names."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(p) for p in first["loc"])
        if first["type"] == "extra_forbidden":
            message, remedy = f"unknown argument {name!r}", f"valid: {', '.join(model.model_fields)}"
        else:
            fault = first["msg"].removeprefix("Value error, ")
            message = f"{name}: {fault}" if name else fault
            remedy = "correct the value and call again"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, remedy) from None
