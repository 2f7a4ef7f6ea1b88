"""Loads the YAML files of this package, validated by a model; errors name file and field."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from whystall.tools.contract.errors import ErrorCode, ToolError

# The C parser is ten times faster, and causes are read on every start.
_Loader: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

ModelT = TypeVar("ModelT", bound=BaseModel)


def catalog(name: str) -> Path:
    return Path(__file__).parent / "catalog" / name


def read_yaml(file: Path) -> Any:
    """Parse the YAML `file`; raise `ToolError` (io_error, bad_argument) with file and line."""
    try:
        return yaml.load(file.read_text("utf-8"), Loader=_Loader)  # noqa: S506 - both loaders are safe
    except (OSError, UnicodeDecodeError) as error:
        remedy = "reinstall whystall, or check the file's permissions"
        raise ToolError(ErrorCode.IO_ERROR, f"cannot read {file}: {error}", remedy) from None
    except yaml.YAMLError as error:
        raise data_fault(file, " ".join(str(error).split())) from None


def as_model(model: type[ModelT], value: Any, file: Path, where: str = "") -> ModelT:
    """Validate `value` as `model`; raise `ToolError` (bad_argument) with `file`, the field below `where`, and the
    fault.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        loc = ".".join(str(part) for part in (where, *first["loc"]) if part != "")
        raise data_fault(file, f"{loc or 'document'}: {first['msg']}") from None


def data_fault(file: Path, fault: str) -> ToolError:
    """Return the error for a malformed data file."""
    return ToolError(ErrorCode.BAD_ARGUMENT, f"{file.name}: {fault}", "correct the field in that file")
