"""Reads the data files shipped in this package: YAML checked against a model, faults named by file and
field.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from whystall.tools.contract.errors import ErrorCode, ToolError

# The C parser, where PyYAML has it, is ten times faster: causes are read on every start.
_Loader: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

ModelT = TypeVar("ModelT", bound=BaseModel)


def catalog(name: str) -> Path:
    """The file or directory `name` of the data shipped with this package."""
    return Path(__file__).parent / "catalog" / name


def read_yaml(file: Path) -> Any:
    """The document in `file`; `ToolError` (io_error, bad_argument) names the file and the line."""
    try:
        return yaml.load(file.read_text("utf-8"), Loader=_Loader)  # noqa: S506 - both loaders are safe
    except (OSError, UnicodeDecodeError) as error:
        raise ToolError(
            ErrorCode.IO_ERROR,
            f"cannot read {file}: {error}",
            "reinstall whystall, or check the file's permissions",
        ) from None
    except yaml.YAMLError as error:
        raise data_fault(file, " ".join(str(error).split())) from None


def as_model(model: type[ModelT], value: Any, file: Path, where: str = "") -> ModelT:
    """`value` as `model`; `ToolError` (bad_argument) names `file`, the field below `where`, and the fault."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        loc = ".".join(str(part) for part in (where, *first["loc"]) if part != "")
        raise data_fault(file, f"{loc or 'document'}: {first['msg']}") from None


def data_fault(file: Path, fault: str) -> ToolError:
    """The error for a data file that does not say what it must."""
    return ToolError(ErrorCode.BAD_ARGUMENT, f"{file.name}: {fault}", "correct the field in that file")
