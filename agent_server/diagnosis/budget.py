"""The budget of a model in one diagnosis: steps, seconds, tokens, money."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from whystall.agent_server.llm.wire import Reply
from whystall.knowledge_base.models import Usage

_MILLION = 1_000_000


class Limits(BaseModel):
    """`steps`: answers of the model. `seconds`: waiting for it, and windows it requests. `tokens`: in and out together.
    `money`: in the currency of the prices, which are per million tokens. None: no limit, unknown price.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    steps: Annotated[int, Field(ge=1)] = 12
    seconds: Annotated[float, Field(gt=0)] = 600.0
    tokens: Annotated[int, Field(ge=1)] = 300_000
    money: Annotated[float | None, Field(gt=0)] = None
    price_in: Annotated[float | None, Field(ge=0)] = None
    price_out: Annotated[float | None, Field(ge=0)] = None


class Budget:
    """Counts what was spent of `limits`, by reported times of answers and windows: a replay spends the same."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._steps = 0
        self._tokens_in = 0
        self._tokens_out = 0
        self._waited_s = 0.0
        self._windows_s = 0.0

    def add_answer(self, reply: Reply) -> None:
        self._steps += 1
        self._tokens_in += reply.tokens_in
        self._tokens_out += reply.tokens_out
        self._waited_s += reply.seconds

    def add_window(self, seconds: float) -> None:
        """Count a window that the model requested."""
        self._windows_s += seconds

    @property
    def seconds_left(self) -> float:
        """Seconds left, at least 0."""
        return max(0.0, self.limits.seconds - self._waited_s - self._windows_s)

    @property
    def steps_left(self) -> int:
        """Answers left, at least 0."""
        return max(0, self.limits.steps - self._steps)

    def left(self) -> dict[str, int]:
        """Return the answers, and the seconds of waiting and windows, that are left, as data for the model."""
        return {"answers_left": self.steps_left, "seconds_left": int(self.seconds_left)}

    @property
    def exhausted(self) -> str | None:
        """The code of the limit that forbids another request; None if there is none."""
        limits, money = self.limits, self._money()
        if self._steps >= limits.steps:
            return "budget_steps"
        if self.seconds_left <= 0:
            return "budget_seconds"
        if self._tokens_in + self._tokens_out >= limits.tokens:
            return "budget_tokens"
        if limits.money is not None and money is not None and money >= limits.money:
            return "budget_money"
        return None

    def usage(self) -> Usage:
        money = self._money()
        return Usage(
            requests=self._steps,
            tokens_in=self._tokens_in,
            tokens_out=self._tokens_out,
            seconds=round(self._waited_s, 3),
            money=None if money is None else round(money, 6),
        )

    def _money(self) -> float | None:
        limits = self.limits
        if limits.price_in is None or limits.price_out is None:
            return None
        return (self._tokens_in * limits.price_in + self._tokens_out * limits.price_out) / _MILLION
