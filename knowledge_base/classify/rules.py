"""Rules that tell by the words of a text what it is about (``catalog/classes.yaml``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from pydantic import Field

from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.classify.vocabulary import Vocabulary
from whystall.knowledge_base.data import as_model, catalog, data_fault, read_yaml
from whystall.knowledge_base.models import Model
from whystall.knowledge_base.tokens import glossary

UNKNOWN = "unknown"
"""Category and component of what nothing tells."""


class Rule(Model):
    """See the head of the file."""

    id: str
    category: str
    component: str
    cause: str | None = None
    weight: int = Field(ge=1, le=4)
    when: list[list[str]] = Field(min_length=1)
    unless: list[list[str]] = Field(default_factory=list)


class _Words(Model):
    en: list[str]
    zh: list[str]


class _File(Model):
    categories: list[str]
    words: dict[str, _Words]
    rules: list[Rule]


@dataclass
class Hit:
    """A rule that holds, and the words that say so."""

    rule: Rule
    words: list[str]


@dataclass
class Standing:
    """What speaks for a category: the rules that hold, the weightiest first, and their `weight` together."""

    category: str
    weight: float = 0.0
    hits: list[Hit] = field(default_factory=list)


def categories() -> list[str]:
    """Every category that a rule may give, without `UNKNOWN`."""
    return _load()[0].categories


def judge(text: str) -> list[Standing]:
    """What the rules say of `text`, the weightiest category first; empty where none holds."""
    file, vocabulary = _load()
    said = vocabulary.said(text)
    standings: dict[str, Standing] = {}
    for rule in file.rules:
        if any(all(word in said for word in words) for words in rule.unless):
            continue
        held = next((words for words in rule.when if all(word in said for word in words)), None)
        if held is not None:
            standing = standings.setdefault(rule.category, Standing(rule.category))
            standing.hits.append(Hit(rule, [said[word] for word in held]))
    for standing in standings.values():
        standing.hits.sort(key=lambda hit: -hit.rule.weight)
        standing.weight = _weight(standing.hits)
    return sorted(standings.values(), key=lambda s: (-s.weight, file.categories.index(s.category)))


def _weight(hits: list[Hit]) -> float:
    """The weights of `hits`, each counted as far as its words were not counted before: two rules that hold for one word
    say no more than one. What comes after the first weighs half.
    """
    counted: set[str] = set()
    total = 0.0
    for hit in hits:
        fresh = set(hit.words) - counted
        if fresh:
            total += hit.rule.weight * (0.5 if counted else 1.0)
            counted |= fresh
    return total


@cache
def _load() -> tuple[_File, Vocabulary]:
    path = catalog("classes.yaml")
    file = as_model(_File, read_yaml(path), path)
    english: dict[str, list[str]] = {}
    chinese: dict[str, list[str]] = {}
    known: set[str] = set()
    for phrase, name in glossary()[0].items():
        english.setdefault(phrase, []).append(name)
        known.add(name)
    for run, name in glossary()[1].items():
        chinese.setdefault(run, []).append(name)
    for name, words in file.words.items():
        for phrase in words.en:
            english.setdefault(phrase, []).append(name)
        for run in words.zh:
            chinese.setdefault(run, []).append(name)
    known |= file.words.keys()
    causes = load_causes()
    for rule in file.rules:
        if rule.category not in file.categories:
            raise data_fault(path, f"rules.{rule.id}: unknown category {rule.category!r}")
        if rule.cause is not None and rule.cause not in causes:
            raise data_fault(path, f"rules.{rule.id}: unknown cause {rule.cause!r}")
        missing = {w for words in (*rule.when, *rule.unless) for w in words} - known
        if missing:
            raise data_fault(path, f"rules.{rule.id}: unknown words {', '.join(sorted(missing))}")
    return file, Vocabulary(english, chinese)
