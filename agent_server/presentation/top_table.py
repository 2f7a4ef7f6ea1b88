"""The table of ``whystall top``: jobs, their processes, and what each waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from whystall.prompts.escape import short
from whystall.prompts.quantities import duration
from whystall.prompts.render import words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from whystall.agent_server.watch.jobs import WatchedJob
    from whystall.agent_server.watch.now import Now, Spot
    from whystall.knowledge_base.models import Lang

_NAME, _PLACE = 32, 80
_SHOWN = 0.02  # smaller shares are not shown
_LONG_S = 1.0
_ALARM = 0.5


def top_table(jobs: Sequence[WatchedJob], now: Mapping[int, Now], cost: float, lang: Lang) -> Table:
    """Return the processes of `jobs` that `now` knows, those that wait most first within their job. `cost`: share of
    one core that the observation takes."""
    texts = words(lang)["top"]
    table = Table(
        title=texts["title"].format(jobs=len(jobs), processes=len(now)),
        caption=texts["caption"].format(cost=f"{100 * cost:.1f}"),
        title_justify="left",
        caption_justify="left",
        expand=True,
        box=None,
        header_style="bold",
    )
    for column in ("job", "process"):
        table.add_column(texts[column], no_wrap=True, overflow="ellipsis")
    for column in ("running", "without_cpu", "waiting"):
        table.add_column(texts[column], justify="right", no_wrap=True)
    table.add_column(texts["spot"], ratio=1, overflow="fold")
    table.add_column(texts["longest"], justify="right", no_wrap=True)
    for job in jobs:
        known = sorted((now[pid] for pid in job.leaders if pid in now), key=lambda one: -one.waiting)
        for number, one in enumerate(known):
            table.add_row(*_row(job, one, first=number == 0, lang=lang))
    return table


def _row(job: WatchedJob, now: Now, *, first: bool, lang: Lang) -> list[Text]:
    texts = words(lang)["top"]
    rank = job.ranks.get(now.pid)
    process = f"{now.pid}" if rank is None else texts["rank"].format(pid=now.pid, rank=rank)
    if now.tid != now.pid:
        process = texts["thread"].format(process=process, tid=now.tid)
    spots = [spot_text(share, spot, lang) for share, spot in now.waits[:2] if share >= _SHOWN]
    if now.object:
        spots.append(texts["present"].format(short(now.object, _PLACE)))
    longest = max(now.longest_s, now.waiting_s)
    style = "bold red" if longest >= _LONG_S and now.waiting >= _ALARM else ""
    return [
        Text(short(job.name, _NAME) if first else ""),
        Text(process),
        Text(_percent(now.running)),
        Text(_percent(now.without_cpu), "yellow" if now.without_cpu >= _ALARM / 2 else ""),
        Text(_percent(now.waiting)),
        Text("\n".join(spots) or texts["nothing"]),
        Text(duration(longest) if longest else "", style),
    ]


def spot_text(share: float, spot: Spot, lang: Lang) -> str:
    """Return a place where a thread waits, with its share of the time: ``61 % read, load (train.py:41)``."""
    texts = words(lang)["top"]
    where = texts["marks"].join(short(part, _PLACE) for part in (spot.call or texts["no_call"], spot.line) if part)
    return f"{_percent(share)} {where}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
