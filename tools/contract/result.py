"""The envelope of every tool's result."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Generic, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from whystall.tools.contract.findings import Finding
from whystall.tools.contract.text import clean

SCHEMA_VERSION = "1"


class Status(str, Enum):
    """`OK`; `NO_DATA`: verified collectors, no events; `PARTIAL`: lost, cut short, or unreadable in part."""

    OK = "ok"
    NO_DATA = "no_data"
    PARTIAL = "partial"


class Model(BaseModel):
    """Base of all result models."""

    model_config = ConfigDict(extra="forbid", defer_build=True)


class BlindSpot(Model):
    """Something that could not be observed. `code` is one of `BLIND_SPOTS`; `detail` is cleaned untrusted text."""

    code: str
    detail: Annotated[str, AfterValidator(clean)] = ""


# Codes of blind spots; their sentences are in prompts/.
BLIND_SPOTS = frozenset(
    {
        "events_lost",  # the buffer or a table was full; detail: how many
        "history_begins",  # the history of the watch is shorter than the span; detail: since when it exists
        "history_gap",  # parts of the span in which no watch recorded; detail: how long in all, the longest one
        "history_restart",  # the watch was started again; detail: when
        "history_lowered",  # the watch kept less detail to limit its cost; detail: the threshold, in how many minutes
        "history_unsampled",  # minutes of an older watch have no CPU time; detail: how many
        "history_short",  # too little is recorded to test for changes; detail: how much
        "path_not_kept",  # only the coarse history is left of a span: ends of chains are not known; detail: which
        "path_part",  # full detail is left of a part of a span, which alone was compared; detail: which
        # the thresholds of waits were raised; detail: of waits, of those of which it is known who ended them
        "path_lowered",
        "path_gap",  # of a span with an interruption, or too short, the critical path is not compared
        "path_redacted",  # nor of a recording whose names are hashed
        "path_other_engine",  # nor of recordings by different engines, or by one that samples; detail: which
        "path_other_kernel",  # compared recordings are of different kernels; detail: which
        "path_other_host",  # compared recordings are of different hosts; detail: which
        "path_one_run",  # of each of two processes there is one recording: how much they differ by chance is not known
        "path_lost",  # one of two compared recordings has lost records; detail: the share of each
        "path_lines_moved",  # lines of a program have other numbers in a later recording; detail: which
        "path_little_in_common",  # two compared paths have few rows in common; detail: the share of each
        "path_several_jobs",  # critical paths are compared of one job or process
        "path_other_thread",  # the threads that make progress in two spans have different roles
        "cut_short",  # the window ended before its time
        "target_exited",  # the observed process ended during the window
        "target_oom_killed",  # the kernel killed an observed process for lack of memory; detail: which, its cgroup
        "not_proven",  # the collector could not be shown to be alive
        "sampled",  # the procfs engine samples; shorter waits are missed and latencies are estimates
        "not_permitted",  # no permission; detail: what
        "priorities_cut",  # too many threads on the host to read the policy of all
        "self_starved",  # our own process waited for the CPU most of the time; detail: the share that it got
        "self_real_time",  # our own process ran with real-time priority; detail: which
        "hidden_processes",  # of the whole host only some processes are shown here; detail: why
        "no_engine",  # the collector could not run at all; detail: why
        "io_uring",  # operations through io_uring or libaio are not system calls on a file
        "mmap_faults",  # file access through a mapping is seen only as blocked time
        "no_block_layer",  # the file system or a stacked device bypasses block requests; detail: which
        "below_threshold",  # only events slower than the recording's threshold were kept; detail: ms
        "kernel_symbols",  # kernel addresses could not be named
        "user_symbols",  # user frames without frame pointers or symbols
        "path_incomplete",  # a path could not be followed to its root
        "redacted",  # names were hashed before the recording left its host
        "no_target_threads",  # per-thread accounting is missing
        "no_dispatch_thread",  # host_bound: no thread to judge worked, or no process was given
        "no_delay_accounting",  # waiting for block I/O is estimated from how often threads were seen blocked
        "psi_absent",  # the kernel offers no pressure information
        "cgroup_absent",  # the controller's files are not there
        "no_profile",  # no accelerator profile: what the device did is not known
        "profile_threads",  # the profile's threads are not in the trace (another PID namespace)
        "dispatch_guessed",  # which threads feed the device was guessed from what they do; detail: which
        "calls_not_traced",  # no system calls in the trace: what threads block in is known by who wakes them only
        "no_topology",  # where CPUs sit was not recorded
        "observer",  # the recording itself took CPU time that a thread waited for; detail: thread and share
        "trace_dark",  # part of a thread's time is not in the trace; detail: thread and share
        "odd_lines",  # lines of a trace could not be read; detail: how many
        "far_off",  # a few events far from all others in time, left out; detail: how many, and at which instants
        "alignment",  # a profile and a trace were laid side by side; detail: within what
        "untold_switches",  # switches that must have happened are not in the trace; detail: how many times
        "event_absent",  # the kernel does not have an event that was asked for; detail: which
        "target_only",  # only events of the target's threads and about them were recorded
        "no_process_of_thread",  # the trace does not say to which process a thread belongs
        "host_pids",  # recorded inside a container, but the numbers are the host's
        "odd_events",  # events of a profile could not be read; detail: how many
        # spans of a profile's threads overlap without one lying in the other: what called what is partly a guess
        "odd_nesting",
        "no_device_work",  # the profile holds nothing of a device
        "launch_unknown",  # device work whose launch is not in the profile; detail: how much of it
        "alignment_unproven",  # nothing in the content could confirm the alignment; detail: what there was
        "alignment_doubtful",  # the content confirms the alignment in part; detail: shares of instants that agree
        "ranks_missing",  # ranks of the job that no trace is of; detail: which
        "ranks_unread",  # traces of ranks that could not be read; detail: which, and why
        "ranks_guessed",  # traces without rank numbers, numbered in the order of their names; detail: how many
        "other_time",  # ranks were recorded at times too far apart: of different runs, maybe; detail: which
        "step_sums",  # sums of each step only: which operation a rank waits in is not known
        "hang_reported",  # by the job's own monitor; detail: which ranks
        "ranks_unheard",  # their traces lack operations in every step: not judged; detail: which
        "no_collectives",  # nothing in the traces synchronises the ranks
        "unmatched",  # operations that were not found on all their ranks; detail: how many
        "group_guessed",  # which group an operation belongs to was inferred; detail: from what
        "no_steps",  # no steps in the traces: equal runs of operations stand in for them
        "few_steps",  # too few steps for a vote; detail: how many
        "clock_spread",  # clocks of the ranks differ; detail: by how much, and what is left after correction
        "no_work_seen",  # what ranks did between collectives is not in the traces
        "starts_unknown",  # starts of operations unknown, only when they were enqueued or logged; detail: count
        "dump_instant",  # when the dumps of a hang were written is not known, nor so how long ranks have waited
        "coarse_durations",  # the host measured how long operations took, not the device; detail: which and how many
        "collectives_absent",  # no observed process has functions of a known communication library
        "collectives_stripped",  # libraries without names of functions; detail: which
        "collectives_refused",  # functions that the kernel let nobody observe; detail: which, and why
        "collectives_stopped",  # too many calls: observation ended early, to not slow the job down; detail: when
        "collectives_before",  # calls that began before the window; detail: how many
        "collectives_enqueued",  # a call ends when the operation is enqueued on the device; detail: libraries
        "steps_estimated",  # nothing marks the steps of a running job: they are estimated from its operations
        "ranks_unknown",  # processes whose rank is not known, left out; detail: which
        "no_baseline",  # nothing to compare transfers with: a link that is slow for all looks normal
        "rank_elsewhere",  # the slow rank's process is not on this host; detail: where it is
        "rank_gone",  # it has ended, or its number belongs to another process now; detail: which
        "rank_process_unknown",  # the slow rank's process, or its start, is unknown; detail: the rank
        "rank_not_looked_at",  # the slow rank's process is here and could not be observed; detail: why
        "looked_later",  # the host was observed after the traces were made
        "not_calibrated",  # direct I/O could not be tried beside buffered; detail: why (a code of `calibration`), where
        "no_metrics_port",  # no port on which the process serves metrics on loopback was found
        "metrics_elsewhere",  # processes that serve metrics in another network namespace; detail: which
        "metrics_unread",  # requests for metrics that failed; detail: where, how many, why
        "metrics_total",  # a single reading of metrics: counts since the start of the server
        "metrics_reset",  # counters began anew within the window; detail: of which server, how often
        "metrics_absent",  # what a server does not state; detail: which quantities
        "metrics_left",  # series of metrics beyond the limit
        "metrics_untimed",  # files of metrics with the same time of modification
        "no_device_state",  # whether a device was busy was not measured
        "no_nvml",  # NVIDIA's library could not be asked; detail: why
        "topology_unread",  # inputs of a topology that could not be read; detail: which, and why
        "topology_unmatched",  # GPUs of two sources of which it is not known whether they are the same; detail: which
        "no_ranks_placed",  # no rank of a job is known: no affinity could be judged
        "ranks_by_order",  # GPUs of ranks were assumed by their order; detail: how many
        "affinity_unknown",  # ranks for which one side of an affinity is not known; detail: which, how many
        "not_stored",  # no room for the diagnosis, and so no ticket; detail: where
        "profile_outside",  # parts of a profile lie outside of the trace's time; detail: how many
        "samples_untimed",  # samples without an instant, of which no place in time is known; detail: how many
        "cache_untracked",  # pages whose touches were not followed, only counted; detail: how many of how many
        "less_told",  # an optional collector is not in the recording; detail: which
        "shares_unread",  # processes whose private and shared memory was not read, to limit the cost; detail: how many
        "failures_unseen",  # failing system calls were not observed
        "few_readings",  # too few readings to tell growth from a single allocation; detail: how many
        "residency_cut",  # open files that were not asked for their cached pages; detail: how many
        "samples_outside",  # samples far from all others in time, left out; detail: how many
        "python_frames",  # Python processes whose frames could not be walked; detail: why, and which
        "python_beside",  # of these, processes that py-spy sampled beside us: another event; detail: which
        "python_skipped",  # waits without Python frames, since walking had cost enough; detail: how many of all
        "python_broken",  # Python stacks that could not be read to their end; detail: how many of how many
        # interrupts that were counted and not timed: those the architecture handles itself; detail `all`: every one
        "untimed_interrupts",
        "untold_interrupts",  # the kernel ran handlers that it did not report; detail: how many of how many
        # limits of the stock tool of BCC that was used; detail of stock_runqlat: host, where all are one
        "stock_fileslower",
        "stock_offcputime",
        "stock_biolatency",
        "stock_interrupts",
        "stock_runqlat",
        "stock_cachestat",
        "pages_in_part",
        "blocked_before",
        "first_second",  # of a stock tool's second that the window began in, its part was left out; detail: how long
        "histogram_full",  # of a stock tool: what did not fit was dropped; detail: which tool
        "path_cut",  # part of the critical path was not followed, or is a wait of unknown kind; detail: share
        "wakers_not_observed",  # threads that ended waits were not recorded; detail: share of the time
        "device_calls_unnamed",  # CPU time in the library of an accelerator, in functions without names; detail: share
        "running_line_unknown",  # no CPU samples of the thread, so running lines are unknown; detail: share of the time
        "objects_not_read",  # holders of locks, sockets and pipes were not read
        "no_single_waits",  # of waits for a CPU only their sum, per thread, by the scheduler's own account
        # connections that started and ended between the two snapshots, and individual retransmissions
        "short_connections",
        "sender_not_observed",  # whether a narrow link or a slow sender delays data cannot be told; detail: the peer
        "core_incomplete",  # a core file was not written to its end; detail: which
        "origin_unknown",  # a log does not state who wrote its lines; detail: which
        # no log shows a crash: a kernel that crashes seldom writes its last messages to disk
        "no_crash_logged",
        "reports_left",  # reports beyond the number that is kept; detail: of which log, how many
        "user_space_lines",  # lines of user space that look like reports of the kernel; detail: of which log, how many
        "logs_unread",  # logs of ranks on network file systems, whose opening may block, or too many; detail: how many
        "objects_cut",  # processes, threads, sockets that were not examined for what they wait for; detail: how many
        "interpreter_lock",  # Python processes whose interpreter lock could not be read; detail: why, and which
        # of a kernel log: older messages are gone; detail: what is left
        "log_overwritten",
        "log_forged",  # programs wrote messages in the words of a driver, which were left out; detail: how many
        "log_writer_unknown",  # the form of the log does not show whether the kernel or a program wrote a line
        "log_damaged",  # of a file; detail: how
        "log_cut",  # a file is too large, and its end was not read; detail: where
        "log_form_unknown",  # no line of a file has the form of a kernel log
        "no_driver_messages",  # the log has no message of the driver at all: whether it has such a GPU is not known
        "gpus_unread",  # values of a GPU that could not be read; detail: which, and why
        "versions_unread",  # processes whose libraries were not read for their versions; detail: how many of how many
        "no_gpus",  # this host shows no GPU; detail: why
        "counters_absent",  # counters of the hardware that this host does not have or show; detail: which
        "switch_codes",  # codes of NVSwitches that NVIDIA's guide does not list; detail: which
        "may_alias",  # a period is known from samples alone, and something faster may look like it; detail: how often
    }
)


class CollectorCoverage(Model):
    """One collector's part in this result. Counts are events; `proven`: it recorded an event of its own."""

    name: str
    engine: str
    why: str = ""
    hooks: list[str] = Field(default_factory=list)
    seen: int = 0
    kept: int = 0
    lost: int = 0
    proven: bool = False


class Coverage(Model):
    """What was observed and what could not be. Times in seconds; `start` is RFC 3339. `before_s`, `after_s`: from the
    call to the beginning of the window, and from its end to the result, on one clock; None: of a recording."""

    recording: str
    host: str
    kernel: str
    start: str
    window_s: float
    requested_s: float
    target: str
    collectors: list[CollectorCoverage]
    not_seen: list[BlindSpot] = Field(default_factory=list)
    before_s: float | None = None
    after_s: float | None = None


class Artifact(Model):
    """A file too big to include, served under `uri` (``whystall://artifacts/...``)."""

    uri: str
    title: str
    media_type: str
    bytes: int = Field(ge=0)
    path: str


DataT = TypeVar("DataT", bound=BaseModel)


class ToolResult(Model, Generic[DataT]):
    """A tool's result. `data` has the tool's own tables, cut to the top rows; `totals` their full row counts."""

    schema_version: str = SCHEMA_VERSION
    tool: str
    status: Status
    findings: list[Finding]
    coverage: Coverage
    data: DataT
    totals: dict[str, int] = Field(default_factory=dict)
    artifacts: list[Artifact] = Field(default_factory=list)
