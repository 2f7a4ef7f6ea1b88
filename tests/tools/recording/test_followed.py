"""Tools judge processes that wake the target only if they request them."""

from __future__ import annotations

from recordings import PID, Scene, checkpoints

from whystall.tools.collect.tables import COLLECTORS, table
from whystall.tools.recording.followed import of_target
from whystall.tools.recording.store import Recording

WORKER = 77


def test_tools_that_do_not_request_wakers_judge_the_target_alone() -> None:
    base = checkpoints(Scene().thread(user=60, blocked=30)).build()
    assert of_target(base) is base
    tables = base.tables()
    schema = COLLECTORS["switches"]
    for name in ("segments", "totals"):
        own = tables[f"switches.{name}"]
        assert own.height
        tables[f"switches.{name}"] = own.vstack(own.with_columns(pid=WORKER).cast(dict(own.schema)))
    tables["switches.followed"] = table(schema["followed"], [(5, WORKER, WORKER, "worker", PID)])
    found = of_target(Recording(base.manifest, tables))
    for name in ("segments", "totals"):
        assert set(found.table(f"switches.{name}")["pid"]) == {PID}
