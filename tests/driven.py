"""Diagnoses that a model drives, in a state directory of their own, with the example server as the model."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import model_server
import pytest
import warm_command
from model_http import Answer, Policy, Request
from model_policies import POLICIES

from whystall.agent_server.app import App
from whystall.agent_server.diagnosis.params import DiagnoseParams
from whystall.agent_server.presentation import results as words
from whystall.agent_server.presentation.reasoning_lines import explanation
from whystall.agent_server.presentation.ticket_texts import tickets_text
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.models import Diagnosis, Lang

SYMPTOM = "training stalls every few steps"
TIMEOUT_S = 120.0
LANGS: tuple[Lang, ...] = ("en", "zh")


@dataclass
class Driven:
    """A diagnosis, and what the model was asked meanwhile."""

    diagnosis: Diagnosis
    requests: list[Request]
    lang: Lang = "en"

    @property
    def answer(self) -> tuple[str, str | None]:
        """Verdict and cause."""
        return self.diagnosis.verdict.value, self.diagnosis.cause

    @property
    def story(self) -> str:
        """What was kept of what the model said, as readers see it."""
        d = self.diagnosis
        by_id = {finding.id: finding for finding in d.findings}
        told = explanation(d.reasoning, by_id, load_causes(), "txt", self.lang, 100_000)
        return "\n".join([*told.story, *told.unverified])

    @property
    def tools(self) -> set[str]:
        """What was looked at."""
        return {tool for step in self.diagnosis.steps for tool in step.tools}

    @property
    def heard(self) -> str:
        """Everything that the model said, as the requests repeat it."""
        said = [m for request in self.requests for m in request.messages if m["role"] == "assistant"]
        return json.dumps(said, ensure_ascii=False)


@dataclass
class Home:
    """A state directory, and what is done in it: within this process, or by the installed command."""

    path: Path

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """A command to its end."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("WHYSTALL_LLM_")}
        env = {**inherited, "WHYSTALL_HOME": str(self.path), "COLUMNS": "200", **environment}
        return warm_command.run(*arguments, env=env, timeout=TIMEOUT_S)

    def json(self, *arguments: str, **environment: str) -> Any:
        """What a command prints as JSON; it must succeed."""
        done = self.run(*arguments, "--json", **environment)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def diagnose(self, source: Path | None = None, lang: Lang = "en", **params: Any) -> Diagnosis:
        """A diagnosis within this process, of `source` where it is given."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("WHYSTALL_HOME", str(self.path))
            with App().closing() as app:
                asked = DiagnoseParams(**{"symptom": SYMPTOM, **params})
                return anyio.run(lambda: app.diagnose(asked, source=source, lang=lang))

    def drive(
        self, policy: str | Policy | Iterable[Answer], source: Path | None = None, lang: Lang = "en", **params: Any
    ) -> Driven:
        """The same with a model that answers by `policy`; drafts a ticket."""
        answers = POLICIES[policy].make() if isinstance(policy, str) else policy
        with model_server.serve(answers) as server, pytest.MonkeyPatch.context() as patch:
            for name, value in settings(server.base_url).items():
                patch.setenv(name, value)
            diagnosis = self.diagnose(source, lang, llm=True, ticket=True, **params)
            return Driven(diagnosis, server.chats, lang)

    def ticket(self, id: str | None) -> str:
        """A ticket in everything it is shown as: both languages, JSON, and its line in the list."""
        assert id is not None
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("WHYSTALL_HOME", str(self.path))
            with App().closing() as app:
                found, lines = app.kb().tickets.get(id), app.kb().tickets.lines()
                told = app.kb().tickets.events(id)
        shown = [words.ticket_text(found, lang, told) for lang in LANGS]
        shown += [tickets_text(lines, 0, lang) for lang in LANGS]
        return "\n".join([*shown, found.model_dump_json()])

    def stored(self) -> bytes:
        """Every byte of the knowledge base, its journal included."""
        return b"".join(path.read_bytes() for path in sorted(self.path.glob("*.db*")))


def settings(url: str) -> dict[str, str]:
    """The environment in which a model answers at `url`."""
    return {"WHYSTALL_LLM_BASE_URL": url, "WHYSTALL_LLM_MODEL": model_server.MODEL}


def outcome(diagnosis: Diagnosis) -> Mapping[str, Any]:
    """What a diagnosis says. Ids of findings follow the order of looking, which is a driver's own."""
    parts = {"verdict", "cause", "severity", "culprit", "explained_pct", "missing", "victim"}
    prints = {finding.id: finding.fingerprint for finding in diagnosis.findings}
    return {**diagnosis.model_dump(include=parts), "chain": [prints[id] for id in diagnosis.chain]}
