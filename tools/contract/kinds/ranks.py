"""Kinds of findings about the ranks of a job; `window_pct`: of the steps' time."""

from __future__ import annotations

from whystall.tools.contract.kinds.spec import KindSpec, Mechanism, kind

_SLOW = "window_pct excess_ms own_ms peers_ms compute_excess_ms gap_excess_ms loader_excess_ms ratio"
_TRANSFER = "window_pct transfer_ms peers_ms ratio count bytes"

KINDS: dict[str, KindSpec] = {
    # the others waited for it: `votes` of `steps`, and how likely that is by chance
    "rank.late": kind(
        Mechanism.COLLECTIVES, "rank", "window_pct lost_ms votes steps p_value began_step", share="window_pct"
    ),
    # it usually is the last to enter an operation, by `late_ms` (median, 95 % bounds) behind the last but one: in
    # `last_calls` of `compared_calls`; `name`: of the group
    "rank.enters_last": kind(
        Mechanism.COLLECTIVES,
        "rank",
        "window_pct late_ms low_ms high_ms last_calls compared_calls",
        "name operation",
        share="window_pct",
    ),
    # excess over its median peer per step; `name`: the operator that makes most of it
    **{
        name: kind(Mechanism.WORK, "rank", _SLOW, "name peers", share="window_pct")
        for name in ("rank.compute_slow", "rank.host_slow", "rank.loader_slow", "rank.unattributed")
    },
    # slow in some steps only, of which it costs each `lost_ms`; `shape`: start, stretch, since, period, drift,
    # scattered; `what`: the class of its slowness in them
    "rank.intermittent": kind(
        Mechanism.COLLECTIVES,
        "rank",
        "window_pct lost_ms total_ms slow_steps steps p_value first_step last_step period_steps "
        "compute_excess_ms gap_excess_ms loader_excess_ms",
        "shape what name peers",
        share="window_pct",
    ),
    "rank.communication_slow": kind(Mechanism.COLLECTIVES, "rank", _TRANSFER, "name peers", share="window_pct"),
    # measured and normal: none of the ranks stands out
    "rank.even": kind(Mechanism.COLLECTIVES, "job", "ranks steps lost_pct", "ranks"),
    # others wait in an operation that it has not entered; observed live also what it does instead: `wait` (or running),
    # at `code`, for `object`, which `holder` has
    "rank.not_entered": kind(
        Mechanism.COLLECTIVES,
        "rank",
        "seq waiting waiting_s window_pct",
        "name operation wait code object holder",
        share="window_pct",
    ),
    # it has ended, or its program has, while others wait for it. `signal` or `exit_status` of its process, `ended_s`
    # ago; `detail`: an exception, at `code`, by the log `path`; `limit_of`: cgroup of a kill for lack of memory
    "rank.failed": kind(
        Mechanism.OBJECTS,
        "rank",
        "signal exit_status ended_s waiting_s window_pct",
        "detail code path limit_of",
        share="window_pct",
    ),
    # it has not finished operations that others of their groups finished: its device, or what watches it, stopped
    "rank.not_finished": kind(
        Mechanism.COLLECTIVES, "rank", "seq count window_pct", "name operation", share="window_pct"
    ),
    # ranks of a group entered operations that do not fit: `what` differs
    "rank.mismatch": kind(Mechanism.COLLECTIVES, "rank", "seq", "name operation what expected found"),
    "stage.slow": kind(
        Mechanism.WORK, "job", "window_pct own_ms peers_ms ratio lost_ms", "ranks name", share="window_pct"
    ),
    "rank.moving": kind(Mechanism.COLLECTIVES, "job", "window_pct lost_ms ranks steps", "ranks", share="window_pct"),
    # `ranks`: the pair or group whose transfers take longer than equal ones elsewhere
    "link.slow": kind(Mechanism.COLLECTIVES, "job", _TRANSFER, "ranks name operation", share="window_pct"),
    # jobs without collectives: a replica beside the others
    "replica.slow": kind(
        Mechanism.WORK, "rank", "window_pct p50_ms peers_ms ratio steps p_value", "name", share="window_pct"
    ),
    # two runs of one job; `what`: step, compute, gap, loader, communication, transfer, operator; per step
    "run.step_time": kind(Mechanism.WORK, "job", "before_ms after_ms change_pct p_value"),
    "run.difference": kind(
        Mechanism.WORK,
        "job",
        "before_ms after_ms change_ms of_change_pct count_before count_after",
        "what name ranks",
    ),
    # one call of an operator or kernel, compared with a stored baseline (medians; the change has 99 % bounds); `state`:
    # since when; `name`: with the shape of its tensors
    "run.operator_latency": kind(
        Mechanism.WORK,
        "job",
        "window_pct ranks_pct before_us after_us change_pct low_pct high_pct p_value count peers_us",
        "name ranks state",
        share="window_pct",
    ),
    # the same on one rank compared with the other ranks of the run
    "rank.operator_slow": kind(
        Mechanism.WORK, "rank", "p50_us peers_us change_pct low_pct high_pct p_value count", "name"
    ),
}
