"""Home directories of whystall for one case each: as after earlier use, but without results of other cases.

The incidents of the catalog are stored at the first use, which takes seconds of CPU time: once for a run, not per case.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PREPARED = "BENCHMARK_HOME"  # the environment variable with the prepared directory


@contextmanager
def prepared() -> Iterator[None]:
    """Let `fresh` of the processes that are started in the block copy a directory that is prepared here."""
    from whystall.knowledge_base.store import KnowledgeBase  # would delay the diagnosers, which need `fresh` only

    with tempfile.TemporaryDirectory() as place:
        KnowledgeBase(Path(place) / "knowledge.db").close()
        for path in (Path(place), *Path(place).iterdir()):
            path.chmod(0o755)  # a diagnoser may be another user
        os.environ[_PREPARED] = place
        try:
            yield
        finally:
            del os.environ[_PREPARED]


@contextmanager
def fresh() -> Iterator[dict[str, str]]:
    """Yield the environment of a whystall process with a home of its own."""
    with tempfile.TemporaryDirectory() as place:
        if source := os.environ.get(_PREPARED):
            shutil.copytree(source, place, dirs_exist_ok=True)
        yield {**os.environ, "WHYSTALL_HOME": place}
