"""The first lines of inference_latency: the slowest stage of each server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whystall.knowledge_base.models import Lang
from whystall.prompts.escape import Safe
from whystall.prompts.render import FORMATS, fill, words

if TYPE_CHECKING:
    from whystall.tools.host.inference_latency.data import Data

_TEXT = FORMATS["txt"]


def inference_latency_lines(data: Data, lang: Lang) -> list[Safe]:
    """Return a line per server: its slowest stage, and over which time that was judged."""
    texts, marks = words(lang)["serving"], words(lang)["marks"]
    lines = []
    for one in data.servers:
        head = fill(
            _TEXT.running,
            texts["slowest" if one.stage else "none"],
            server=one.server,
            local=one.local or texts["file"],
            stage=words(lang)["serving_stages"].get(one.stage, ""),
        )
        basis = fill(_TEXT.running, texts[f"basis_{one.basis}"], readings=one.readings, seconds=f"{one.seconds:.1f}")
        lines.append(Safe(f"{head}{marks['semicolon']}{basis}"))
    return lines or [Safe(texts["no_server"])]
