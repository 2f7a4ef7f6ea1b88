"""Texts of errors (`ToolError`, and the codes of a model's client) for people in chats.

Tools compose an error in English. In another language its message is translated if ``words/errors.LANG.yaml`` has it;
else the text of its code stands for it, with the English original in quotes, since that names what is concerned.
"""

from __future__ import annotations

from whystall.prompts.chat import chat_words, name, say
from whystall.prompts.escape import Safe, markdown, short
from whystall.prompts.reasons import translated
from whystall.prompts.render import words

_ORIGINAL = 500
_CODE = 60


def error_text(lang: str, code: str, message: str, remedy: str) -> Safe:
    """Return the error `code` with its remedy in `lang`, as Markdown; `message` and `remedy` are in English."""
    if lang == "en":
        return say(lang, "error.known", message=message, remedy=remedy)
    own = translated("errors", lang, message)
    what_to_do = translated("errors", lang, remedy)
    known = chat_words(lang)["error"]["remedies"].get(code)
    do = markdown(what_to_do) if what_to_do is not None else Safe(known or say(lang, "error.any_remedy"))
    if own is not None and (what_to_do is not None or known):
        return say(lang, "error.known", message=markdown(own), remedy=do)
    original = short(f"{message} ({remedy})" if what_to_do is None else message, _ORIGINAL)
    text = code_text(lang, code) if own is None else markdown(own)
    return say(lang, "error.other", what=text, id=name(short(code, _CODE)), remedy=do, original=name(original))


def code_text(lang: str, code: str) -> Safe:
    """Return what the error `code` means; the code itself if it is unknown."""
    text = chat_words(lang)["error"]["codes"].get(code)
    return name(short(code, _CODE)) if text is None else Safe(text)


def stopped_text(lang: str, code: str) -> Safe:
    """Return why a model gave no usable answer: `code` is of its client, its budget, or of an error."""
    known: dict[str, Safe] = words(lang)["stopped"]
    return known[code] if code in known else code_text(lang, code)
