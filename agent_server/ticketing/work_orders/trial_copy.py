"""A copy of the knowledge base, to see on it what would come of something."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from whystall.agent_server.stores import Stores as Base
from whystall.tools.contract.errors import ErrorCode, ToolError

if TYPE_CHECKING:
    from whystall.agent_server.stores import Stores


@contextmanager
def trial_copy(kb: Stores) -> Iterator[Stores]:
    """A copy of `kb` as it is now, in a directory for temporary files, which goes away afterwards.

    `ToolError` (disk_full, io_error) where there is no room for it.
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
        with Base(copy) as found:
            yield found
