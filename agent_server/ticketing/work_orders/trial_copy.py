"""A temporary copy of the knowledge base, for dry runs."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from whystall.agent_server.stores import Stores
from whystall.tools.contract.errors import ErrorCode, ToolError


@contextmanager
def trial_copy(kb: Stores) -> Iterator[Stores]:
    """Yield a copy of `kb` in a temporary directory, which is deleted afterwards.

    Raises `ToolError` (disk_full, database) if it cannot be copied.
    """
    with tempfile.TemporaryDirectory(prefix="whystall-try-") as directory:
        copy = Path(directory) / "knowledge.db"
        try:
            source = sqlite3.connect(f"{kb.path.absolute().as_uri()}?mode=ro", uri=True)
            with closing(source), closing(sqlite3.connect(copy)) as target:
                source.backup(target)
        except sqlite3.Error as error:
            full = "full" in str(error)
            code = ErrorCode.DISK_FULL if full else ErrorCode.DATABASE
            raise ToolError(code, f"cannot copy {kb.path}: {error}", "set TMPDIR to where there is room") from None
        with Stores(copy) as found:
            yield found
