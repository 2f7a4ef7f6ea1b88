"""Cases solved by the rule driver, for tests of what it concludes."""

from __future__ import annotations

import anyio

from whystall.agent_server.diagnosis import rules
from whystall.agent_server.diagnosis.case import Case
from whystall.agent_server.diagnosis.observer import Observer
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.models import Diagnosis
from whystall.tools.toolbox import registry


def new_case(observer: Observer, symptom: str, target: str = "pid 4000") -> Case:
    """A case nobody has looked into yet, with every cause and tool."""
    tools = {tool.name: tool for tool in registry().all()}
    return Case(load_causes(), tools, observer, duration=12, symptom=symptom, target=target)


def solve(observer: Observer, symptom: str, target: str = "pid 4000") -> Diagnosis:
    """What the rules find."""
    case = new_case(observer, symptom, target)
    anyio.run(lambda: rules.finish(case))
    return case.diagnosis()
