"""Kinds of findings from stack samples.

Shares have the bounds of their 95 % interval (``low_pct``, ``high_pct``). `name`: the frame, `code`: its file and line,
`path`: the frames around it, innermost first; `event`: what was counted.
"""

from __future__ import annotations

from whystall.tools.contract.kinds.spec import KindSpec, Mechanism, kind

KINDS: dict[str, KindSpec] = {
    # `window_pct`: only of live samples, of one thread's time
    "profile.frame": kind(
        Mechanism.SAMPLES,
        "profile",
        "self_pct total_pct low_pct high_pct samples window_pct",
        "name code path event frame_kind",
        share="window_pct",
    ),
    # shares of two profiles; `direction`: grew, shrank, appeared, vanished
    "profile.change": kind(
        Mechanism.SAMPLES,
        "profile",
        "before_pct after_pct change_pct low_pct high_pct ratio p_value",
        "name callee code path event direction",
    ),
    # two profiles differ by no more than chance explains; a change above `bound_pct` would have been detected
    "profile.alike": kind(Mechanism.SAMPLES, "profile", "bound_pct samples_before samples", "event"),
    # the sampled activity comes and goes with a period; `what`: quiet or busy
    "profile.period": kind(
        Mechanism.SAMPLES,
        "profile",
        "period_s max_ms total_ms count window_pct p_value",
        "what event",
        share="window_pct",
    ),
}
