"""Many tests at once: which of them to believe."""

from __future__ import annotations

from collections.abc import Sequence


def false_discovery(p_values: Sequence[float]) -> list[float]:
    """Return each test's q: the smallest share of false ones among the claimed at which it is still claimed.

    Y. Benjamini and Y. Hochberg 1995, "Controlling the false discovery rate: a practical and powerful approach to
    multiple testing", J. R. Stat. Soc. B 57; also valid for tests that depend on each other positively, as those of one
    operator on several ranks do (Y. Benjamini and D. Yekutieli 2001).
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__, reverse=True)
    found, least = [1.0] * len(p_values), 1.0
    for above, place in enumerate(order):
        least = min(least, p_values[place] * len(p_values) / (len(p_values) - above))
        found[place] = least
    return found
