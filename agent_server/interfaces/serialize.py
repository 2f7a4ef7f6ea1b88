"""The JSON form of results: what the command line prints with ``--json`` is also the structured content of MCP."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from whystall.tools.contract.errors import ToolError
from whystall.tools.contract.text import clean

if TYPE_CHECKING:
    from pydantic import BaseModel

# Unprintable characters that JSON allows in strings: C1 controls, DEL, bidirectional and zero
# width format characters, line separators, surrogates. In a JSON document they can occur nowhere but in strings.
_UNSAFE = re.compile(
    "[\x7f-\x9f\xad\u0600-\u0605\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb]"
)


def structured(model: BaseModel) -> dict[str, Any]:
    """Return `model` as a JSON object."""
    value: dict[str, Any] = json.loads(model.model_dump_json())
    return value


def error_object(error: ToolError) -> dict[str, Any]:
    """Return what a failed command with ``--json`` prints on standard output."""
    return {"error": {"code": error.code.value, "message": error.message, "remedy": error.remedy}}


def dumps(value: Any, indent: int | None = 1) -> str:
    """Return JSON text that is safe on a terminal: unprintable characters are escaped, all scripts stay readable."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return _UNSAFE.sub(lambda m: f"\\u{ord(m.group()):04x}", text)


def inert(text: str) -> str:
    """Return `text` with unprintable characters escaped, line by line; for anything a person reads."""
    return "\n".join(clean(line, 1 << 20) for line in text.split("\n"))
