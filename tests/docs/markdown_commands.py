"""Commands in the documentation: found in Markdown, split like a shell does, and checked against the program.

Blocks marked ``console`` are executed (lines that begin with ``$ ``; the lines below each are its expected output, in
which ``...`` stands for anything). Blocks marked ``sh`` and inline code are checked: they need root, a live process, a
server or a file of the reader's.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer
import typer.main

from whystall.agent_server.interfaces.cli.command_tree import build

ROOT = Path(__file__).parents[2]
_WALK = ROOT / "docs/adding.md"
"""Its commands run what its reader has added."""
PAGES = sorted(
    page for pattern in ("*.md", "docs/*.md", "benchmarks/*.md", "skills/*/*.md") for page in ROOT.glob(pattern)
)
CHECKED = [page for page in PAGES if page != _WALK]
_OPERATORS = {"&&", "||", ";", "|", "&", "(", ")"}
_REDIRECTIONS = re.compile(r"\d*(>>?|<)(.*)")
_NUMBERS = {"N", "PID", "RANK", "A", "B"}
_FINDING = re.compile(r"\[F\d+\]")
_OURS = ("examples/", "deploy/", "tests/", "docs/", "benchmarks/", "tools/", "bpf/", "knowledge_base/", "prompts/")


class Wrong(Exception):
    """A command that the program, the Makefile or the repository does not have."""


@dataclass(frozen=True)
class Block:
    """A fenced block. `about`: what follows the language; `line`: number of its first line in the file, from 1."""

    language: str
    text: str
    line: int
    about: str = ""


@dataclass
class Step:
    """An executed command and the output that the page shows for it."""

    command: str
    expected: list[str] = field(default_factory=list)


def blocks(text: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page."""
    for found in re.finditer(r"^```(\w*)([^\n`]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield Block(found[1], found[3], text.count("\n", 0, found.start()) + 2, found[2].strip())


def inline(text: str) -> Iterator[str]:
    """Yield commands of whystall and make in inline code, outside fenced blocks: `whystall tickets list`."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    for found in re.finditer(r"`((?:whystall|make) [^`]+)`", prose):
        yield found[1].replace("\n", " ")


def steps(block: Block) -> list[Step]:
    """Return the commands of a ``console`` block with the output shown below each."""
    found: list[Step] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append(Step(line[2:]))
        elif found and found[-1].command.endswith("\\"):
            found[-1].command = found[-1].command[:-1] + line.strip()
        elif found:
            found[-1].expected.append(line)
        else:
            raise ValueError(f"line {block.line}: a console block begins with `$ `")
    return found


def missing(expected: list[str], output: str) -> list[str]:
    """Return the expected lines that do not follow in this order in `output`, whatever the numbers of findings are."""
    rest, absent = _FINDING.sub("[F]", output).splitlines(), []
    for line in (_FINDING.sub("[F]", text) for text in expected):
        if line.strip() in ("", "..."):
            continue
        pattern = re.compile(".*".join(re.escape(part) for part in line.split("...")) + r"\s*$")
        at = next((index for index, one in enumerate(rest) if pattern.match(one)), None)
        if at is None:
            absent.append(line)
        else:
            rest = rest[at + 1 :]
    return absent


def simple_commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each simple command in shell text; comments, redirections and assignments are left out."""
    for line in text.replace("\\\n", " ").splitlines():
        opened = re.sub(r"\$(\([^()]*\)|\w+)", "1", line)
        lexer = shlex.shlex(opened, posix=True, punctuation_chars="();&|")
        lexer.whitespace_split = True
        lexer.commenters = "#"
        words: list[str] = []
        redirected = False
        for word in [*lexer, ";"]:
            if word in _OPERATORS or set(word) <= set("();&|"):
                while words and re.fullmatch(r"\w+=.*|sudo|-n|export|umask|exec|time", words[0]):
                    words.pop(0)
                if words:
                    yield words
                words = []
                redirected = False
            elif redirected:
                redirected = False
            elif found := _REDIRECTIONS.fullmatch(word):
                redirected = not found[2]
            else:
                words.append(word)


@functools.cache
def _program() -> Any:
    return typer.main.get_command(build([]))


def check(words: list[str], whole: bool = True) -> None:
    """Check one simple command. Without `whole`, required arguments may be absent, as in prose.

    Raises:
        Wrong: it names a command, option, make target, module or file that does not exist.
    """
    if not words:
        return
    program = words[0].rpartition("/")[2]
    if program == "whystall":
        _parse(words[1:], whole)
        return
    if program == "make":
        _make(words[1:])
    if program.startswith("python") and "-m" in words:
        module = words[words.index("-m") + 1]
        if module.startswith("whystall.") and importlib.util.find_spec(module) is None:
            raise Wrong(f"no module {module}")
    for word in words:
        if word.startswith(_OURS) and not any(ROOT.glob(word.rstrip("/"))):
            raise Wrong(f"no file {word}")


def _make(words: list[str]) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for word in words:
        if re.fullmatch(r"[a-z][\w-]*", word) and word not in targets:
            raise Wrong(f"no target {word} in the Makefile")


def _parse(words: list[str], whole: bool) -> None:
    """Parse the arguments as the program does, without running it."""
    command = _program()
    context: Any = command.context_class(command, info_name="whystall", **command.context_settings)
    rest = list(words)
    while hasattr(command, "commands"):
        if not rest:
            return
        if rest[0].startswith("-"):
            break
        if rest[0] in ("COMMAND", "TOOL"):
            return
        if (inner := command.get_command(context, rest[0])) is None:
            raise Wrong(f"no command {rest[0]!r} in {context.command_path}")
        command, name = inner, rest.pop(0)
        context = command.context_class(command, parent=context, info_name=name, **command.context_settings)
    if not whole:
        _options(command, rest)
        return
    try:
        command.make_context(context.info_name, [_value(word) for word in rest], parent=context.parent)
    except typer.Exit:
        return  # --help and --version
    except typer.TyperException as error:
        raise Wrong(f"{context.command_path}: {error.format_message()}") from error


def _options(command: Any, rest: list[str]) -> None:
    """Check the names of options only."""
    known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)} | {"--help", "-h"}
    for word in itertools.takewhile(lambda word: word != "--", rest):
        if word.startswith("--") and word.partition("=")[0] not in known:
            raise Wrong(f"no option {word} of {command.name}")


def _value(word: str) -> str:
    """Return a value for a placeholder: a number for N and PID, an existing file for other words in capitals."""
    if word in _NUMBERS:
        return "1"
    if word == "DIR":
        return "new-directory"
    return str(ROOT / "LICENSE") if re.fullmatch(r"FILE", word) else word
