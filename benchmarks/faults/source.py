"""Install programs for a case without comments and docstrings, which would reveal the cause, at the same lines.

A comment ``# mark: NAME`` in a source names the line, so that a scenario can expect it: ``callbacks.py#NAME``.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from dataclasses import dataclass
from pathlib import Path

_MARK = re.compile(r"#\s*mark: ([\w-]+)")


@dataclass(frozen=True)
class Place:
    """A line of a program, with the function around it."""

    file: str
    line: int
    function: str


def marks(text: str, name: str) -> dict[str, Place]:
    """Return the marked lines of a source that is installed as `name`."""
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        if match := _MARK.search(line):
            around = [f for f in functions if f.lineno <= number <= (f.end_lineno or 0)]
            function = max(around, key=lambda f: f.lineno).name if around else "<module>"
            found[match[1]] = Place(name, number, function)
    return found


def stripped(text: str) -> str:
    """Return a source without comments and docstrings; every statement keeps its line."""
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if ast.get_docstring(node, clean=False) is None:
            continue
        first = node.body[0]
        indent = " " * first.col_offset
        for number in range(first.lineno, (first.end_lineno or first.lineno) + 1):
            lines[number - 1] = ""
        if len(node.body) == 1:
            lines[first.lineno - 1] = f"{indent}pass"
    text = "\n".join(lines) + "\n"
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column].rstrip()
    return "\n".join(lines) + "\n"


def install(source: Path, target: Path) -> dict[str, Place]:
    """Write the stripped `source` to `target`; return its marks."""
    text = source.read_text()
    target.write_text(stripped(text))
    return marks(text, target.name)
