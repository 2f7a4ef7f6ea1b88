"""The first lines of inference_latency: the slowest stage of each server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from whystall.knowledge_base.models import Lang
from whystall.prompts.escape import Safe
from whystall.prompts.render import FORMATS, fill, words
from whystall.tools.contract.findings import Finding, Polarity
from whystall.tools.contract.kinds.serving import STAGES

if TYPE_CHECKING:
    from whystall.tools.host.inference_latency.data import Data

_TEXT = FORMATS["txt"]


def slowest_stage(findings: Sequence[Finding]) -> list[Finding]:
    """Return the abnormal finding about the slowest stage of each inference server among `findings`.

    A standstill comes before all others, then the stage that makes the later ones slow.
    """
    found: dict[int | None, Finding] = {}
    for stage in STAGES:
        for one in findings:
            if one.kind == f"serving.{stage}" and one.polarity is Polarity.ABNORMAL:
                found.setdefault(one.subject.pid, one)
    return list(found.values())


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
