"""Report the progress of an investigation: the current step with its tools, or the answer of a model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import anyio

from whystall.knowledge_base.models import Lang
from whystall.prompts.render import words

Progress = Callable[[float, float, str], None]
# A step starts with this share of its time done: clients ignore progress that does not increase.
_BEGUN = 0.01
_TICK_S = 1.0


class StepProgress:
    """Forwards progress to `progress` (None: nowhere), prefixed with the name of the step. Itself a `Progress`."""

    def __init__(self, progress: Progress | None = None, lang: Lang = "en") -> None:
        self._progress = progress
        self._words = words(lang)["steps"]
        self._why = words(lang)["why"]
        self._colon = words(lang)["marks"]["colon"]
        self._label = ""

    def __call__(self, done: float, total: float, message: str) -> None:
        if self._progress is not None:
            self._progress(done, total, f"{self._label}{self._colon}{message}" if self._label else message)

    def start_step(self, step: int, tools: Sequence[str], why: str, seconds: float) -> None:
        """Report that step number `step` (from 1) runs `tools` for `seconds`; `why` is a code."""
        self._label = self._words["look"].format(step, ", ".join(tools), self._why.get(why, why))
        self._begin(seconds)

    @asynccontextmanager
    async def waiting(self, model: str, answer: int, seconds: float) -> AsyncIterator[None]:
        """Report every second that answer number `answer` (from 1) of `model` is pending, at most `seconds`."""
        self._label = self._words["model"].format(answer, model)
        self._begin(seconds)
        if self._progress is None:
            yield
            return
        failure: Exception | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._tick, seconds)
            try:
                yield
            except Exception as error:
                failure = error  # raised below: the task group would wrap it
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure

    def _begin(self, seconds: float) -> None:
        if self._progress is not None:
            total = max(seconds, 1.0)
            self._progress(_BEGUN * total, total, self._label)

    async def _tick(self, seconds: float) -> None:
        waited = 0.0
        while True:
            await anyio.sleep(_TICK_S)
            waited += _TICK_S
            self(min(waited, seconds), max(seconds, 1.0), f"{waited:.0f} s")
