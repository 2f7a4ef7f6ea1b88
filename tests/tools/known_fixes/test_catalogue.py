"""The catalogue of known defects: every entry is whole, cites a source, and can be matched."""

from __future__ import annotations

import re

import pytest

from whystall.knowledge_base.causes import load_causes
from whystall.tools.known_fixes.catalogue import Defect, components, defects, specifiers
from whystall.tools.known_fixes.match import Found, Signature, known_defects
from whystall.tools.known_fixes.versions import parsed

CJK = re.compile(r"[\u4e00-\u9fff]")
ENTRY = {
    "id": "one",
    "component": "nccl",
    "affected": ">=2.1,<2.2",
    "fixed": "2.2",
    "kind": "hang",
    "symptom": {"en": "hangs", "zh": "挂起"},
    "causes": ["collective_hang"],
    "sources": [{"url": "https://example.org/1", "date": "2024-01-01", "names": ["2.2"]}],
}


def test_there_are_enough_and_every_one_is_valid() -> None:
    assert len(defects()) >= 25


@pytest.mark.parametrize("defect", defects(), ids=lambda one: one.id)
def test_every_entry_has_both_languages_known_causes_and_versions_of_its_source(defect: Defect) -> None:
    assert CJK.search(defect.symptom.zh)
    assert not CJK.search(defect.symptom.en)
    assert set(defect.causes) <= load_causes().keys()
    named = {name for source in defect.sources for name in source.names}
    for name in named:
        parsed(name)
    # the fixed version, and each bound of the range that excludes nothing unread, is one that a source names
    if defect.fixed is not None:
        assert any(parsed(defect.fixed).release[: len(parsed(n).release)] == parsed(n).release for n in named)
    assert all(source.url.startswith("https://") for source in defect.sources)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"affected": "newer than 2"}, "no range"),
        ({"fixed": "2.1.5"}, "in the affected range"),
        ({"causes": []}, "nothing shows"),
        ({"sources": []}, "sources"),
        ({"sources": [{"url": "ftp://x", "names": ["1"]}]}, "url"),
        ({"fixes": "2.2"}, "fixes"),
    ],
)
def test_a_faulty_entry_is_refused(change: dict[str, object], message: str) -> None:
    Defect.model_validate(ENTRY)
    with pytest.raises(ValueError, match=message):
        Defect.model_validate(ENTRY | change)


def test_a_range_may_name_a_version_of_cann() -> None:
    assert "8.3.rc1.dev2" in specifiers("==8.3.rc1.alpha002")


def test_every_component_of_a_defect_can_be_recognised() -> None:
    assert {one.component for one in defects()} <= components().keys()


@pytest.mark.parametrize(
    "defect", [one for one in defects() if one.fixed and not one.fixed_component], ids=lambda d: d.id
)
def test_the_fixed_version_is_fixed(defect: Defect) -> None:
    versions = {defect.component: [Found(str(defect.fixed))]}
    (known,) = known_defects(versions, Signature(frozenset(defect.causes)), among=[defect])
    assert known.standing in ("fixed", "unaffected", "unknown")  # unknown: a further component was not seen
    assert known.standing == "fixed" or defect.requires
