"""Judge the error counters of memory, CPUs and ports: what rose in the window, and what must not be there at all."""

from __future__ import annotations

import re
from collections import defaultdict

from whystall.tools.collect.hardware import growth
from whystall.tools.contract.findings import Finding, Severity, Subject
from whystall.tools.host.common.findings import finding, severity, window
from whystall.tools.host.gpu_health.data import CounterRow, PortRow
from whystall.tools.recording.store import Recording

COLLECTOR = "hardware"
_BROKEN = re.compile(r"link_downed|carrier_down_count|link_down_events_phy")
"""Counters of a link that was down."""
_ERRORS = re.compile(
    # RDMA, counters and hw_counters
    r"symbol_error|link_error_recovery|port_rcv_errors|port_rcv_remote_physical_errors|port_xmit_discards"
    r"|local_link_integrity_errors|excessive_buffer_overrun_errors|rx_icrc_encapsulated|packet_seq_err"
    r"|out_of_sequence|local_ack_timeout_err|implied_nak_seq_err|rnr_nak_retry_err|roce_adp_retrans(?:_to)?"
    r"|roce_slow_restart(?:_cnps|_trans)?|out_of_buffer"
    # Ethernet
    r"|rx_errors|tx_errors|rx_crc_errors|rx_fifo_errors|rx_missed_errors|tx_carrier_errors|rx_symbol_err_phy"
    r"|rx_crc_errors_phy|rx_discards_phy|rx_out_of_buffer|rx_pcs_symbol_err_phy"
)
_PAUSES = re.compile(r"[rt]x_(?:prio\d_|global_)?pause|[rt]x_pause_ctrl_phy|[rt]x_pfc\w*")
_PAUSED = re.compile(r"[rt]x_(?:prio\d_|global_)pause_duration")
"""Time in microseconds in which a priority was paused (mlx5)."""
_PAUSE_RATE = 10.0
_PAUSED_PCT = 1.0
_FEW_PEERS = 3
_NAMED = 4


def counter_rows(recording: Recording) -> list[CounterRow]:
    """Return the counters that are not 0: those that rose most first."""
    seconds = max(recording.manifest.window_ns, 1) / 1e9
    rows = []
    table = recording.table(f"{COLLECTOR}.counters").sort("at_ns")
    for (kind, device, port, name), group in table.group_by("kind", "device", "port", "name", maintain_order=True):
        values = group["value"].to_list()
        count = growth(values[0], values[-1]) if len(values) > 1 else 0
        rows.append(
            CounterRow(
                kind=str(kind),
                device=str(device),
                port=int(str(port)) if int(str(port)) >= 0 else None,
                name=str(name),
                count=count,
                event_rate=count / seconds,
                total=values[-1],
            )
        )
    return sorted(rows, key=lambda row: (-row.count, -row.total, row.device, row.name))


def port_rows(recording: Recording) -> list[PortRow]:
    """Return all ports."""
    return [
        PortRow(
            kind=r["kind"],
            device=r["device"],
            port=r["port"] if r["port"] >= 0 else None,
            link=r["link"],
            state=r["state"],
            rate_mbps=r["rate_mbps"] if r["rate_mbps"] >= 0 else None,
        )
        for r in recording.table(f"{COLLECTOR}.ports").iter_rows(named=True)
    ]


def judged(rows: list[CounterRow], ports: list[PortRow], window_ns: int) -> list[Finding]:
    """Return the findings of counters and ports."""
    found = [*_memory(rows, window_ns), *_machine_checks(rows, window_ns), *_thermal(rows, window_ns)]
    by_port: dict[tuple[str, str, int | None], list[CounterRow]] = defaultdict(list)
    for row in rows:
        if row.kind in ("rdma", "ethernet") and row.count:
            by_port[row.kind, row.device, row.port].append(row)
    for (_, device, port), own in by_port.items():
        found += [*_errors(device, port, own, window_ns), *_pauses(device, port, own, window_ns)]
    return [*found, *_slow(ports, window_ns)]


def _memory(rows: list[CounterRow], window_ns: int) -> list[Finding]:
    found = []
    for row in rows:
        if row.kind != "memory" or row.port is not None:
            continue
        uncorrected = row.name == "ue_count"
        if not uncorrected and not row.count:
            continue  # single errors were corrected at some time since the start: no fault
        modules = [r for r in rows if r.kind == "memory" and r.device == row.device and r.port is not None]
        ending = "dimm_ue_count" if uncorrected else "dimm_ce_count"
        named = [f"dimm{m.port}" for m in modules if m.name == ending and (m.count or (uncorrected and m.total))]
        bad = (Severity.CRITICAL if row.count else Severity.MAJOR) if uncorrected else Severity.MINOR
        attributes = {
            "condition": "uncorrected" if uncorrected else "corrected",
            "counters": ", ".join(named[:_NAMED]),
            "action": "replace_memory" if uncorrected else "watch",
        }
        metrics = {"count": float(row.count), "rate": row.event_rate, "total": float(row.total)}
        found.append(finding("host.memory", _device(row.device), window(window_ns), metrics, bad, _told(attributes)))
    return found


def _machine_checks(rows: list[CounterRow], window_ns: int) -> list[Finding]:
    own = [row for row in rows if row.kind == "machine_check" and row.total]
    if not own:
        return []
    new, total = sum(row.count for row in own), sum(row.total for row in own)
    attributes = {"cpus": ", ".join(row.device.removeprefix("cpu") for row in own[:8]), "action": "contact_support"}
    bad = Severity.MAJOR if new else Severity.MINOR
    metrics = {"count": float(new), "total": float(total)}
    return [finding("host.machine_check", Subject(type="host"), window(window_ns), metrics, bad, attributes)]


def _thermal(rows: list[CounterRow], window_ns: int) -> list[Finding]:
    own = [row for row in rows if row.kind == "thermal" and row.count]
    events = [row for row in own if row.name.endswith("_throttle_count")]
    if not events:
        return []
    throttled_ms = max((row.count for row in own if row.name.endswith("_ms")), default=0)
    share = min(100.0, 100e6 * throttled_ms / max(window_ns, 1))
    attributes = {"cpus": ", ".join(sorted({row.device.removeprefix("cpu") for row in events})[:8]), "action": "cool"}
    metrics = {"count": float(max(row.count for row in events)), "throttled_pct": share}
    bad = severity(share)
    return [finding("host.thermal", Subject(type="host"), window(window_ns), metrics, bad, attributes)]


def _errors(device: str, port: int | None, rows: list[CounterRow], window_ns: int) -> list[Finding]:
    broken = [row for row in rows if _BROKEN.fullmatch(row.name)]
    errors = [row for row in rows if _ERRORS.fullmatch(row.name)]
    if not broken and not errors:
        return []
    named = [f"{row.name} {row.count}" for row in [*broken, *errors][:_NAMED]]
    attributes = {"counters": ", ".join(named), "action": "replace_cable"}
    metrics = {
        "count": float(sum(row.count for row in [*broken, *errors])),
        "rate": sum(row.event_rate for row in errors),
        "link_downs": float(sum(row.count for row in broken)),
    }
    bad = Severity.MAJOR if broken else Severity.MINOR
    return [finding("port.errors", _port(device, port), window(window_ns), metrics, bad, attributes)]


def _pauses(device: str, port: int | None, rows: list[CounterRow], window_ns: int) -> list[Finding]:
    pauses = [row for row in rows if _PAUSES.fullmatch(row.name)]
    paused_us = max((row.count for row in rows if _PAUSED.fullmatch(row.name)), default=0)
    share = min(100.0, 100e3 * paused_us / max(window_ns, 1))
    rate = max((row.event_rate for row in pauses), default=0.0)
    if rate < _PAUSE_RATE and share < _PAUSED_PCT:
        return []
    named = [f"{row.name} {row.count}" for row in pauses[:_NAMED]]
    metrics = {"rate": rate, "paused_pct": share}
    attributes = {"counters": ", ".join(named)}
    bad = severity(share) if share else Severity.MINOR
    return [finding("port.pauses", _port(device, port), window(window_ns), metrics, bad, _told(attributes))]


def _slow(ports: list[PortRow], window_ns: int) -> list[Finding]:
    """Return the RDMA ports that are down, or slower than most others of this host with the same link."""
    found = []
    links = sorted({port.link for port in ports if port.kind == "rdma"})
    for link in links:
        own = [port for port in ports if port.kind == "rdma" and port.link == link]
        rates = [port.rate_mbps for port in own if port.state == "active" and port.rate_mbps]
        usual = max(set(rates), key=rates.count, default=None)
        if usual is None or len(own) <= _FEW_PEERS or 2 * rates.count(usual) <= len(own):
            continue
        for port in own:
            down = port.state != "active"
            if not down and (port.rate_mbps is None or port.rate_mbps >= usual):
                continue
            metrics = {"rate_mbps": float(port.rate_mbps or 0), "peers_mbps": float(usual)}
            attributes = {"condition": "down" if down else "slow", "action": "replace_cable"}
            subject = _port(port.device, port.port)
            found.append(finding("port.slow", subject, window(window_ns), metrics, Severity.MAJOR, attributes))
    return found


def _device(name: str) -> Subject:
    return Subject(type="device", device=name)


def _port(device: str, port: int | None) -> Subject:
    return _device(f"{device}/{port}" if port is not None else device)


def _told(attributes: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in attributes.items() if value}
