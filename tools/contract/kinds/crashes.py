"""Kinds of findings about crashes that logs state."""

from __future__ import annotations

from whystall.tools.contract.kinds.spec import KindSpec, Mechanism, kind

KINDS: dict[str, KindSpec] = {
    # a crash report of the kernel, `name`, of the class `what`, `count` times; `also`: other names of the same crash, a
    # separated by |; `broken`: why the report is not whole; `origin`: whether the log proves that the kernel wrote it;
    # `log`: where it stands; `window_pct`: 100 if nothing goes on after it
    "crash.kernel": kind(
        Mechanism.LOGS,
        "host",
        "window_pct count boot_s anon_bytes line",
        "name what also function module limit_of detail broken origin taint log",
        share="window_pct",
    ),
    # a program failed; `reaction`: rank, if it is one to the failure of another rank; `status`: exit code, or minus the
    # signal
    "crash.program": kind(
        Mechanism.LOGS, "process", "window_pct status line", "name what code detail reaction log", share="window_pct"
    ),
    # the process of a job that failed first, `lead_ms` before the others surely; `count`: of processes that failed by
    # themselves
    "crash.first": kind(Mechanism.LOGS, "process", "lead_ms count", "name what log"),
}
