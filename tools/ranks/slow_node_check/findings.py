"""The verdict on a job as findings: each accused rank by both measures, links, stages and turns, the costliest first.

Severity follows the floors: a cost of `critical` of every step is critical, `warn` major. "Measured and normal" is
reported only if all ranks were present and nothing could have hidden a slow one.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from whystall.tools.contract.findings import Finding, Interval, Polarity, Severity, Subject
from whystall.tools.contract.text import clean
from whystall.tools.ranks.job import Job
from whystall.tools.ranks.slow_node_check.intermittent import Intermittent
from whystall.tools.ranks.slow_node_check.links import Transfers
from whystall.tools.ranks.slow_node_check.outcome import Accused, Floors, Outcome
from whystall.tools.ranks.slow_node_check.stages import SlowStage
from whystall.tools.ranks.slow_node_check.votes import Turns
from whystall.tools.timeline.rank_data.rank_list import rank_list

# A part that takes longer by less than this share of the smallest floor counts as equal to the peers'.
_AS_PEERS = 0.3
_KINDS = {
    "compute_slow": "rank.compute_slow",
    "host_slow": "rank.host_slow",
    "loader_slow": "rank.loader_slow",
    "unattributed": "rank.unattributed",
    "communication_slow": "rank.communication_slow",
}
_PARTS = ("compute", "gap", "loader")
_OF_PART = (("compute", "rank.compute_slow"), ("gap", "rank.host_slow"), ("loader", "rank.loader_slow"))


@dataclass(frozen=True)
class Findings:
    """Builds the findings of one job. `whole`: nothing was lost or missing, so that "normal" may be reported."""

    job: Job
    floors: Floors
    whole: bool

    def of(self, out: Outcome) -> list[Finding]:
        """Return all findings, the costliest first."""
        found: list[tuple[float, Finding]] = []
        normal: list[Finding] = []
        for one in out.accused:
            found += [(one.of_job, finding) for finding in self._rank(one, out)]
            normal += self._as_peers(one, out) if self.whole else []
        for link in self._slow_links(out):
            found.append((link.window_pct / 100, link))
        found += [(stage.late.cost_ns / out.step_ns, self._stage(stage, out)) for stage in out.stages]
        found += [(turns.lost_ns / out.step_ns, self._turns(turns, out)) for turns in out.turns]
        found.sort(key=lambda pair: -pair[0])
        return [finding for _, finding in found] + normal + (self._normal(out) if self.whole else [])

    def severity(self, share: float) -> Severity:
        """Return the severity for the share of a step that is lost."""
        if share >= self.floors.critical:
            return Severity.CRITICAL
        return Severity.MAJOR if share >= self.floors.warn else Severity.MINOR

    def subject(self, rank: int) -> Subject:
        """Return a rank as a subject, with its host and process if known."""
        rows = self.job.table("ranks").filter(pl.col("rank") == rank).rows(named=True)
        host, pid = (rows[0]["host"], rows[0]["pid"]) if rows else ("", -1)
        return Subject(type="rank", rank=rank, host=clean(host) or None, pid=pid if pid > 0 else None)

    # --- ranks ------------------------------------------------------------------------------------------------------

    def _rank(self, one: Accused, out: Outcome) -> list[Finding]:
        late = one.late
        shared = {"window_pct": 100 * one.of_job}
        if one.at_times is not None:
            return [self._at_times(one, one.at_times)]
        replica = next((found for found in out.replicas if found.rank == one.rank), None)
        if replica is not None:
            metrics = shared | {
                "p50_ms": replica.p50_ns / 1e6,
                "peers_ms": replica.peers_ns / 1e6,
                "ratio": replica.ratio,
                "steps": float(late.steps),
                "p_value": late.p_value,
            }
            first = self._about(one, "replica.slow", metrics, {"name": one.kind.name} if one.kind.name else {})
        else:
            metrics = shared | {
                "lost_ms": one.cost_ns / 1e6,
                "votes": float(late.votes),
                "steps": float(late.steps),
                "p_value": late.p_value,
                "began_step": float(one.began),
            }
            first = self._about(one, "rank.late", metrics, {})
        words = {"peers": rank_list(one.peers)}
        if one.transfers is not None:
            return [self._about(one, "rank.communication_slow", shared | _transfer(one.transfers), words)]
        words |= {"name": clean(one.kind.name)} if one.kind.name else {}
        return [first, self._about(one, _KINDS[one.kind.slow_class], shared | _slow(one), words)]

    def _at_times(self, one: Accused, found: Intermittent) -> Finding:
        """Return a rank that is slow in some steps as one finding: its node is not shown to be slow at its work."""
        metrics = {
            "window_pct": 100 * one.of_job,
            "lost_ms": one.cost_ns / 1e6,
            "total_ms": found.lost_ns / 1e6,
            "slow_steps": float(len(one.slow_steps)),
            "steps": float(one.late.steps),
            "p_value": one.late.p_value,
            "first_step": float(one.slow_steps[0]),
            "last_step": float(one.slow_steps[-1]),
        }
        metrics |= {"period_steps": float(found.period)} if found.period else {}
        metrics |= {f"{part}_excess_ms": one.kind.excess_ms(part) for part in _PARTS if part in one.kind.peers_ms}
        words = {"shape": found.shape, "what": one.kind.slow_class, "peers": rank_list(one.peers)}
        words |= {"name": clean(one.kind.name)} if one.kind.name else {}
        return self._about(one, "rank.intermittent", metrics, words)

    def _as_peers(self, one: Accused, out: Outcome) -> list[Finding]:
        """Return the parts of an accused rank that were measured and take as long as its peers' do."""
        normal_ms = _AS_PEERS * self.floors.warn * out.step_ns / 1e6
        found: list[Finding] = []
        if one.at_times is not None:
            return found
        for part, kind in _OF_PART:
            more = one.kind.excess_ms(part)
            if part in one.kind.peers_ms and more <= normal_ms:
                metrics = {"window_pct": max(0.0, 100 * more * 1e6 / out.step_ns), "excess_ms": more}
                found.append(self._about(one, kind, metrics, {"peers": rank_list(one.peers)}, normal=True))
        slow = {rank for row in (out.links.slow if out.links else []) for rank in row.ranks}
        if out.links is not None and out.links.compared and one.rank not in slow:
            of_rank = next((row for row in out.links.rows if one.rank in row.ranks), None)
            if of_rank is not None and of_rank.peers_ns > 0:
                metrics = {"window_pct": 0.0} | _transfer(of_rank)
                found.append(self._about(one, "rank.communication_slow", metrics, {}, normal=True))
        return found

    def _about(
        self, one: Accused, kind: str, metrics: dict[str, float], words: dict[str, str], *, normal: bool = False
    ) -> Finding:
        steps = self.job.table("steps").filter((pl.col("rank") == one.rank) & (pl.col("step") >= one.began))
        first, last = (steps["start_ns"].min(), steps["end_ns"].max()) if steps.height else (0, 0)
        return Finding(
            kind=kind,
            subject=self.subject(one.rank),
            interval=Interval(start_ns=int(str(first)), end_ns=int(str(last))),
            metrics=metrics,
            attributes=words,
            severity=Severity.INFO if normal else self.severity(one.of_step),
            polarity=Polarity.NORMAL if normal else Polarity.ABNORMAL,
        )

    # --- the job ----------------------------------------------------------------------------------------------------

    def _slow_links(self, out: Outcome) -> list[Finding]:
        """Return one finding for what the suspects share: the costliest of their groups stands for all."""
        if out.links is None or not out.links.slow:
            return []
        if "link_of_group" not in out.reasons and all(one.transfers is None for one in out.accused):
            return []  # slower than elsewhere, without a cost
        share = out.links.cost_ns / out.step_ns
        row = out.links.slow[0]
        name = clean(row.description or row.group)
        words = {"ranks": rank_list(out.links.suspects), "operation": row.op, "name": name}
        return [self._job("link.slow", {"window_pct": 100 * share} | _transfer(row), words, self.severity(share))]

    def _stage(self, stage: SlowStage, out: Outcome) -> Finding:
        share = stage.late.cost_ns / out.step_ns
        metrics = {
            "window_pct": 100 * share,
            "own_ms": stage.own_ns / 1e6,
            "peers_ms": stage.peers_ns / 1e6,
            "ratio": stage.own_ns / stage.peers_ns if stage.peers_ns > 0 else 1.0,
            "lost_ms": stage.late.cost_ns / 1e6,
        }
        words = {"ranks": rank_list(stage.peers.ranks), "name": clean(stage.peers.label)}
        return self._job("stage.slow", metrics, words, self.severity(share))

    def _turns(self, turns: Turns, out: Outcome) -> Finding:
        share = turns.lost_ns / out.step_ns
        metrics = {
            "window_pct": 100 * share,
            "lost_ms": turns.lost_ns / 1e6,
            "ranks": float(len(turns.rows)),
            "steps": float(sum(len(rows) for rows in turns.rows.values())),
        }
        return self._job("rank.moving", metrics, {"ranks": rank_list(turns.rows)}, self.severity(share))

    def _normal(self, out: Outcome) -> list[Finding]:
        """Return what was measured of the job and is normal."""
        found = []
        if out.verdict == "none":
            metrics = {"ranks": float(len(self.job.present)), "steps": float(out.steps)}
            if out.lost is not None:
                metrics["lost_pct"] = 100 * out.lost
            found.append(self._job("rank.even", metrics, {"ranks": rank_list(self.job.present)}, None))
        if out.links is not None and out.links.compared and not out.links.slow:
            row = out.links.rows[0]
            metrics = {"window_pct": 0.0, "transfer_ms": row.transfer_ns / 1e6, "peers_ms": row.peers_ns / 1e6}
            found.append(self._job("link.slow", metrics, {"operation": row.op}, None))
        return found

    def _job(self, kind: str, metrics: dict[str, float], words: dict[str, str], bad: Severity | None) -> Finding:
        steps = self.job.table("steps")
        first, last = (steps["start_ns"].min(), steps["end_ns"].max()) if steps.height else (0, 0)
        return Finding(
            kind=kind,
            subject=Subject(type="job"),
            interval=Interval(start_ns=int(str(first)), end_ns=int(str(last))),
            metrics=metrics,
            attributes=words,
            severity=bad or Severity.INFO,
            polarity=Polarity.ABNORMAL if bad else Polarity.NORMAL,
        )


def _slow(one: Accused) -> dict[str, float]:
    kind = one.kind
    metrics = {"excess_ms": kind.excess_ms("own")}
    if "own" in kind.peers_ms:
        metrics |= {"own_ms": kind.rank_ms["own"], "peers_ms": kind.peers_ms["own"]}
    for part in _PARTS:
        if part in kind.peers_ms:
            metrics[f"{part}_excess_ms"] = kind.excess_ms(part)
    if kind.peers_ms.get("own", 0.0) > 0:
        metrics["ratio"] = kind.rank_ms["own"] / kind.peers_ms["own"]
    return metrics


def _transfer(row: Transfers) -> dict[str, float]:
    return {
        "transfer_ms": row.transfer_ns / 1e6,
        "peers_ms": row.peers_ns / 1e6,
        "ratio": row.ratio,
        "count": float(row.count),
        "bytes": float(row.bytes),
    }
