"""How a match is shown: whether it is known or only similar, why, how often and when it was seen, and what was checked
then and not now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from whystall.knowledge_base.models import Lang, Match, Victim
from whystall.prompts.escape import Safe, short
from whystall.prompts.render import FORMATS, fill, voice, words

# What a tool is given that does not observe a process.
OPTIONS = {
    "slow_node_check": "--traces DIR",
    "compare_runs": "--before DIR --after DIR",
    "flame_graph": "--from FILE",
    "flamegraph_diff": "--before FILE --after FILE",
}
_FIX = 300


@dataclass(frozen=True)
class Shown:
    """A match in words: its first line, and what else is said of it."""

    head: Safe
    more: list[Safe]


def shown(matches: Sequence[Match], suffix: str, lang: Lang, victim: Victim | None = None) -> list[Shown]:
    """`matches` in words of `lang`, escaped for the format `suffix` (``md``, ``txt``). `victim`: whose process the
    checks that are left would look at.
    """
    return [_shown(match, suffix, lang, victim) for match in matches]


def command(tool: str, victim: Victim | None) -> str:
    """The command that makes the check `tool`."""
    on = f"--pid {victim.pid}" if victim is not None and victim.pid else "--pid PID"
    return f"whystall run {tool} {OPTIONS.get(tool, on)}"


def _shown(match: Match, suffix: str, lang: Lang, victim: Victim | None) -> Shown:
    form, say, said = FORMATS[suffix], voice(suffix, lang), words(lang)
    texts, comma = said["matching"], said["marks"]["comma"]
    shared = Safe(comma.join(dict.fromkeys(say.shared(key) for key in match.shared)))
    head = fill(
        form.running,
        texts["head"],
        sort=texts[_sort(match)],
        title=match.title.get(lang),
        id=form.name(match.incident),
        because=fill(form.running, said["labels"]["because"], shared),
    )
    more: list[Safe] = []
    facts: list[Safe] = []
    if match.last_seen:
        often = "seen_once" if match.occurrences == 1 else "seen"
        facts.append(fill(form.running, texts[often], match.occurrences, match.last_seen[:10]))
    record = match.record
    if rated := record.helped + record.wrong:
        flagged = "flagged" if record.flagged else "rated"
        facts.append(fill(form.running, texts[flagged], helped=record.helped, wrong=record.wrong, all=rated))
    if facts:
        more.append(Safe(said["marks"]["semicolon"].join(facts)))
    if match.fix is not None:
        more.append(fill(form.running, texts["solved"], short(match.fix.get(lang), _FIX)))
    if match.unchecked and match.how != "text":
        left = comma.join(_command(command(tool, victim), suffix) for tool in match.unchecked)
        more.append(fill(form.running, texts["unchecked"], Safe(left)))
    return Shown(head, more)


def _command(text: str, suffix: str) -> Safe:
    form = FORMATS[suffix]
    return form.name(text) if suffix == "md" else Safe(f"`{form.running(text)}`")


def _sort(match: Match) -> str:
    if match.state == "draft":
        return "draft"
    return "known" if match.known else "nearest" if match.weak else "similar"
