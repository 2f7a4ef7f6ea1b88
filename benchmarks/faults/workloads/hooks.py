"""What a training loop lets its callbacks do."""

from __future__ import annotations

from typing import Any

from joblog import Job


class Hooks:
    """Called by the loop; does nothing."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def on_start(self) -> None:
        """Prepare what the steps need."""

    def on_settings(self) -> None:
        """Follow changed settings."""

    def load(self, number: int) -> Any:
        """Return a batch, in the loader's thread; None: random numbers."""
        return None

    def on_step(self, number: int) -> None:
        """End a step."""
