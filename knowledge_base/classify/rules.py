"""Rules that classify by words (``catalog/classes.yaml``)."""

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
"""Category and component if nothing decides."""


class Rule(Model):
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
    components: dict[str, list[str]]
    words: dict[str, _Words]
    rules: list[Rule]


@dataclass
class Hit:
    """A matching rule, and the matched words."""

    rule: Rule
    words: list[str]


@dataclass
class RuleScore:
    """Evidence for a category: the matching rules, heaviest first, and their total `weight`."""

    category: str
    weight: float = 0.0
    hits: list[Hit] = field(default_factory=list)


def categories() -> list[str]:
    """Return every category of the rules, without `UNKNOWN`."""
    return _load()[0].categories


@cache
def category_of_component() -> dict[str, str]:
    """Return the category of each component that has only one, for incidents without a catalogued cause."""
    return {name: category for category, names in _load()[0].components.items() for name in names}


def vocabulary() -> Vocabulary:
    """Return the words of the rules, in both languages."""
    return _load()[1]


@cache
def rule_weights() -> dict[str, int]:
    """Return the weight of each rule."""
    return {rule.id: rule.weight for rule in _load()[0].rules}


def judge(text: str) -> list[RuleScore]:
    """Apply the rules to `text`; return the categories, heaviest first."""
    file, vocabulary = _load()
    found = vocabulary.find(text)
    scores: dict[str, RuleScore] = {}
    for rule in file.rules:
        if any(all(word in found for word in words) for words in rule.unless):
            continue
        matched = next((words for words in rule.when if all(word in found for word in words)), None)
        if matched is not None:
            score = scores.setdefault(rule.category, RuleScore(rule.category))
            score.hits.append(Hit(rule, [found[word] for word in matched]))
    for score in scores.values():
        score.hits.sort(key=lambda hit: -hit.rule.weight)
        score.weight = _weight(score.hits)
    return sorted(scores.values(), key=lambda s: (-s.weight, file.categories.index(s.category)))


def _weight(hits: list[Hit]) -> float:
    """Weight of `hits`: words counted by an earlier rule do not count, and hits after the first weigh half."""
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
    if twice := known & file.words.keys():
        raise data_fault(path, f"words: the glossary has {min(twice)!r} too")
    known |= file.words.keys()
    causes = load_causes()
    if wrong := file.components.keys() - set(file.categories):
        raise data_fault(path, f"components: unknown category {min(wrong)!r}")
    for rule in file.rules:
        if rule.category not in file.categories:
            raise data_fault(path, f"rules.{rule.id}: unknown category {rule.category!r}")
        if rule.cause is not None and rule.cause not in causes:
            raise data_fault(path, f"rules.{rule.id}: unknown cause {rule.cause!r}")
        missing = {w for words in (*rule.when, *rule.unless) for w in words} - known
        if missing:
            raise data_fault(path, f"rules.{rule.id}: unknown words {', '.join(sorted(missing))}")
    return file, Vocabulary(english, chinese)
