"""The prompts of the MCP server: names, arguments, texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from whystall.prompts.render import render


@dataclass(frozen=True)
class Prompt:
    """A prompt; `arguments` maps names (all optional) to descriptions."""

    name: str
    title: str
    description: str
    arguments: dict[str, str]


_PID = {"en": "process id of the job", "zh": "作业的进程号"}
_PROMPTS: dict[str, dict[str, tuple[str, str]]] = {
    "start_here": {
        "en": ("Start here", "The order of work to find out why a training or inference job stalls"),
        "zh": ("从这里开始", "按什么顺序找出训练或推理作业停顿的原因"),
    },
    "compare_before_after": {
        "en": ("Compare before and after", "Check whether a fix worked, finding by finding"),
        "zh": ("对比修复前后", "逐条发现检查修复是否有效"),
    },
    "write_ticket": {
        "en": ("Write a ticket", "Turn a diagnosis into a ticket for a named reader"),
        "zh": ("撰写工单", "把诊断写成面向指定读者的工单"),
    },
}
_ARGUMENTS: dict[str, dict[str, dict[str, str]]] = {
    "start_here": {
        "pid": _PID,
        "comm": {"en": "command name of the job", "zh": "作业的命令名"},
        "symptom": {"en": "what was noticed", "zh": "观察到的现象"},
    },
    "compare_before_after": {
        "before": {"en": "ticket or diagnosis from before the fix", "zh": "修复之前的工单或诊断"},
        "pid": _PID,
    },
    "write_ticket": {
        "diagnosis": {"en": "id of the diagnosis", "zh": "诊断编号"},
        "audience": {"en": "who reads it", "zh": "读者"},
    },
}


def prompts(lang: str) -> list[Prompt]:
    """Return every prompt, described in `lang`."""
    return [
        Prompt(name, *texts[lang], {argument: text[lang] for argument, text in _ARGUMENTS[name].items()})
        for name, texts in _PROMPTS.items()
    ]


def prompt(name: str, arguments: Mapping[str, str], lang: str) -> str:
    """Return the text of prompt `name`; KeyError for an unknown prompt or argument."""
    known = _ARGUMENTS[name]
    for argument in arguments:
        if argument not in known:
            raise KeyError(argument)
    return render(f"mcp/{name}.md", lang, **{argument: arguments.get(argument) or "" for argument in known})


def instructions(lang: str) -> str:
    """Return the instructions of the MCP server."""
    return render("mcp/instructions.md", lang)
