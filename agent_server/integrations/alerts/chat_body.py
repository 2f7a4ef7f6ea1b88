"""Read an alert that its sender writes for the robot of a chat: a text with a title and lines of fields. Pure.

    {"msg_type": "text", "content": {"text": "【P1 告警】存储\\n规则：mds 慢请求\\n主机：ceph-3"}}        Feishu
    {"msgtype": "markdown", "markdown": {"title": "[严重] PFC", "text": "- 交换机: leaf-21"}}       DingTalk
    {"msgtype": "markdown", "markdown": {"content": "**NodeDown**\\n> host: gpu-3"}}             WeCom
    {"msg_type": "interactive", "card": {"header": {"title": {"content": "NPU"}}, "elements": []}}  Feishu

Forms of custom robots: open.feishu.cn (自定义机器人使用指南), open.dingtalk.com (自定义机器人发送群聊消息),
developer.work.weixin.qq.com (消息推送配置说明). The lines' names are read by the paths of `Form`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from whystall.knowledge_base.classify.severities import severity_of_word

_KINDS = ("msgtype", "msg_type")
_TEXTS = ("title", "text", "content")
_DEPTH, _LINES, _CHARS = 8, 100, 16_000
_MARKS = re.compile(r"^[\s>#*•·-]+|\*\*|</?font[^>]*>|[\s*]+$")
# 主机：ceph-3 | - Switch: leaf-21; no address of a page and no time
_FIELD = re.compile(r"(?P<name>[^\W\d][\w /-]{0,19}?)\s*[:：]\s*(?P<value>(?!//)\S.*)")
# 【P1 告警】 | [FIRING:1] | 🔥 [紧急], at the beginning of a title
_TAG = re.compile(r"^[^\w\[【(（]*[\[【(（]\s*(?P<tag>[^\]】)）]{1,30})[\]】)）]\s*")
_ENDED = re.compile(r"恢复|解除|正常|\b(?:resolved|recovered|recovery|ok|cleared)\b", re.IGNORECASE)

_COUNTED = re.compile(r":\s*\d+$")  # [FIRING:1], one alert
_STATES = ("状态", "告警状态", "当前状态", "status", "Status", "state", "State")


def item_of(body: Mapping[str, Any]) -> dict[str, str] | None:
    """Return title, text, status, severity and named fields of a message for a robot; None for another body."""
    if not any(isinstance(body.get(kind), str) for kind in _KINDS):
        return None
    lines = list(dict.fromkeys(_lines(body)))[:_LINES]
    if not lines:
        return None
    title = lines[0]
    tags: list[str] = []
    while (tag := _TAG.match(title)) is not None:
        tags.append(tag["tag"])
        title = title[tag.end() :]
    fields = {part["name"]: part["value"] for line in lines if (part := _FIELD.fullmatch(line)) is not None}
    found = {**fields, "title": title or lines[0], "description": "\n".join(lines)[:_CHARS]}
    states = [*tags, *(fields[name] for name in _STATES if name in fields)]
    found["status"] = "resolved" if any(map(_ENDED.search, states)) else "firing"
    graded = [tag for tag in tags if not _COUNTED.search(tag) and severity_of_word(tag) is not None]
    return {**found, **({"severity": graded[0]} if graded else {})}


def _lines(value: Any, depth: int = 0, named: bool = False) -> Iterator[str]:
    """Yield the lines of all texts, in order, without marks of Markdown. `named`: the value is that of a text's key."""
    if isinstance(value, str) and named:
        for line in value[:_CHARS].splitlines():
            if plain := _MARKS.sub("", line).strip():
                yield plain
    elif depth < _DEPTH and isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _lines(inner, depth + 1, key in _TEXTS)
    elif depth < _DEPTH and isinstance(value, list):
        for inner in value[:_LINES]:
            yield from _lines(inner, depth + 1, named)
