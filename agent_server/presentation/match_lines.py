"""Texts of matches: known or similar, why, how often and when it occurred, and which checks are left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from whystall.knowledge_base.models import Lang, Match, Victim
from whystall.prompts.escape import Safe, short
from whystall.prompts.render import FORMATS, fill, voice, words

if TYPE_CHECKING:
    from whystall.agent_server.incident_search.search import SearchNote

# Options of tools that do not observe a process.
OPTIONS = {
    "slow_node_check": "--traces DIR",
    "compare_runs": "--before DIR --after DIR",
    "crash_analyse": "--log FILE",
    "cluster_topology": "--files DIR",
    "flame_graph": "--from FILE",
    "flamegraph_diff": "--before FILE --after FILE",
}
_FIX = 300


@dataclass(frozen=True)
class MatchText:
    """`head`: the first line of a match; `more`: further lines."""

    head: Safe
    more: list[Safe]


def match_texts(matches: Sequence[Match], suffix: str, lang: Lang, victim: Victim | None = None) -> list[MatchText]:
    """Return the texts of `matches`, escaped for the format `suffix` (``md``, ``txt``). `victim`: the process that the
    remaining checks observe.
    """
    return [_match_text(match, suffix, lang, victim) for match in matches]


def note_texts(notes: Sequence[SearchNote], suffix: str, lang: Lang) -> list[Safe]:
    """Return how a search was made, escaped for the format `suffix`."""
    texts, form = words(lang)["search_notes"], FORMATS[suffix]
    return [fill(form.running, texts[note.code], note.detail) for note in notes]


def command(tool: str, victim: Victim | None) -> str:
    """Return the command that runs the check `tool`."""
    on = f"--pid {victim.pid}" if victim is not None and victim.pid else "--pid PID"
    return f"whystall run {tool} {OPTIONS.get(tool, on)}"


def _match_text(match: Match, suffix: str, lang: Lang, victim: Victim | None) -> MatchText:
    form, all_texts = FORMATS[suffix], words(lang)
    texts, comma = all_texts["matching"], all_texts["marks"]["comma"]
    head = fill(
        form.running,
        texts["head"],
        sort=texts[_sort(match)],
        title=match.title.get(lang),
        id=form.name(match.incident),
        because=_because(match, suffix, lang),
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
        more.append(Safe(all_texts["marks"]["semicolon"].join(facts)))
    if match.fix is not None:
        more.append(fill(form.running, texts["solved"], short(match.fix.get(lang), _FIX)))
    if match.unchecked and match.how != "text":
        left = comma.join(_command(command(tool, victim), suffix) for tool in match.unchecked)
        more.append(fill(form.running, texts["unchecked"], Safe(left)))
    return MatchText(head, more)


def why_text(match: Match, suffix: str, lang: Lang) -> Safe:
    """Return how sure `match` is and what is shared, without its title, escaped for the format `suffix`."""
    texts = words(lang)
    return Safe(f"{texts['matching'][_sort(match)]}{texts['marks']['semicolon']}{_because(match, suffix, lang)}")


def _because(match: Match, suffix: str, lang: Lang) -> Safe:
    form, sentences, texts = FORMATS[suffix], voice(suffix, lang), words(lang)
    keys = [key for key in match.shared if not key.startswith("kind:")] or match.shared
    shared = Safe(texts["marks"]["comma"].join(dict.fromkeys(sentences.shared(key) for key in keys)))
    return fill(form.running, texts["labels"]["because"], shared)


def _command(text: str, suffix: str) -> Safe:
    form = FORMATS[suffix]
    return form.name(text) if suffix == "md" else Safe(f"`{form.running(text)}`")


def _sort(match: Match) -> str:
    if match.judged:
        return "judged"
    if match.state == "draft":
        return "draft"
    return "known" if match.known else "nearest" if match.weak else "similar"
