"""Everything the chat can say has words in both languages, with the blanks that are filled."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import whystall.agent_server.integrations.chat as room
from whystall.knowledge_base.ticket_models import ClosedAs
from whystall.prompts.chat import chat_words
from whystall.prompts.intents import intent_rules

CJK = re.compile(r"[\u4e00-\u9fff]")


def leaves(tree: dict[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", str(value)


def blanks(text: str) -> list[str]:
    return sorted(re.findall(r"\{(\w*)\}", text))


def test_both_languages_say_the_same() -> None:
    en, zh = dict(leaves(chat_words("en"))), dict(leaves(chat_words("zh")))
    assert en.keys() == zh.keys()
    for code, text in en.items():
        assert blanks(text) == blanks(zh[code]), code
        assert not CJK.search(text), code
    with pytest.raises(KeyError):
        chat_words("fr")


def calls() -> Iterator[tuple[str, str, int, set[str]]]:
    """Every `say` of the package with a code that is written out: where, the code, and what it fills in."""
    for path in sorted(Path(room.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "say"):
                continue
            code = node.args[1]
            if isinstance(code, ast.Constant) and not any(isinstance(a, ast.Starred) for a in node.args):
                named = {keyword.arg for keyword in node.keywords if keyword.arg}
                yield f"{path.name}:{node.lineno}", str(code.value), len(node.args) - 2, named


@pytest.mark.parametrize(("where", "code", "count", "named"), list(calls()), ids=lambda v: v if type(v) is str else "")
def test_every_blank_is_filled(where: str, code: str, count: int, named: set[str]) -> None:
    text = dict(leaves(chat_words("en")))[code]
    found = blanks(text)
    assert found.count("") <= count, where
    assert {name for name in found if name} <= named, where


def test_every_command_has_words() -> None:
    for lang in ("en", "zh"):
        said = chat_words(lang)
        changing = {rule.intent for rule in intent_rules().rules if rule.changes}
        assert changing == said["done"].keys() == said["wish"].keys() - {"duplicate"}
        assert set(ClosedAs.__args__) == said["closed_as"].keys()  # type: ignore[attr-defined]
