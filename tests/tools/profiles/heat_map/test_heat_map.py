"""heat_map on recordings: the true period of real stalls, what is waited for in them, and honest failures."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from heat_scenes import STALL_S, every, profile_of, recorded_with_samples, rest_of
from profiles import profile_of as accelerator_profile

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.findings import Polarity
from whystall.tools.profiles.common.accelerator import stacks_of_profile
from whystall.tools.profiles.heat_map.stacks import stack_cells
from whystall.tools.profiles.heat_map.tool import TOOL, Data, Params, judge
from whystall.tools.recording.store import Recording
from whystall.tools.stacks.build import Builder
from whystall.tools.stacks.model import StackProfile
from whystall.tools.stacks.recorded import recording_of


def judged(profile: StackProfile) -> Data:
    return judge(recording_of(profile), Params()).data


@pytest.mark.parametrize("hz", [49, 99, 199])
@pytest.mark.parametrize("switches", [True, False])
def test_the_checkpoint_stall_shows_as_its_true_period(hz: int, switches: bool) -> None:
    verdict = judge(recorded_with_samples("checkpoint", hz, switches=switches), Params())
    (row,) = verdict.data.periods
    assert verdict.data.verdict == "stall"
    assert row.what == "quiet"
    assert row.basis == ("switches" if switches else "samples")
    assert row.period_s == pytest.approx(STALL_S, rel=0.02)
    assert row.band_ms == pytest.approx(808, abs=1500 / hz)
    (finding,) = verdict.findings
    assert (finding.kind, finding.polarity) == ("profile.period", Polarity.ABNORMAL)
    assert finding.metrics["period_s"] == row.period_s
    codes = [code for code, _ in verdict.not_seen]
    assert codes == ([] if switches or STALL_S * hz > 200 else ["may_alias"])


def test_the_bands_say_what_is_waited_for() -> None:
    (row,) = judge(recorded_with_samples("checkpoint"), Params()).data.periods
    wait = row.waits[0]
    assert (wait.syscall, wait.state) == ("fsync", "D")
    assert wait.path.endswith("/chk_*.bin")
    assert wait.band_pct > 95 > 50 > wait.outside_pct
    assert "do_fsync" in wait.kernel_stack


@pytest.mark.parametrize("case", ["background", "random", "healthy"])
def test_who_does_not_stall_is_not_accused(case: str) -> None:
    for switches in (True, False):
        verdict = judge(recorded_with_samples(case, switches=switches), Params())
        assert verdict.data.verdict == "none"
        assert verdict.findings == []


def test_a_quota_has_the_period_of_its_bandwidth_control() -> None:
    (row,) = judge(recorded_with_samples("quota"), Params()).data.periods
    assert row.period_s == pytest.approx(0.1, rel=0.01)
    assert row.waits[0].state == "R"


def test_taking_turns_on_a_cpu_is_no_stall() -> None:
    """Two busy threads on one CPU: each runs 4 ms and waits 4 ms, which no cell of 20 ms shows."""
    real = recorded_with_samples("healthy")
    tid, window = real.manifest.target.sole_pid, real.manifest.window_ns
    segments = real.table("switches.segments")
    turns = pl.concat([segments.filter(pl.col("tid") == tid).head(1)] * (window // 8_000_000 - 1))
    starts = pl.int_range(turns.height, eager=True) * 8_000_000 + 1_000_000
    turns = turns.with_columns(start_ns=starts, end_ns=starts + 4_000_000, state=pl.lit("R"))
    turns = turns.cast(dict(segments.schema))
    told = Recording.in_memory(real.manifest, {**real.tables(), "switches.segments": turns})
    verdict = judge(told, Params())
    assert (verdict.data.verdict, verdict.findings) == ("none", [])


def test_the_time_shown_is_that_of_the_profile_and_not_of_whole_columns() -> None:
    assert judged(profile_of([(0.0, 0.16)], 0.16)).span_s == pytest.approx(0.16, abs=0.03)
    assert judged(profile_of(every(1.0, 0.3, 30, 1), 30)).span_s == pytest.approx(30, abs=1.5)


def test_bursts_are_a_rhythm_and_normal() -> None:
    verdict = judge(recording_of(profile_of(every(1.0, 0.1, 30, 1, jitter=0.002), 30)), Params())
    assert verdict.data.verdict == "rhythm"
    assert [one.polarity for one in verdict.findings] == [Polarity.NORMAL]


def test_the_steps_of_an_accelerator_and_their_idle_gaps() -> None:
    step, work = 200_000_000, 150_000_000
    kernels = [
        (10**9 + step * at, 10**9 + step * at + work, "kernel", "gemm", 1, 1, 0, 7, at + 1, -1) for at in range(40)
    ]
    data = judged(stacks_of_profile(accelerator_profile(*kernels)))
    assert [(row.what, row.basis) for row in data.periods] == [("quiet", "spans")]
    assert data.periods[0].period_s == pytest.approx(0.2, rel=1e-3)
    assert data.periods[0].band_ms == pytest.approx(50, rel=1e-2)
    assert data.busy_pct == pytest.approx(75, abs=1)


def test_idle_frames_are_no_activity() -> None:
    made = Builder()
    event, thread = made.event("device", "ns", 0), made.thread(1, 1, "gpu")
    busy, idle = (
        made.stack([made.frame("GPU:gemm", kind="device")]),
        made.stack([made.frame("GPU:[idle]", kind="idle")]),
    )
    for at in range(20):
        made.sample(busy, event, 6e7, at_ns=at * 10**8, span_ns=6 * 10**7, thread=thread)
        made.sample(idle, event, 4e7, at_ns=at * 10**8 + 6 * 10**7, span_ns=4 * 10**7, thread=thread)
    assert judged(made.profile("kineto")).busy_pct == pytest.approx(60, abs=2)


def test_without_instants_there_is_no_map() -> None:
    made = Builder()
    made.sample(made.stack([made.frame("main")]), made.event("samples"), 3)
    with pytest.raises(ToolError) as caught:
        judge(recording_of(made.profile("folded")), Params())
    assert caught.value.code is ErrorCode.BAD_TRACE
    assert "no times of its samples" in caught.value.message


def test_some_samples_without_an_instant_are_counted() -> None:
    made = Builder()
    event, stack = made.event("samples"), made.stack([made.frame("main")])
    for at in range(300):
        made.sample(stack, event, at_ns=at * 10**7)
    made.sample(stack, event)
    made.sample(stack, event, at_ns=10**18)
    verdict = judge(recording_of(made.profile("perf_script")), Params())
    assert verdict.not_seen == [("samples_untimed", "1"), ("samples_outside", "1")]
    assert (verdict.data.columns, verdict.data.column_s) == (15, 0.2)
    assert verdict.data.busy_pct == pytest.approx(100, abs=1)


def test_where_samples_were_lost_is_not_quiet() -> None:
    made = Builder()
    event, lost = made.event("cpu-clock", "ns", 1e7), made.event("lost", "lost")
    stack, thread = made.stack([made.frame("main")]), made.thread(1, 1, "a")
    for at in range(2000):
        if at % 100 < 60:
            made.sample(stack, event, 1e7, at_ns=at * 10**7, thread=thread)
    for second in range(20):
        made.sample(-1, lost, 40, at_ns=second * 10**9 + 590_000_000, span_ns=420_000_000)
    verdict = judge(recording_of(made.profile("perf_script")), Params())
    assert verdict.data.verdict == "none"
    assert verdict.data.busy_pct > 95
    assert np.isnan(verdict.basis.grid.value[3, 35:45]).all()  # type: ignore[attr-defined]


def test_the_weights_of_cells_are_those_of_the_flame_graph() -> None:
    made = Builder()
    event, thread = made.event("cpu-clock", "ns", 1e7), made.thread(1, 1, "a")
    main = made.frame("main")
    stacks = [made.stack([main, made.frame(name)]) for name in ("f", "g")] + [made.stack([main]), -1]
    rng = np.random.default_rng(0)
    for at in range(900):
        made.sample(stacks[int(rng.integers(4))], event, float(rng.integers(1, 4)), at_ns=at * 10**7, thread=thread)
    seen = judge(recording_of(made.profile("ebpf")), Params()).basis
    found = stack_cells(seen.series, seen.grid)  # type: ignore[attr-defined]
    by_node = np.bincount(found.node, found.weight, len(found.tree))
    assert by_node == pytest.approx(found.tree.own[0])
    assert (np.diff(found.cell) >= 0).all()
    assert found.cell[-1] == seen.grid.cell_of(np.array([899 * 10**7]))[0]  # type: ignore[attr-defined]


def test_a_span_over_cells_is_shared_out() -> None:
    made = Builder()
    event, thread = made.event("device", "ns"), made.thread(1, 1, "gpu")
    made.sample(made.stack([made.frame("k")]), event, 5e7, at_ns=0, span_ns=50_000_000, thread=thread)
    seen = judge(recording_of(made.profile("kineto")), Params()).basis
    found = stack_cells(seen.series, seen.grid)  # type: ignore[attr-defined]
    assert seen.grid.cell_ns == 100_000  # type: ignore[attr-defined]
    assert found.cell.tolist() == list(range(500))
    assert found.weight.tolist() == pytest.approx([1e5] * 500)


def test_an_unknown_event_is_refused() -> None:
    busy = rest_of([], 3)
    with pytest.raises(ToolError) as caught:
        judge(recording_of(profile_of(busy, 3)), Params(event="cycles"))
    assert caught.value.code is ErrorCode.BAD_ARGUMENT


def test_an_idle_target_has_no_samples() -> None:
    recording = recorded_with_samples("hang")
    assert recording.table("samples.samples").is_empty()
    verdict = judge(recording, Params())
    assert (verdict.seen, verdict.findings, verdict.data.verdict) == (0, [], "none")


def test_the_description_fits_the_list_of_tools() -> None:
    assert len(TOOL.description) < 250
