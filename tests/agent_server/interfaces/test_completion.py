"""Completion, as the scripts of shells request it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(sys.executable).with_name("whystall")


def completed(shell: str, line: str) -> str:
    """Return what the program answers the script of `shell` about `line`, with the cursor at its end."""
    words = line.split(" ")
    variables = {"_WHYSTALL_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    if shell == "bash":
        variables |= {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    else:
        variables["_TYPER_COMPLETE_ARGS"] = line
    done = subprocess.run([PROGRAM], env={**os.environ, **variables}, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize(
    ("shell", "line", "expected"),
    [
        ("bash", "whystall dia", "diagnose"),
        ("bash", "whystall diagnose --sy", "--symptom"),
        ("zsh", "whystall tickets ack", "acknowledge"),
        ("fish", "whystall run files", "fileslower"),
    ],
)
def test_commands_options_and_subcommands_are_completed(shell: str, line: str, expected: str) -> None:
    assert expected in completed(shell, line)


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_completes_with_the_printed_script() -> None:
    argv = ["bash", "-c", f"{PROGRAM} --show-completion; true"]
    script = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    script += '\nCOMP_WORDS=(whystall ticke); COMP_CWORD=1; _whystall_completion whystall; echo "${COMPREPLY[@]}"'
    path = f"{PROGRAM.parent}:{os.environ['PATH']}"
    argv = ["bash", "-c", script]
    done = subprocess.run(argv, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "tickets"
