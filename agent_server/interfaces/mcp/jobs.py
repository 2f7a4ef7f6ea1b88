"""The MCP tool ``find_job``: find the processes of a job."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from whystall.agent_server.integrations.chat.answers import found_message
from whystall.agent_server.interfaces.mcp.calls import Progress
from whystall.agent_server.interfaces.mcp.entry import Answer, Entry
from whystall.agent_server.interfaces.mcp.which_process import ask_which
from whystall.agent_server.job_lookup.find import find
from whystall.agent_server.job_lookup.models import Wanted
from whystall.knowledge_base.models import Lang
from whystall.tools.contract.params import Params


class FindJobParams(Params):
    """Find a job."""

    text: Annotated[
        str, Field(min_length=1, max_length=2000, description="name, pid, job, pod, container, rank: llama rank 3")
    ]


def find_job(lang: Lang) -> Entry:
    """Return the tool."""

    async def call(given: dict[str, Any], _progress: Progress) -> Answer:
        found = await find(Wanted(text=given["text"]))
        return found, found_message(found, lang).text

    text = "Finds which process is meant by words; of several jobs it lists all and chooses none."
    prepare = ask_which(lambda given: given["text"], lambda _given, pid: {"text": f"pid {pid}"}, lang)
    return Entry("find_job", "Find a job", text, FindJobParams, call, prepare=prepare)
