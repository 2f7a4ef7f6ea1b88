"""The cause kv_cache_full."""

from __future__ import annotations

from making import finding
from test_causes import candidates

from whystall.tools.contract.findings import Polarity


def test_a_full_cache_is_a_cause_and_one_with_room_rules_it_out() -> None:
    assert "kv_cache_full" in candidates(finding("serving.kv_cache", full_pct=90, usage_pct=99))
    assert "kv_cache_full" not in candidates(finding("serving.preemption", count=9))
    assert "kv_cache_full" not in candidates(finding("serving.kv_cache", polarity=Polarity.NORMAL, full_pct=0))
