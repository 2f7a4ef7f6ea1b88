"""Translated reasons why an engine was not chosen; the translations follow the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from whystall.prompts import reasons
from whystall.prompts.reasons import in_words
from whystall.prompts.render import voice
from whystall.tools.collect.bcc.known_faults import KNOWN_FAULTS

ROOT = Path(__file__).parents[2]
CJK = re.compile(r"[\u4e00-\u9fff]")
SOURCES = sorted(
    path
    for room in ("bpf", "tools/collect", "tools/node", "agent_server/fleet")
    for path in (ROOT / room).rglob("*.py")
)
# Functions whose texts are reasons, whatever engine they are of.
ASKED = {"unavailable", "cannot", "no_kprobes", "_wrong", "_other_options"}


def catalog() -> dict[str, str]:
    text = Path(reasons.__file__).with_name("words").joinpath("reasons.zh.yaml").read_text("utf-8")
    found: dict[str, str] = yaml.safe_load(text)
    return found


def template(node: ast.expr | None) -> str | None:
    """A text of the sources, with ``{}`` where something is filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return None


def texts() -> Iterator[str]:
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.expr) and (said := template(node)) is not None:
                yield said


def told() -> Iterator[str]:
    """What engines and their ways answer when they are asked why not."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name in ASKED:
                for inner in ast.walk(node):
                    branches = [inner.value] if isinstance(inner, ast.Return) and inner.value is not None else []
                    branches += [b for v in branches if isinstance(v, ast.IfExp) for b in (v.body, v.orelse)]
                    yield from (said for branch in branches if (said := template(branch)))
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "HeadersProblem" and node.args:
                yield template(node.args[0]) or ""


def test_every_reason_in_the_code_is_translated() -> None:
    there = set(texts())
    assert [key for key in catalog() if re.sub(r"{\w+}", "{}", key) not in there] == []
    for key, said in catalog().items():
        assert sorted(re.findall(r"{\w+}", key)) == sorted(re.findall(r"{\w+}", said)), key
        assert CJK.search(said), key


def test_what_engines_answer_has_words() -> None:
    # what is put together of others' texts, and what trace-cmd itself said
    asked = {said for said in told() if re.search(r"[a-z]{3}", said)} - {"{} (fix: {})", "trace-cmd: {}"}
    assert len(asked) > 15
    untold = [said for said in asked if not CJK.search(in_words("zh", said.replace("{}", "x1")))]
    assert untold == []
    reasons = [fault.reason for fault in KNOWN_FAULTS if not fault.limited]
    assert [reason for reason in reasons if not CJK.search(in_words("zh", reason))] == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("bcc: no headers of the running kernel 6.1.0-9", "bcc：没有当前内核 6.1.0-9 的头文件"),
        (
            "ebpf: the kernel has no type information (BTF); bcc: softirqs is not installed; the kernel has no kprobes",
            "ebpf：内核没有类型信息（BTF）；bcc：softirqs 未安装；内核没有 kprobe",
        ),
        (
            "ebpf: no_privilege: the kernel loads no BPF program of ours: Operation not permitted",
            "ebpf：no_privilege：内核拒绝加载 whystall 的 BPF 程序：Operation not permitted",
        ),
        (
            "headers are of kernel 6.1, running is 6.2 (fix: sudo apt-get install -y linux-headers-6.2)",
            "头文件属于内核 6.1，当前运行的是 6.2（修复：sudo apt-get install -y linux-headers-6.2）",
        ),
        ("tracefs cannot be mounted: this kernel has none", "无法挂载 tracefs：此内核没有 tracefs"),
    ],
)
def test_reasons_in_chinese(text: str, said: str) -> None:
    assert in_words("zh", text) == said
    assert in_words("en", text) == text


@pytest.mark.parametrize("text", ["", "what nobody wrote; nor this", "a {brace} {0}", "bcc: odd: odd"])
def test_untranslated_reasons_stay(text: str) -> None:
    assert in_words("zh", text) == text


def test_blanks_are_filled_with_anything() -> None:
    assert in_words("zh", "headers are of kernel {x}%s, running is {") == "头文件属于内核 {x}%s，当前运行的是 {"


def test_a_blind_spot_is_translated() -> None:
    spot = SimpleNamespace(code="no_engine", detail="ebpf: the kernel has no type information (BTF)")
    assert "内核没有类型信息" in voice("txt", "zh").blind(spot)
    assert "no type information" in voice("txt", "en").blind(spot)
