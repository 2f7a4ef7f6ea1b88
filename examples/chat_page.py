"""The page of `chat_server`: the chats side by side, with messages as the vendors show them. All text is escaped."""

from __future__ import annotations

import html
import re
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chat_vendors import Message, Vendors

_NAMES = {"dingtalk": "DingTalk", "feishu": "Feishu", "slack": "Slack", "wecom": "WeCom"}
_STYLE = """
:root { color-scheme: light dark; --line: #d0d7de; --quiet: #59636e; --card: #fff; --page: #f0f2f5; --link: #0b62c4;
  --code: #eef1f4; --own: #d7ebff; --warn: #9a3b00; }
@media (prefers-color-scheme: dark) { :root { --line: #3a424c; --quiet: #9aa5b1; --card: #1c2229; --page: #0d1117;
  --link: #6cb0ff; --code: #2b323b; --own: #173a5e; --warn: #ff9d5c; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); font: 15px/1.5 system-ui, "Noto Sans CJK SC", "WenQuanYi Micro Hei",
  sans-serif; }
header { padding: .8rem 1.2rem; background: var(--card); border-bottom: 1px solid var(--line); display: flex; gap: 1rem;
  align-items: center; flex-wrap: wrap; position: sticky; top: 0; }
h1 { font-size: 1.05rem; margin: 0; } form { display: flex; gap: .5rem; flex: 1; min-width: 20rem; }
input[type=text] { flex: 1; } input, select, button { font: inherit; padding: .35rem .7rem; border-radius: 6px;
  border: 1px solid var(--line); background: var(--page); color: inherit; }
main { display: grid; grid-template-columns: repeat(auto-fit, minmax(21rem, 1fr)); gap: 1rem; padding: 1rem 1.2rem; }
h2 { font-size: .95rem; margin: 0 0 .6rem; } .quiet { color: var(--quiet); font-size: .8rem; }
.msg { background: var(--card); border: 1px solid var(--line); border-radius: 4px 12px 12px 12px; padding: .6rem .9rem;
  margin: 0 0 .8rem; overflow-wrap: anywhere; max-width: 94%; }
.person { background: var(--own); border-radius: 12px 4px 12px 12px; margin-left: auto; width: fit-content; }
.msg p, .msg ul, .msg ol, .msg blockquote, .msg h4, .msg pre { margin: .25rem 0; } .msg h4 { font-size: 1rem; }
.msg ul, .msg ol { padding-left: 1.3rem; } blockquote { border-left: 3px solid var(--line); padding-left: .7rem; }
.msg img { max-width: 100%; border-radius: 6px; margin-top: .4rem; display: block; border: 1px solid var(--line); }
code, pre { background: var(--code); border-radius: 4px; padding: .08em .3em; font-size: .88em; }
.warn { color: var(--warn); font-weight: 600; }
.refused { margin: 0 1.2rem 1rem; padding: .6rem 1rem; border-radius: 8px;
  background: var(--card); border: 1px solid var(--warn); } a { color: var(--link); }
"""


def page(vendors: Vendors, note: str = "") -> str:
    """Return the page with the chats and a form to send a message."""
    chats = {name: "".join(_message(one) for one in vendors.messages if one.vendor == name) for name in _NAMES}
    columns = "".join(f"<section><h2>{label}</h2>{chats[name] or _EMPTY}</section>" for name, label in _NAMES.items())
    choices = "".join(f"<option value={name}>{label}</option>" for name, label in _NAMES.items())
    refused = "".join(f"<li>{html.escape(why)}</li>" for why in vendors.refused[-20:])
    warned = f"<div class=refused><b class=warn>Refused</b><ul>{refused}</ul></div>" if refused else ""
    notice = f"<span class=warn>{html.escape(note)}</span>" if note else ""
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>Chats</title><style>{_STYLE}</style>"
        f"<header><h1>Chats: {len(vendors.messages)} messages</h1><form method=post action=/say>"
        f"<select name=vendor>{choices}</select><input type=text name=text placeholder='为什么训练卡顿' autofocus>"
        f"<button>Say</button></form>{notice}<a href=/>reload</a></header>{warned}<main>{columns}</main></html>"
    )


_EMPTY = "<p class=quiet>No messages yet.</p>"


def _message(message: Message) -> str:
    sender = "" if message.by == "us" else f"{html.escape(message.by)} · "
    at = time.strftime("%H:%M:%S", time.localtime(message.at))
    head = f"<div class=quiet>{sender}{html.escape(message.conversation)} · {at}</div>"
    if message.by != "us":
        return f"<div class='msg person'>{head}{html.escape(str(message.content))}</div>"
    shown = {"dingtalk": _dingtalk, "feishu": _feishu, "slack": _slack, "wecom": _wecom}
    body = shown[message.vendor](message)
    pictures = "".join(f"<img src='{html.escape(url, quote=True)}' alt=picture>" for url in message.pictures)
    mentions = (
        f"<div class=warn>It mentions {html.escape(', '.join(message.mentions))}</div>" if message.mentions else ""
    )
    return f"<div class=msg>{head}{body}{pictures}{mentions}</div>"


# --- DingTalk: the subset of Markdown that it documents ---------------------------------------------------------------


def _dingtalk(message: Message) -> str:
    made = []
    for line in re.split(r"\n{2,}|  \n|\n(?=\s*(?:[-*]|\d+\.|>|#) )", str(message.content)):
        text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", line.strip("\n"))
        if not text.strip():
            continue
        indent = (len(text) - len(text.lstrip())) * 8
        if found := re.match(r"\s*#{1,6} (.*)", text):
            made.append(f"<h4>{_inline(found[1])}</h4>")
        elif found := re.match(r"\s*(?:[-*]|(\d+)\.) (.*)", text):
            mark = f"{found[1]}." if found[1] else "•"
            made.append(f"<p style='padding-left:{indent + 14}px;text-indent:-14px'>{mark} {_inline(found[2])}</p>")
        elif found := re.match(r"\s*> ?(.*)", text):
            made.append(f"<blockquote>{_inline(found[1])}</blockquote>")
        else:
            made.append(f"<p>{_inline(text)}</p>")
    return "".join(made)


def _wecom(message: Message) -> str:
    """WeCom has no lists, and every line is one."""
    made = []
    for line in str(message.content).split("\n"):
        if found := re.match(r"(#{1,6}|>) ?(.*)", line):
            tag = "blockquote" if found[1] == ">" else "h4"
            made.append(f"<{tag}>{_inline(found[2])}</{tag}>")
        elif line.strip():
            made.append(f"<p>{_inline(line)}</p>")
    return "".join(made)


def _inline(text: str) -> str:
    text = html.escape(text, quote=True)
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
    text = re.sub(r"\*\*([^*]+)\*\*", r"<b>\1</b>", text)
    text = re.sub(r"(?<!\*)\*([^*\s][^*]*)\*", r"<i>\1</i>", text)
    return re.sub(r"\[([^\]]*)\]\((https?://[^)\s]+)\)", r"<a href='\2'>\1</a>", text)


# --- Feishu: paragraphs of elements -----------------------------------------------------------------------------------


def _feishu(message: Message) -> str:
    title = f"<h4>{html.escape(message.title)}</h4>" if message.title else ""
    paragraphs = ["".join(map(_element, one)) for one in message.content]
    return title + "".join(f"<p>{one or '&nbsp;'}</p>" for one in paragraphs)


def _element(element: dict[str, Any]) -> str:
    text = html.escape(str(element.get("text", "")), quote=True)
    for style, tag in (("bold", "b"), ("italic", "i")):
        if style in element.get("style", []):
            text = f"<{tag}>{text}</{tag}>"
    if element.get("tag") == "a":
        return f"<a href='{html.escape(str(element.get('href')), quote=True)}'>{text}</a>"
    return "" if element.get("tag") == "img" else text


# --- Slack: blocks ----------------------------------------------------------------------------------------------------

_TAGS = {"rich_text_section": "p", "rich_text_quote": "blockquote", "rich_text_preformatted": "pre"}


def _slack(message: Message) -> str:
    return "".join(map(_block, message.content)) or f"<p>{html.escape(message.title)}</p>"


def _block(block: dict[str, Any]) -> str:
    kind, inside = str(block.get("type")), block.get("elements", [])
    if kind == "rich_text":
        return "".join(map(_block, inside))
    if kind == "rich_text_list":
        tag = "ol" if block.get("style") == "ordered" else "ul"
        indent = 1.3 + 1.2 * int(block.get("indent", 0))
        items = "".join(f"<li>{''.join(map(_rich, item.get('elements', [])))}</li>" for item in inside)
        return f"<{tag} start={int(block.get('offset', 0)) + 1} style='padding-left:{indent}rem'>{items}</{tag}>"
    if kind in _TAGS:
        return f"<{_TAGS[kind]}>{''.join(map(_rich, inside))}</{_TAGS[kind]}>"
    text = block.get("text")
    return f"<p>{html.escape(str(text.get('text')))}</p>" if isinstance(text, dict) else ""


def _rich(element: dict[str, Any]) -> str:
    text = html.escape(str(element.get("text", "")), quote=True).replace("\n", "<br>")
    for style, tag in (("code", "code"), ("bold", "b"), ("italic", "i")):
        if element.get("style", {}).get(style):
            text = f"<{tag}>{text}</{tag}>"
    if element.get("type") == "link":
        return f"<a href='{html.escape(str(element.get('url')), quote=True)}'>{text}</a>"
    return text
