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
    return Turn(" ".join(_sentences(received[-1])) or "I found nothing like that.")


def _sentences(result: dict[str, Any]) -> list[str]:
    lines = [f"{', '.join(turn['users'])} is on call for {turn['schedule']}." for turn in result.get("on_call", [])]
    tickets = [*result.get("tickets", []), *([result["ticket"]] if isinstance(result.get("ticket"), dict) else [])]
    lines += [f"Ticket {ticket['ticket']} is {ticket['state']}." for ticket in tickets]
    lines += [f"{job['name']} has pid {job['pid']}." for job in result.get("jobs", [])]
    lines += [f"It is {incident['incident']}." for incident in result.get("incidents", []) if incident["fits"]]
    return lines[:4]
