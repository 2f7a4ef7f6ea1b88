"""What doctor prints: in lines of 100 columns, in both languages, with commands that can be pasted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal
from unicodedata import east_asian_width

import pytest

import whystall.agent_server.doctor as package
from whystall.agent_server.doctor import examine, report
from whystall.agent_server.doctor.report_model import Check, Health, State
from whystall.prompts.doctor import doctor_words, say
from whystall.prompts.render import LANGS

CJK = re.compile(r"[\u4e00-\u9fff]")
LONG = "sudo env " + " ".join(f"--option-{number}=value" for number in range(12))


def leaves(tree: dict[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", str(value)


def columns(line: str) -> int:
    return sum(2 if east_asian_width(character) in "WF" else 1 for character in line)


def health() -> Health:
    means = "what is lost without it, told at some length so that it does not fit into one line of the terminal"
    return Health(
        checks=[
            Check(name="kernel", state=State.OK, found="6.1", group="kernel"),
            Check(name="privilege", state=State.MISSING, found="user", means=means, fix=LONG, group="rights"),
            Check(name="sampling", state=State.LIMITED, found="no", means=means, fix=LONG, group="rights"),
        ],
        engines=["bcc", "procfs"],
        order=["ebpf", "bcc", "procfs"],
        refused={"ebpf": "no BTF"},
        tools={"a": "bcc", "b": "bcc", "c": "procfs", "d": "none", "e": "traces"},
        why={"a": {"ebpf": "no BTF"}, "b": {"ebpf": "no BTF"}, "c": {"ebpf": "no BTF", "bcc": "broken"}, "d": {}},
    )


def test_a_command_stands_on_one_line_and_once() -> None:
    lines = report(health()).splitlines()
    assert [line for line in lines if LONG in line] == [f"{'':<22}fix: {LONG}"]
    assert f"{'':<22}fix: the same as for privilege" in lines
    assert all(len(line) <= 100 for line in lines if LONG not in line)


def test_tools_stand_together_and_only_what_differs_is_told_beside_them() -> None:
    lines = [line.strip() for line in report(health()).splitlines()]
    tools = lines[lines.index("Tools and the engine each runs on here") + 1 :]
    assert tools == ["bcc      a, b", "procfs   c", "not bcc: broken", "files    e", "none     d"]
    assert "ebpf     cannot run: no BTF" in lines


@pytest.mark.parametrize("lang", LANGS)
def test_this_host_fits_a_terminal_in_every_language(lang: Literal["en", "zh"]) -> None:
    found = examine(lang)
    fixes = [check.fix for check in found.checks if check.fix]
    for line in report(found, lang).splitlines():
        assert columns(line) <= 100 or any(fix in line for fix in fixes) or " " not in line.strip(), line
    assert all(check.group in doctor_words(lang)["groups"] for check in found.checks)
    assert all(check.means and check.fix for check in found.checks if check.state is not State.OK)


def test_both_languages_say_the_same_things() -> None:
    en, zh = (dict(leaves(doctor_words(lang))) for lang in LANGS)
    assert en.keys() == zh.keys()
    for key, text in en.items():
        assert sorted(re.findall(r"\{\w*\}", text)) == sorted(re.findall(r"\{\w*\}", zh[key])), key
        assert not CJK.search(text), key
        bare = re.sub(r"`[^`]*`|\{\w*\}", "", zh[key])
        assert CJK.search(bare) or not re.search(r"[a-z]{4}", bare) or key in ("groups.python", "settings.fix"), key


def test_every_word_is_used_and_there() -> None:
    """Codes stand in the sources as they are, or but for their last part."""
    directory = Path(package.__path__[0])
    text = "".join(path.read_text("utf-8") for path in directory.glob("*.py"))
    said = set(re.findall(r"say\(\s*(?:lang,\s*)?[\"']([a-z_.]+)[\"']", text))
    quoted = set(re.findall(r"[\"']([a-z_]+(?:\.[a-z_]+)*)", text))
    known = dict(leaves(doctor_words("en"))).keys()
    assert said <= known
    unused = [code for code in known if not any(code == one or code.startswith(f"{one}.") for one in quoted)]
    assert unused == []


@pytest.mark.parametrize("lang", LANGS)
def test_files_to_apply_are_there(lang: str) -> None:
    named = {path for _, text in leaves(doctor_words(lang)) for path in re.findall(r"deploy/[\w.]+", text)}
    assert len(named) == 2
    assert [path for path in named if not (Path(__file__).parents[3] / path).is_file()] == []


def test_values_are_left_as_they_are() -> None:
    assert say("en", "report.fix", fix="echo ${HOME} {x}") == "fix: echo ${HOME} {x}"
    with pytest.raises(KeyError):
        say("fr", "none")
