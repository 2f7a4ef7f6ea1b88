"""Plain English words, to distinguish them from names."""

from __future__ import annotations

from functools import cache

from whystall.knowledge_base.data import catalog

# Inflectional endings, and the endings of the base form.
_ENDINGS = (
    *(
        ("ies", "y"),
        ("es", ""),
        ("es", "e"),
        ("s", ""),
        ("ied", "y"),
        ("ier", "y"),
        ("iest", "y"),
        ("ed", ""),
        ("ed", "e"),
    ),
    *(("ing", ""), ("ing", "e"), ("er", ""), ("er", "e"), ("ers", ""), ("ers", "e"), ("est", ""), ("est", "e")),
    *(("ly", ""), ("ily", "y"), ("ally", "al"), ("ness", ""), ("able", ""), ("able", "e")),
)
_BEGINNINGS = ("un", "re", "non", "over", "under", "pre", "mis")
_SHORTEST = 3


def plain_word(word: str) -> bool:
    """Return whether `word` (letters, lower case) is an English word, in any inflection."""
    words = _words()
    if word in words:
        return True
    roots = [word, *(word[len(b) :] for b in _BEGINNINGS if word.startswith(b))]
    forms = {form for root in roots for once in (root, *_stems(root)) for form in (once, *_stems(once))}
    return any(form in words for form in forms if len(form) >= _SHORTEST)


def _stems(word: str) -> list[str]:
    found = []
    for ending, instead in _ENDINGS:
        if word.endswith(ending):
            stem = word[: len(word) - len(ending)] + instead
            found.append(stem)
            if len(stem) > _SHORTEST and stem[-1] == stem[-2]:  # stopped, running
                found.append(stem[:-1])
    return found


@cache
def _words() -> frozenset[str]:
    lines = catalog("english.txt").read_text("utf-8").splitlines()
    return frozenset(word for line in lines if not line.startswith("#") for word in line.split())
