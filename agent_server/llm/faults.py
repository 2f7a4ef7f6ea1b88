"""Classify the errors of a model's server: a code and one line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import httpx

from whystall.agent_server.llm.jsontext import NotJson, parse_json
from whystall.agent_server.llm.wire import LlmError
from whystall.agent_server.outbound.retry import requested_wait_s
from whystall.agent_server.outbound.transport import (
    TEXT_LIMIT,
    connection_failure,
    error_text,
    message_of,
    redact_parts,
)
from whystall.agent_server.settings.sources import LLM_PREFIX as PREFIX
from whystall.tools.contract.text import clean

_LINE_LIMIT = 500
# Messages of vLLM, OpenAI, DeepSeek, llama.cpp, Ollama and DashScope for a conversation that is too long.
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
# Words in `type` or `code` of an error within an answer, and the HTTP status that they mean.
_KINDS = (
    (re.compile(r"rate.?limit|throttl|too_many", re.IGNORECASE), 429),
    (re.compile(r"auth|api.?key|permission", re.IGNORECASE), 401),
    (re.compile(r"overload|unavailable", re.IGNORECASE), 503),
    (re.compile(r"not.?found", re.IGNORECASE), 404),
    (re.compile(r"invalid|bad.?request|unsupported|exceed_context", re.IGNORECASE), 400),
)


class Fault(LlmError):
    """An `LlmError` before redaction. `again`: a retry may help, after `wait` seconds if the server asks for that.

    `message` may contain the key if the server repeats it.
    """

    def __init__(self, code: str, message: str, *, again: bool = False, wait: float | None = None) -> None:
        super().__init__(code, message)
        self.message = message
        self.again = again
        self.wait = wait

    def redacted(self, key: str) -> LlmError:
        """Return the error without the key and without control characters."""
        return LlmError(self.code, clean(redact_parts(self.message, key), _LINE_LIMIT))


def fault_of_status(status: int, headers: Mapping[str, str], body: bytes, url: str) -> Fault:
    """Return the fault of an answer with another status than 200."""
    text, kind = error_words(body, headers.get("content-type", ""))
    if 300 <= status < 400:
        to = httpx.URL(headers["location"]).host if _is_url(headers.get("location", "")) else ""
        where = f" to {to}" if to else ""
        return Fault("rejected", f"{url} redirects{where}, where no key is sent; set {PREFIX}BASE_URL to that place")
    wait = requested_wait_s(headers) if status in (408, 429) or status >= 500 else None
    fault = _classified(status, f"{text} {kind}", wait)
    fault.message = f"HTTP {status}{': ' if text else ''}{text}{_hint(fault.code, status, text, url)}"
    return fault


def fault_in_answer(answer: Mapping[str, Any]) -> Fault | None:
    """Return the fault in an answer of status 200, whole or streamed; None without one."""
    error = answer.get("error")
    if not error and answer.get("object") != "error" and not _is_bare_error(answer):
        return None
    inner = error if isinstance(error, dict) else answer
    text = clean(message_of(error or answer) or "an error without a message", TEXT_LIMIT)
    status = _status(inner)
    fault = _classified(status, f"{text} {_kind(inner)}", None)
    fault.message = f"the server reports an error within its answer: {text}{_hint(fault.code, status, text, '')}"
    return fault


def _is_bare_error(answer: Mapping[str, Any]) -> bool:
    """Return whether this is DashScope's form of an error: a code and a message without choices.

    Some gateways add a code of success to every answer.
    """
    code = answer.get("code")
    good = not code or str(code).lower() in ("200", "success", "ok")
    return not good and isinstance(answer.get("message"), str) and answer.get("choices") is None


def fault_of_transport(error: Exception, host: str, *, started: bool) -> Fault:
    """Return the fault of a failed connection; `started`: a part of the answer arrived."""
    failed = connection_failure(error, host, started=started)
    hint = "; start it, or correct WHYSTALL_LLM_BASE_URL" if failed.elsewhere else ""
    return Fault(failed.code, f"{failed.message}{hint}", again=failed.again)


def _classified(status: int, text: str, wait: float | None) -> Fault:
    """Classify `status` and the server's message `text`."""
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
        # llama.cpp always answers 500 if it was not started for function calls.
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
    """Return the HTTP status that an error within an answer means."""
    for name in ("code", "status", "status_code"):
        number = str(error.get(name))[:4]
        if number.isdecimal() and 400 <= int(number) < 600:
            return int(number)
    return next((status for pattern, status in _KINDS if pattern.search(_kind(error))), 500)


def _kind(error: Any) -> str:
    """Return `type` and `code` of an error."""
    inner = error.get("error", error) if isinstance(error, dict) else None
    if not isinstance(inner, dict):
        return ""
    return clean(" ".join(str(inner[name])[:TEXT_LIMIT] for name in ("type", "code") if inner.get(name)), TEXT_LIMIT)


def error_words(body: bytes, content_type: str) -> tuple[str, str]:
    """Return the message in the body of an error, and its `type` and `code`; both shortened."""
    try:
        kind = _kind(parse_json(body))
    except NotJson:
        kind = ""
    return error_text(body, content_type), kind


def _is_url(text: str) -> bool:
    try:
        return bool(httpx.URL(text).host)
    except (httpx.InvalidURL, ValueError):
        return False
