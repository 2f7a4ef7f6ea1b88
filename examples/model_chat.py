"""A rule-based policy for ``whystall chat --llm``: it calls one function for a question and reports the result."""

from __future__ import annotations

import re
from typing import Any

from model_http import Call, Request, Turn
from model_reading import payloads

_QUESTIONS = (
    ("ticket", r"(?:ticket|工单|#) *#?(\d{1,9})", "id"),
    ("on_call", r"(on[ -]?call|on duty|值班)", ""),
    ("similar", r"(?:similar|like|before|类似|以前)[:： ]*(.+)", "text"),
    ("tickets", r"(tickets|open|工单)", ""),
    ("start_look", r"(?:why|slow|stuck|卡|慢).*?([A-Za-z]+[\w.]*-[\w.-]+|\d{2,7})", "text"),
    ("list_jobs", r"(jobs?|running|作业|任务)", ""),
)


def operator(request: Request) -> Turn:
    """Return one call for the question, then a sentence about its result; ask back if no question is recognised."""
    received = [
        value for m in request.messages if m["role"] in ("user", "tool") for value in payloads(str(m["content"]))
    ]
    asked = next((value["message"] for value in received if isinstance(value, dict) and "message" in value), "")
    called = any(m.get("tool_calls") for m in request.messages)
    if not called:
        for name, pattern, argument in _QUESTIONS:
            found = re.search(pattern, asked, re.IGNORECASE)
            if found and name in request.functions:
                return Turn(calls=(Call(name, {argument: found[1]} if argument else {}),))
        return Turn("What would you like to know?")
    return Turn(" ".join(_sentences(received[-1])) or "Is anything else of interest?")


def _sentences(result: dict[str, Any]) -> list[str]:
    """Return sentences about the values of `result`, as placeholders."""
    at = result.get("result", 1)
    lines = [
        f"{{{at}.on_call.{n}.users.0}} could take it."
        for n, one in enumerate(result.get("on_call", []))
        if one["users"]
    ]
    tickets = [f"tickets.{n}" for n, _ in enumerate(result.get("tickets", []))]
    tickets += ["ticket"] if isinstance(result.get("ticket"), dict) else []
    lines += [f"Ticket {{{at}.{path}.ticket}} is {{{at}.{path}.state}}." for path in tickets]
    lines += [f"{{{at}.jobs.{n}.name}} has pid {{{at}.jobs.{n}.pid}}." for n, _ in enumerate(result.get("jobs", []))]
    found = enumerate(result.get("incidents", []))
    lines += [f"It may be {{{at}.incidents.{n}.incident}}." for n, incident in found if incident["fits"]]
    return lines[:4]
