"""The command line.

Results go to standard output; errors are one line on standard error: ``error: CODE: message; remedy``. With
``--json`` a failure is also an object on standard output: ``{"error": {"code", "message", "remedy"}}``. Exit status:
0 for an answer, whatever its content; 2 for bad arguments; 1 for other failures; 130 and 143 after SIGINT and SIGTERM;
141 when standard output was closed.
"""

from __future__ import annotations

import errno
import itertools
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from whystall.agent_server.interfaces import serialize as wire
from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.interfaces.cli.command_table import help_text
from whystall.agent_server.interfaces.signals import Interrupted, signals
from whystall.tools.contract.errors import ErrorCode, ToolError

if TYPE_CHECKING:
    import typer

DEBUG_VARIABLE = "WHYSTALL_DEBUG"
COMPLETION_REQUEST = "_WHYSTALL_COMPLETE"
"""Set by the scripts of a shell that completes a command (`completion.py`)."""


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit: the entry point of ``whystall``."""
    end_with(_command, argv)


def end_with(command: Callable[[list[str]], int], argv: Sequence[str] | None = None) -> NoReturn:
    """Run `command` of `argv` (None: of the process), write its answer, and exit with the status that it returns."""
    _open_closed_streams()
    signals.install()
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        status = command(words)
        status = _deliver() or status
    except Interrupted as interrupted:
        name = signal.Signals(interrupted.signum).name
        sys.stderr.write(f"error: cancelled: stopped by {name}; nothing is left attached\n")
        sys.stderr.flush()
        os._exit(interrupted.status)  # a normal exit would wait for threads that still read large files
    signals.ignore()
    sys.exit(status)


def _open_closed_streams() -> None:
    """Open a substitute for each standard stream that was closed before the start (``>&-``).

    Otherwise the first files that are opened would get those descriptors, and output would end up in them. Standard
    output gets a pipe without a reader.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is not None:
            continue
        end = os.open(os.devnull, os.O_RDWR)
        if name == "stdout":
            os.close(end)
            reads, end = os.pipe()
            os.close(reads)
        if end != number:
            os.dup2(end, number, inheritable=False)  # not inherited: child programs find it closed, as it was
            os.close(end)
        setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def _command(words: list[str]) -> int:
    """Run a command of ``whystall``, and return the status."""
    completing = COMPLETION_REQUEST in os.environ
    if not words and not completing and sys.stdin.isatty() and sys.stdout.isatty():
        return _first_steps()
    if not completing and not set(words) - {"-h", "--help"}:
        console.say(help_text())
        return 0

    def tree() -> Callable[..., Any]:
        from whystall.agent_server.interfaces.cli import completion
        from whystall.agent_server.interfaces.cli.command_tree import build

        return completion.commands(os.environ) if completing else build(words)

    return run_tree(tree, words, "whystall")


def run_tree(make: Callable[[], Callable[..., Any]], words: list[str], name: str) -> int:
    """Run `words` by the commands that `make` returns, of the program `name`, and return the status.

    Every failure becomes one line.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    import typer

    try:
        result = make()(words, prog_name=name, standalone_mode=False)
        return result if isinstance(result, int) else 0
    except ToolError as error:
        return _fail(error, words)
    except typer.TyperException as error:
        return _fail(_usage(error), words)
    except typer.Abort:
        return _fail(ToolError(ErrorCode.CANCELLED, "input ended", "call again"), words)
    except OSError as error:
        return _fail(_system(error), words)
    except Exception as error:
        # A defect. Its traceback may contain observed data, so it is printed only on request.
        if os.environ.get(DEBUG_VARIABLE):
            raise
        console.note(f"error: internal: {type(error).__name__}: {error}; please report it with {DEBUG_VARIABLE}=1")
        return 1


def _first_steps() -> int:
    """List the jobs of this host, and diagnose the one that is chosen."""
    from whystall.agent_server.interfaces.cli.first_steps import choose

    try:
        words = choose()
    except EOFError:
        return 0
    return _command(words) if words else 0


def _deliver() -> int:
    """Write the answer to standard output; 0, or the status when that fails."""
    try:
        console.deliver()
    except OSError as error:
        # What could not be written stays buffered, and Python would try again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return 141  # the reader closed the pipe, like `| head`
        return _fail(_system(error), ())
    return 0


def _system(error: OSError) -> ToolError:
    code = ErrorCode.DISK_FULL if error.errno in (errno.ENOSPC, errno.EDQUOT) else ErrorCode.IO_ERROR
    name = f"{error.filename}: " if error.filename else ""
    return ToolError(code, f"{name}{error.strerror or error}", "check the file system and call again")


def _usage(error: typer.TyperException) -> ToolError:
    """Return typer's error as a `ToolError`, with the valid names where they help."""
    context = getattr(error, "ctx", None)
    command = getattr(context, "command", None)
    message = " ".join(error.format_message().split()).rstrip(".").replace("Value error, ", "")
    remedy = f"see `{getattr(context, 'command_path', 'whystall')} --help`"
    if message.startswith("No such option") and command is not None:
        message = f"unknown argument {getattr(error, 'option_name', message)!r}"
        remedy = f"valid: {', '.join(o for p in command.params for o in p.opts if o.startswith('--'))}"
    elif message.startswith(("No such command", "Missing command")) and command is not None:
        remedy = f"valid: {', '.join(command.list_commands(context))}"
    return ToolError(ErrorCode.BAD_ARGUMENT, message, remedy)


def _fail(error: ToolError, words: Sequence[str]) -> int:
    console.note(f"error: {error.code.value}: {error.message}; {error.remedy}")
    if "--json" in itertools.takewhile(lambda word: word != "--", words):  # not those of `hybrid-run -- PROGRAM`
        console.say_json(wire.error_object(error))
    return 2 if error.code is ErrorCode.BAD_ARGUMENT else 1
