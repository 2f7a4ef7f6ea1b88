"""Splits text into search terms, in Python: FTS5 sees no raw text, as a query or as a document.

Latin words are in lower case, whole and split at underscores; Chinese runs become overlapping pairs of characters,
since most technical words have two. Full-width letters and traditional characters are normalized. Synonyms of both
languages also yield one shared concept (see ``glossary.yaml``), so that a question in one language finds an answer in
the other. The search of incidents also knows groups of everyday words (``everyday.yaml``).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import cache, lru_cache
from typing import NamedTuple

from whystall.knowledge_base.data import as_model, catalog, data_fault, read_yaml
from whystall.knowledge_base.models import Model

_WORD = re.compile(r"[a-z0-9_]+")
_CJK = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff]+")
_UNSEEN = re.compile(r"[\u00ad\u200b-\u200f\u2060\ufeff]")
_STOPPED = (
    "a about after all an and are as at be because but by can do does for from had has have how i if in into is it its "
    "my no not of on one or our so than that the their them then there they this to up use used was we what when where "
    "which while who why will with you your "
    "already also although always another any anything around away been being both could did does doing done each else "
    "even ever every everything get gets go goes going got he her here him his just like makes many may me might more "
    "most much must never nothing now off once only other others out over per please right same see seem seems shall "
    "she should show shows since some something still such take takes taking too took under until upon us very via "
    "were within without would yet"
)
_STOP = frozenset(_STOPPED.split())
# Chinese characters that mostly serve grammar: a pair with one of them spans two words, or says little.
_PARTICLES = frozenset(
    "的了就都把被在和也还又很这那是有个们得着过给让到从对与以及而但其之么吗呢吧啊后前里上下中时会能可要"
)
_LONGEST = 40
CONCEPT = "c_"
EVERYDAY = "e_"
PIECE = "g_"
_GLOSSARY, _EVERYDAY = "glossary.yaml", "everyday.yaml"
_PLURALS = (("ies", "y"), ("sses", "ss"), ("ches", "ch"), ("shes", "sh"), ("xes", "x"))
_SHORTEST_STEM = 3


class Terms(NamedTuple):
    """Search terms. `words`: Latin words and concepts (``c_`` + name); `grams`: pairs of Chinese characters."""

    words: list[str]
    grams: list[str]


class _Concept(Model):
    en: list[str]
    zh: list[str]


def terms(text: str, *, everyday: bool = False) -> Terms:
    """Return the distinct terms of any `text`, in order; with `everyday` also the groups of everyday words that it has
    (``e_`` + name, see ``everyday.yaml``), which only the search of incidents uses.
    """
    lower = plain(text)
    latin = _WORD.findall(lower)
    words = [f"{CONCEPT}{name}" for name in _concepts(latin, lower)]
    if everyday:
        words += [f"{EVERYDAY}{name}" for name in _concepts(latin, lower, _EVERYDAY)]
    for word in latin:
        parts = [part for part in word.split("_") if part] if "_" in word else []
        words += [w for w in (word, *parts) if _significant(w)]
    grams = [run[i : i + 2] for run in _CJK.findall(lower) for i in range(max(len(run) - 1, 1))]
    return Terms(list(dict.fromkeys(words)), list(dict.fromkeys(grams)))


@lru_cache(maxsize=50_000)
def stem(word: str) -> str:
    """Return `word` (lower case) without inflection, as Harman's S stemmer (How effective is suffixing, JASIS 1991) and
    the endings -ed and -ing of Porter's (1980) leave it; names with digits or underscores unchanged.
    """
    if len(word) < _SHORTEST_STEM + 1 or not (word.isascii() and word.isalpha()):
        return word
    for ending, instead in _PLURALS:
        if word.endswith(ending) and len(word) > len(ending) + 2:
            word = word.removesuffix(ending) + instead
            break
    else:
        if word.endswith("s") and not word.endswith(("ss", "us", "is")):
            word = word[:-1]
    for ending in ("ing", "ed"):
        base = word.removesuffix(ending)
        if base != word and len(base) >= _SHORTEST_STEM and any(letter in "aeiouy" for letter in base):
            doubled = len(base) > _SHORTEST_STEM and base[-1] == base[-2] and base[-1] not in "lsz"  # stopped
            word = base[:-1] if doubled else base
            break
    return word[:-1] if word.endswith("e") and len(word) > _SHORTEST_STEM + 1 else word


def is_group(word: str) -> bool:
    """Return whether a term of `terms` stands for words of like meaning: a concept, or a group of everyday words."""
    return word.startswith((CONCEPT, EVERYDAY)) and word in _groups()


def has_particle(pair: str) -> bool:
    """Return whether a pair of Chinese characters contains one that mostly serves grammar."""
    return not _PARTICLES.isdisjoint(pair)


def pieces(words: Iterable[str]) -> list[str]:
    """Return the distinct character n-grams of the Latin `words`, of four characters within blanks around the word
    (McNamee and Mayfield, Character n-gram tokenization for European language text retrieval, 2004), as terms.
    """
    found: dict[str, None] = {}
    for word in words:
        if not word.startswith(CONCEPT) and word.isascii():
            padded = f"_{word}_"
            found.update(dict.fromkeys(f"{PIECE}{padded[i : i + 4]}" for i in range(max(len(padded) - 3, 1))))
    return list(found)


def cjk(text: str) -> int:
    """Return the number of Chinese characters in `text`."""
    return 0 if text.isascii() else sum(len(run) for run in _CJK.findall(text))


def plain(text: str) -> str:
    """Return `text` in lower case, normal width, without invisible characters, in simplified Chinese as far as the
    table goes.
    """
    if text.isascii():
        return text.lower()
    simplified, traditional = _simplified()
    lower = _UNSEEN.sub("", unicodedata.normalize("NFKC", text)).lower()
    return traditional.sub(lambda found: simplified[found[0]], lower)  # `str.translate` is slow for what it keeps


@cache
def _simplified() -> tuple[dict[str, str], re.Pattern[str]]:
    """Return the simplified form of each traditional character, and a pattern that finds one."""
    lines = catalog("traditional.txt").read_text("utf-8").splitlines()
    pairs = {pair[0]: pair[1] for line in lines if not line.startswith("#") for pair in line.split()}
    return pairs, re.compile(f"[{re.escape(''.join(pairs))}]")


def concepts(text: str) -> frozenset[str]:
    """Return the concepts of the glossary that `text` names, in either language."""
    lower = plain(text)
    return frozenset(_concepts(_WORD.findall(lower), lower))


@cache
def known_concepts() -> frozenset[str]:
    english, chinese = glossary()
    return frozenset([*english.values(), *chinese.values()])


@cache
def _groups() -> frozenset[str]:
    tables = ((CONCEPT, glossary()), (EVERYDAY, glossary(_EVERYDAY)))
    return frozenset(f"{prefix}{name}" for prefix, words in tables for table in words for name in table.values())


def _significant(word: str) -> bool:
    """Return False for stop words, single letters and bare numbers, which match by accident."""
    return 1 < len(word) <= _LONGEST and word not in _STOP and not word.isdigit() and word.strip("_") != ""


def _concepts(latin: list[str], lower: str, table: str = _GLOSSARY) -> list[str]:
    phrases, runs, begins = _indexed(table)
    found = []
    for at, word in enumerate(latin):
        if word in phrases:
            found += [name for rest, name in phrases[word] if latin[at + 1 : at + 1 + len(rest)] == rest]
    for begin in begins.finditer(lower):
        found += [name for word, name in runs[begin[0]] if lower.startswith(word, begin.start())]
    return list(dict.fromkeys(found))


@cache
def _indexed(
    table: str,
) -> tuple[dict[str, list[tuple[list[str], str]]], dict[str, list[tuple[str, str]]], re.Pattern[str]]:
    """Index `table` by first English word and by first Chinese character, so that a lookup does not scan it."""
    english, chinese = glossary(table)
    phrases: dict[str, list[tuple[list[str], str]]] = {}
    for phrase, name in english.items():
        first, *rest = phrase.split()
        phrases.setdefault(first, []).append((rest, name))
    runs: dict[str, list[tuple[str, str]]] = {}
    for word, name in chinese.items():
        runs.setdefault(word[0], []).append((word, name))
    return phrases, runs, re.compile("|".join(map(re.escape, runs)) or "(?!)")


@cache
def glossary(table: str = _GLOSSARY) -> tuple[dict[str, str], dict[str, str]]:
    """Return the concepts of the glossary, or of another `table`, by English phrase and by Chinese word."""
    file = catalog(table)
    document = read_yaml(file)
    if not isinstance(document, dict):
        raise data_fault(file, "document: a mapping of concepts is required")
    english: dict[str, str] = {}
    chinese: dict[str, str] = {}
    for name, value in document.items():
        concept = as_model(_Concept, value, file, str(name))
        english |= dict.fromkeys(concept.en, str(name))
        chinese |= dict.fromkeys(concept.zh, str(name))
    return english, chinese
