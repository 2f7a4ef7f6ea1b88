"""The table of operations that ranks wait in."""

from __future__ import annotations

from whystall.tools.contract.result import Model


class HangRow(Model):
    """An operation that some ranks wait in: who entered, who did not. `seq` in its group. `unknown`: its ranks of which
    neither is known; of these `no_dump` gave no dump, and the dumps of the others have no entry of it. `over`: it ended
    for those who entered it, which without the others is a failure. `waiting_s`: at least so long; None: unknown."""

    group: str
    op: str
    seq: int
    bytes: int
    entered: str
    not_entered: str
    unknown: str = ""
    no_dump: str = ""
    over: bool = False
    waiting_s: float | None
