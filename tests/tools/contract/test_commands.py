"""The closed list of command lines: what may vary in them, and what may not."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whystall.tools.contract.commands import COMMANDS, Command, argv, program


def test_nothing_can_be_added_to_the_list() -> None:
    with pytest.raises(TypeError):
        COMMANDS["sh"] = Command(("/bin/sh",))  # type: ignore[index]
    with pytest.raises(KeyError):
        argv("sh")


_SHELLS = {"sh", "bash", "env", "sudo", "xargs"}
_EXECUTES = {"-c", "-e", "--command", "--exec"}
"""Options with which an interpreter executes the text after them."""


def _executed_texts(command: Command) -> list[str]:
    """Return the values that `command` passes to an option that may execute them, in options given as tuples too."""
    words = [word for group in command.words for word in (group if isinstance(group, tuple) else (group,))]
    values = [value for option, value in pairwise(words) if option in _EXECUTES and value.startswith("{")]
    return [value for value in values if not value.endswith("?}")]  # a switch: its value is not on the command line


def test_no_command_is_a_shell_or_executes_text() -> None:
    for name, command in COMMANDS.items():
        assert not _SHELLS & {place.rpartition("/")[2] for place in command.places}, name
        # of trace-cmd record: -e names an event
        assert set(_executed_texts(command)) <= ({"{events}"} if name == "trace-cmd.record" else set()), name


def test_an_executing_option_is_found_in_a_tuple_too() -> None:
    assert _executed_texts(Command(("python3",), ("-c", "{text}"))) == ["{text}"]
    assert _executed_texts(Command(("python3",), (("-c", "{text}"),))) == ["{text}"]


def test_an_option_is_left_out_or_repeated_as_its_value_has_it() -> None:
    words = argv(
        "trace-cmd.record",
        "/x/trace-cmd",
        instance="i",
        output="/tmp/o",
        clock="mono",
        kilobytes=512,
        mask="3",
        events=["sched:sched_switch", "irq:irq_handler_entry"],
        threads=[7, 8],
        children=True,
    )
    assert " ".join(words) == (
        "/x/trace-cmd record -q -B i -o /tmp/o -C mono -b 512 -M 3 -e sched:sched_switch -e irq:irq_handler_entry "
        "-P 7 -P 8 -c"
    )
    assert argv("bcc.runqlat", "/x/runqlat", pid=None) == ["/x/runqlat", "-T", "1"]
    assert argv("bcc.runqlat", "/x/runqlat", pid=7) == ["/x/runqlat", "-T", "-p", "7", "1"]


def test_values_that_are_missing_or_too_many_are_refused() -> None:
    with pytest.raises(KeyError):
        argv("bcc.fileslower", "/x/fileslower", pid=7)
    with pytest.raises(ValueError, match="shell"):
        argv("bcc.fileslower", "/x/fileslower", pid=7, min_ms=10, shell=1)


@given(st.text(max_size=20))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_a_value_is_one_word_and_never_an_option(value: str) -> None:
    try:
        words = argv("py-spy", "/x/py-spy", pid=1, hz=99, output=value)
    except ValueError:
        assert not value or value.startswith("-") or "\0" in value
    else:
        assert words[-1] == value
        assert not words[-1].startswith("-")


def test_a_program_that_is_not_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program("trace-cmd.report") is None
    with pytest.raises(FileNotFoundError, match="trace-cmd"):
        argv("trace-cmd.report", input="/x")
