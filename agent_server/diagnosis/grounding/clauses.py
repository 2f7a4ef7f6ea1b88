"""Split a sentence into clauses, and recognise denials. Pure."""

from __future__ import annotations

import re

CLAUSES = re.compile(
    r"[,;.:!?，；。：！？](?!\d)|\b(?:but|while|whereas|because|although|though|since|so that|and|"
    r"which)\b|但是?|而且?|因为|"
    r"所以|虽然|并且",
    re.I,
)
DENIED = re.compile(
    r"\b(?:not|no|never|without|neither|nor|none|nothing|nobody|little|few|hardly|barely|scarcely|negligible|"
    r"negligibly|normal|"
    r"normally|healthy|fine|idle|exclude[sd]?|excluding|innocent|low|lower|small|free of|far from|cannot|within|"
    r"rul(?:e|es|ing) out|"
    r"ruled out|zero|only|just|less than|below|under|absent|quiet|unsaturated|uncontended|unaffected|unlike|instead of|"
    r"rather than|clear(?:s|ed|ing)|refut(?:es?|ed|ing))\b|n't\b|n’t\b|"
    r"(?<![\d.,])0(?:\.0+)?(?![.,]?\d)\s?(?:%|ms\b|s\b|seconds\b|times\b|of\b|次|秒|毫秒|个)|"
    r"不(?!断|得不|仅|久|停|少)|没有?|未|无(?!法)|非(?!常)|正常|排除|极少|很少|很低|较低|可忽略|健康|空闲|仅|只有",
    re.I,
)
# A denial of the words directly after it.
FLATLY = re.compile(
    r"(?:\b(?:not|never|no|without)|n't|n’t)(?: (?:an?|any|the|being|really|at all|contended|longer))* $|"
    r"\bno (?:\w+ )?(?:was|were|is|are) (?:ever |actually )?$|"
    r"(?:没有?|未|并不|不|无)(?:被|任何|发生|在)?$",
    re.I,
)
