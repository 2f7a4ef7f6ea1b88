"""Every error code has a text and a remedy in both languages, and the errors of chat commands are translated whole."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from whystall.prompts import reasons
from whystall.prompts.chat import chat_words
from whystall.prompts.errors import code_text, error_text, stopped_text
from whystall.prompts.reasons import translated
from whystall.tools.contract.errors import ErrorCode

ROOT = Path(__file__).parents[2]
CJK = re.compile(r"[\u4e00-\u9fff]")
# Classes of errors whose first argument is a code that a chat can show.
RAISED = {"ToolError", "LlmError", "Fault"}
# Modules that commands of a chat call: each of their errors is translated, not only its code.
COMMANDS = (
    "agent_server/integrations/alerts/silencing.py",
    "agent_server/journal/silences.py",
    "knowledge_base/tickets/life.py",
    "knowledge_base/tickets/human.py",
    "knowledge_base/tickets/ticket_store.py",
    "knowledge_base/diagnoses.py",
)


def sources() -> Iterator[Path]:
    for room in ("agent_server", "knowledge_base", "tools", "bpf", "prompts"):
        yield from (ROOT / room).rglob("*.py")


def codes() -> dict[str, str]:
    """Each code that the source raises an error with, and one place of it."""
    found = {code.value: "tools/contract/errors.py" for code in ErrorCode}
    for path in sources():
        text = path.read_text("utf-8")
        if not any(name in text for name in RAISED):
            continue
        raised = RAISED if "llm" in path.parts else {"ToolError", "LlmError"}
        for node in ast.walk(ast.parse(text)):
            if not (isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in raised and node.args):
                continue
            code = node.args[0]
            branches = [code.body, code.orelse] if isinstance(code, ast.IfExp) else [code]
            for one in branches:
                if isinstance(one, ast.Constant) and isinstance(one.value, str):
                    found.setdefault(one.value, f"{path.relative_to(ROOT)}:{node.lineno}")
                elif isinstance(one, ast.Attribute) and ast.unparse(one.value) == "ErrorCode":
                    found.setdefault(ErrorCode[one.attr].value, f"{path.relative_to(ROOT)}:{node.lineno}")
    return found


def test_every_code_of_the_source_has_a_chinese_text() -> None:
    known = codes()
    assert {"timeout", "rate_limited", "bad_argument", "cancelled"} <= known.keys()
    untold = {code: place for code, place in known.items() if not CJK.search(stopped_text("zh", code))}
    assert untold == {}


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_every_code_of_tools_has_a_text_and_a_remedy(lang: str) -> None:
    error = chat_words(lang)["error"]
    wanted = {code.value for code in ErrorCode}
    assert error["remedies"].keys() == wanted
    assert error["codes"].keys() == wanted | {"internal"}


@pytest.mark.parametrize("code", list(ErrorCode))
def test_an_error_is_chinese_whatever_its_message(code: ErrorCode) -> None:
    text = error_text("zh", code.value, "an [odd](http://x) `text`", "do *that*")
    before, _, original = text.partition("英文原文")
    assert CJK.search(before)
    assert code.value in before
    assert not re.search(r"[a-z]{3,} [a-z]{3,} [a-z]{3,}", re.sub(r"`[^`]*`", "", before))
    assert "an [odd](http://x) `text` (do *that*)" in original
    assert original.strip().strip("：").startswith("``")  # as code: nothing in it is markup
    assert error_text("en", code.value, "no x", "do y") == "no x (do y)"


def test_an_unknown_code_is_shown_as_it_is() -> None:
    assert code_text("zh", "no_such_code") == "`no_such_code`"
    assert "whystall doctor" in error_text("zh", "no_such_code", "odd", "nothing")


def literal(node: ast.expr | None, names: dict[str, ast.expr]) -> str | None:
    """The text of `node`, with X1 where something is filled in; None if it is put together elsewhere."""
    if isinstance(node, ast.Name):
        node = names.get(node.id)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "X1" for part in node.values)
    return None


def raised(path: Path) -> Iterator[tuple[int, str]]:
    """Texts of the errors that a module raises: messages and remedies."""
    tree = ast.parse(path.read_text("utf-8"))
    shared = {
        n.targets[0].id: n.value for n in tree.body if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name)
    }
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        names = dict(shared)
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                names[node.targets[0].id] = node.value
        for node in ast.walk(function):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func).split(".")[-1]
            texts = {"ToolError": node.args[1:3], "_refused": node.args[:2], "required": node.args[3:4]}.get(called, [])
            for part in texts:
                for one in [part.body, part.orelse] if isinstance(part, ast.IfExp) else [part]:
                    if (text := literal(one, names)) and re.search("[a-z]{3}", text):
                        yield node.lineno, text


@pytest.mark.parametrize("module", COMMANDS)
def test_errors_of_commands_are_translated_whole(module: str) -> None:
    found = list(raised(ROOT / module))
    assert found
    filled = [
        (n, text.replace("the X1 is too", "the reason is too").replace("no X1 is given", "no reason is given"))
        for n, text in found
    ]
    untold = [(n, text) for n, text in filled if text != "X1: X1" and translated("errors", "zh", text) is None]
    assert untold == []


def test_translations_follow_the_code() -> None:
    text = Path(reasons.__file__).with_name("words").joinpath("errors.zh.yaml").read_text("utf-8")
    catalog: dict[str, str] = yaml.safe_load(text)
    for key, said in catalog.items():
        assert sorted(re.findall(r"{\w+}", key)) == sorted(re.findall(r"{\w+}", said)), key
        assert CJK.search(said), key
