"""Which symptoms are complaints."""

from __future__ import annotations

import pytest

from whystall.knowledge_base.complaints import is_complaint


@pytest.mark.parametrize(
    ("symptom", "complains"),
    [
        ("each step takes far too long", True),
        ("一步要好几秒", True),
        ("is it me, or is this slower than yesterday?", True),
        ("训练为什么这么慢？", True),
        ("could this training be faster?", False),
        ("这个作业有问题吗", False),
        ("routine check, take a look", False),
        ("例行巡检，看看", False),
        ("  ", False),
    ],
)
def test_statements_and_questions_about_slowness_are_complaints(symptom: str, complains: bool) -> None:
    assert is_complaint(symptom) is complains
