"""Every command in the documentation works: executed where a recording serves, else checked against the program."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
from pathlib import Path

import pytest
import warm_command
from docs.markdown_commands import (
    CHECKED,
    PAGES,
    ROOT,
    Block,
    Wrong,
    blocks,
    check,
    inline,
    missing,
    simple_commands,
    steps,
)


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", CHECKED, ids=_name)
def test_commands_exist_with_their_options(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    wrong = []
    for block in blocks(text):
        if block.language == "sh":
            shell = block.text
        elif block.language == "console":
            shell = "\n".join(step.command for step in steps(block))
        else:
            continue
        wrong += [f"line {block.line}: {fault}" for fault in _faults(shell)]
    for command in inline(text):
        wrong += [f"`{command}`: {fault}" for fault in _faults(command, whole=False)]
    assert not wrong, "\n".join(wrong)


def _faults(shell: str, whole: bool = True) -> list[str]:
    faults = []
    for words in simple_commands(shell):
        try:
            check(words, whole)
        except Wrong as fault:
            faults.append(f"{shlex.join(words)}: {fault}")
    return faults


@pytest.mark.thorough
@pytest.mark.parametrize(
    "page", [page for page in CHECKED if "```console" in page.read_text(encoding="utf-8")], ids=_name
)
def test_console_blocks_give_the_output_shown(page: Path, tmp_path: Path) -> None:
    """The blocks of a page run in order, in one home, so that a later command can use what an earlier one stored."""
    for name in ("tests", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    env = os.environ | {"WHYSTALL_HOME": str(tmp_path / "home")}
    for block in blocks(page.read_text(encoding="utf-8")):
        for step in steps(block) if block.language == "console" else []:
            words = shlex.split(step.command, comments=True)
            assert words[0] == "whystall", f"console blocks run whystall only: {step.command}"
            done = warm_command.run(*words[1:], env=env, cwd=tmp_path)
            assert done.returncode == 0, f"{step.command}\n{done.stderr}"
            absent = missing(step.expected, done.stdout + done.stderr)
            assert not absent, f"{step.command}\nnot printed: {absent}\nprinted:\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_lead_to_files(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    targets = [target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target]
    assert [target for target in targets if target and not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", [page for page in CHECKED if page.name != "CHANGELOG.md"], ids=_name)
def test_paths_of_the_repository_exist(page: Path) -> None:
    top = "agent_server|benchmarks|bpf|deploy|docs|examples|knowledge_base|prompts|skills|tests|tools"
    named = re.findall(rf"`((?:{top})/[\w./-]*)`", page.read_text(encoding="utf-8"))
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_command_reference_is_up_to_date() -> None:
    found = importlib.util.spec_from_file_location("generate_commands", ROOT / "docs/generate_commands.py")
    assert found
    assert found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    assert module.PAGE.read_text(encoding="utf-8") == module.page(), "run `make docs`"


@pytest.mark.parametrize(
    "command",
    [
        "whystall diagnoze --pid 1",
        "whystall run fileslower --min-seconds 3",
        "whystall tickets shew 1",
        "sudo whystall serve --transport smoke",
        "make everything",
        "python3 examples/none.py",
        ".venv/bin/python -m whystall.no_such_module",
        "true && WHYSTALL_TOKEN=a whystall servee",
    ],
)
def test_a_wrong_command_is_found(command: str) -> None:
    assert len(_faults(command)) == 1


def test_expected_lines_are_looked_for_in_order() -> None:
    assert missing(["a ... c", "...", "d"], "a b c\nx\nd\n") == []
    assert missing(["d", "a"], "a\nd\n") == ["a"]
    (step,) = steps(Block("console", "$ whystall a \\\n  --b\nprinted\n", 1))
    assert (step.command, step.expected) == ("whystall a --b", ["printed"])
