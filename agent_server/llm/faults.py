"""What went wrong between us and a model, in a code and one line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import httpx

from whystall.agent_server.llm.jsontext import NotJson, parsed
from whystall.agent_server.llm.wire import LlmError
from whystall.agent_server.outbound.retry import asked_wait
from whystall.agent_server.outbound.transport import TEXT_LIMIT, error_text, explained, hidden, message_of
from whystall.agent_server.settings.sources import LLM_PREFIX as PREFIX
from whystall.tools.contract.text import clean

_LINE_LIMIT = 500
# What vLLM, OpenAI, DeepSeek, llama.cpp, Ollama and DashScope say when a conversation has grown too long.
_TOO_LONG = re.compile(
    r"context[ _]length|context[ _]size|context window|exceed_context|maximum (?:model|context|input)|input length"
    r"|prompt is too long|too many tokens|longer than the (?:maximum|model)",
    re.IGNORECASE,
)
_NO_TOOLS = re.compile(
    r"not support\w*\W.{0,40}\b(?:tool|function)|\b(?:tool|function).{0,40}\b(?:not support|unsupported)"
    r"|enable-auto-tool-choice|tool-call-parser|--jinja",
    re.IGNORECASE,
)
_NO_CREDIT = re.compile(r"insufficient[_ ](?:quota|balance)|arrearage|exceeded your current quota", re.IGNORECASE)
# Words that servers put into `type` or `code` of an error within an answer, and the status that they stand for.
_KINDS = (
    (re.compile(r"rate.?limit|throttl|too_many", re.IGNORECASE), 429),
    (re.compile(r"auth|api.?key|permission", re.IGNORECASE), 401),
    (re.compile(r"overload|unavailable", re.IGNORECASE), 503),
    (re.compile(r"not.?found", re.IGNORECASE), 404),
    (re.compile(r"invalid|bad.?request|unsupported|exceed_context", re.IGNORECASE), 400),
)


class Fault(LlmError):
    """An `LlmError` on its way: `again`: it may pass, so that asking again is worth it, after `wait` seconds where the
    server said so. `message` may still hold what a server repeats of the key: `told` makes of it what others see.
    """

    def __init__(self, code: str, message: str, *, again: bool = False, wait: float | None = None) -> None:
        super().__init__(code, message)
        self.message = message
        self.again = again
        self.wait = wait

    def told(self, key: str) -> LlmError:
        """The error without the key and anything that could steer a terminal."""
        return LlmError(self.code, clean(hidden(self.message, key), _LINE_LIMIT))


def of_status(status: int, headers: Mapping[str, str], body: bytes, url: str) -> Fault:
    """What an answer with another status than 200 means."""
    text, kind = words_of(body, headers.get("content-type", ""))
    if 300 <= status < 400:
        to = httpx.URL(headers["location"]).host if _is_url(headers.get("location", "")) else ""
        where = f" to {to}" if to else ""
        return Fault("rejected", f"{url} redirects{where}, where no key is sent; set {PREFIX}BASE_URL to that place")
    wait = asked_wait(headers) if status in (408, 429) or status >= 500 else None
    fault = _judged(status, f"{text} {kind}", wait)
    fault.message = f"HTTP {status}{': ' if text else ''}{text}{_hint(fault.code, status, text, url)}"
    return fault


def of_object(answer: Mapping[str, Any]) -> Fault | None:
    """The error that an answer of status 200 holds, whole or within its stream; None where it holds none."""
    error = answer.get("error")
    if not error and answer.get("object") != "error" and not _is_bare_error(answer):
        return None
    inner = error if isinstance(error, dict) else answer
    text = clean(message_of(error or answer) or "an error without a word", TEXT_LIMIT)
    status = _status(inner)
    fault = _judged(status, f"{text} {_kind(inner)}", None)
    fault.message = f"the server reports an error within its answer: {text}{_hint(fault.code, status, text, '')}"
    return fault


def _is_bare_error(answer: Mapping[str, Any]) -> bool:
    """DashScope's own errors: a code and a message, and no choices. Some gateways put a code of success everywhere."""
    code = answer.get("code")
    good = not code or str(code).lower() in ("200", "success", "ok")
    return not good and isinstance(answer.get("message"), str) and answer.get("choices") is None


_ELSEWHERE = "start it, or correct WHYSTALL_LLM_BASE_URL"


def of_transport(error: Exception, host: str, *, started: bool) -> Fault:
    """What a failed connection means; `started`: some of the answer was there."""
    failed = explained(error, host, started=started)
    hint = f"; {_ELSEWHERE}" if failed.elsewhere else ""
    return Fault(failed.code, f"{failed.message}{hint}", again=failed.again)


def _judged(status: int, text: str, wait: float | None) -> Fault:
    """The code that `status` and the server's words come to, without a message."""
    if status in (401, 403, 407):
        return Fault("unauthorised", text)
    if status == 413 or (status >= 400 and status != 429 and _TOO_LONG.search(text)):
        return Fault("context_full", text)
    if status == 402 or (status == 429 and _NO_CREDIT.search(text)):
        return Fault("rejected", text)
    if status == 429:
        return Fault("rate_limited", text, again=True, wait=wait)
    if status == 408:
        return Fault("timeout", text, again=True, wait=wait)
    if status >= 500:
        # llama.cpp answers 500, and will again, where it was not started for function calls
        lasting = status in (501, 505) or "--jinja" in text
        return Fault("rejected" if lasting else "server_error", text, again=not lasting, wait=wait)
    return Fault("rejected" if status >= 400 else "bad_answer", text, again=status == 425, wait=wait)


def _hint(code: str, status: int, text: str, url: str) -> str:
    if status == 404 and "model" in text.lower():
        return f"; check {PREFIX}MODEL"
    if status == 404 and url:
        return f"; no model answers at {url}: {PREFIX}BASE_URL usually ends in /v1"
    if code == "unauthorised":
        return "; check the proxy's user" if status == 407 else f"; check {PREFIX}API_KEY_FILE (or _API_KEY)"
    if code == "rejected" and _NO_TOOLS.search(text):
        return "; choose a model that can call functions, or start the server with function calls"
    if status == 405:
        return f"; check {PREFIX}BASE_URL"
    return ""


def _status(error: Mapping[str, Any]) -> int:
    """The HTTP status that an error within an answer stands for."""
    for name in ("code", "status", "status_code"):
        number = str(error.get(name))[:4]
        if number.isdecimal() and 400 <= int(number) < 600:
            return int(number)
    return next((status for pattern, status in _KINDS if pattern.search(_kind(error))), 500)


def _kind(error: Any) -> str:
    """The words for programs that an error holds."""
    inner = error.get("error", error) if isinstance(error, dict) else None
    if not isinstance(inner, dict):
        return ""
    return clean(" ".join(str(inner[name])[:TEXT_LIMIT] for name in ("type", "code") if inner.get(name)), TEXT_LIMIT)


def words_of(body: bytes, content_type: str) -> tuple[str, str]:
    """What a server says in the body of an error, cut short: for people, and for programs."""
    try:
        kind = _kind(parsed(body))
    except NotJson:
        kind = ""
    return error_text(body, content_type), kind


def _is_url(text: str) -> bool:
    try:
        return bool(httpx.URL(text).host)
    except (httpx.InvalidURL, ValueError):
        return False
