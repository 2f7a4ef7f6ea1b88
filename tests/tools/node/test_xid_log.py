"""Xid and SXid messages in every form of line, and what the catalogue says about them."""

from __future__ import annotations

import csv
import random
from pathlib import Path

import pytest

from whystall.prompts.files import LANGS
from whystall.prompts.render import words
from whystall.tools.contract.findings import Severity
from whystall.tools.node.sxid_catalogue import UNKNOWN, switch_advice, switch_catalogue
from whystall.tools.node.xid_catalogue import UNUSED, Advice, advice, catalogue, code_of, recovery
from whystall.tools.node.xid_log import Event, Seen, address, decoded

LOST = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
CATALOGUE = Path(__file__).parents[4] / "shared/data/xid_catalog.csv"


def only(*lines: str) -> Event:
    (event,), _ = decoded(lines)
    return event


@pytest.mark.parametrize(
    ("form", "us", "clock"),
    [
        ("3,2033,25320993947,-;%s", 25320993947, "boot"),
        ("<3>[25320.993947] %s", 25320993947, "boot"),
        ("kern  :err   : [25320.993947] %s", 25320993947, "boot"),
        ("[25320.993947] %s", 25320993947, "boot"),
        ("[25320.993947][ T1234] %s", 25320993947, "boot"),
        ("[25320.993947] node7 kernel: %s", 25320993947, "boot"),
        ("Aug 30 11:11:22 node7 kernel: [25320.993947] %s", 25320993947, "boot"),
        ("2024-08-30T11:11:22,123456+00:00 %s", 1725016282123456, "wall"),
        ("2024-08-30T11:11:22.123456+00:00 node7 kernel: %s", 1725016282123456, "wall"),
        ("2024-08-30T19:11:22+0800 node7 kernel: %s", 1725016282000000, "wall"),
        ("<3>1 2024-08-30T11:11:22Z node7 kernel - - - %s", 1725016282000000, "wall"),
        ("[Fri Aug 30 11:11:22 2024] %s", -1, ""),
        ("Aug  3 11:11:22 node7 kernel: %s", -1, ""),
        ("[Aug30 11:11] %s", -1, ""),
        ("[  +0.000012] %s", -1, ""),
        ("[...] %s", -1, ""),
        ("%s", -1, ""),
        (
            '{"_TRANSPORT":"kernel","SYSLOG_FACILITY":"0","_SOURCE_MONOTONIC_TIMESTAMP":"25320993947","MESSAGE":"%s"}',
            25320993947,
            "boot",
        ),
        ('{"_TRANSPORT":"kernel","__REALTIME_TIMESTAMP":"1725016282123456","MESSAGE":"%s"}', 1725016282123456, "wall"),
    ],
)
def test_a_message_is_read_in_every_form_of_line(form: str, us: int, clock: str) -> None:
    event = only(form % LOST)
    assert (event.code, event.device, event.first_us, event.clock) == (79, "0000:3b:00.0", us, clock)


@pytest.mark.parametrize(
    "line",
    [
        f"12,2033,25320993947,-;{LOST}",  # facility 1: written to /dev/kmsg by a program
        f"<12>[25320.993947] {LOST}",
        f"user  :err   : [25320.993947] {LOST}",
        f"Aug 30 11:11:22 node7 python3[812]: {LOST}",
        f'{{"_TRANSPORT":"kernel","SYSLOG_FACILITY":"1","MESSAGE":"{LOST}"}}',
        f'{{"_TRANSPORT":"stdout","MESSAGE":"{LOST}"}}',
    ],
)
def test_what_a_program_writes_accuses_no_gpu(line: str) -> None:
    events, seen = decoded([line])
    assert events == []
    assert seen == Seen(lines=1, foreign=1)


def test_a_message_that_is_quoted_is_none() -> None:
    events, seen = decoded([f"[1.0] train: the log says {LOST}", "[2.0] NVRM: loading NVIDIA UNIX Kernel Module"])
    assert events == []
    assert seen == Seen(lines=1, quoted=1, unmarked=1)


def test_the_writer_is_known_or_counted_as_unmarked() -> None:
    assert decoded([f"3,1,1,-;{LOST}"])[1].unmarked == 0
    assert decoded([f"[1.0] {LOST}"])[1].unmarked == 1


@pytest.mark.parametrize(
    ("message", "pids"),
    [
        ("109, pid=1797828, name=pt_main_thread, Ch 00000008, errorString CTX SWITCH", {1797828: "pt_main_thread"}),
        ("31, pid='812', name=a, b, Ch 1", {812: "a"}),
        ("13, pid=812, Graphics Exception", {812: ""}),
        ("14, Channel 00000001", {}),
        ("79", {}),
        ("45, pid=7, name=py\x1b[31mx, Ch 00000001", {7: "py\\x1b[31mx"}),
    ],
)
def test_the_process_is_read(message: str, pids: dict[int, str]) -> None:
    assert only(f"NVRM: Xid (PCI:0000:CB:00): {message}").processes == pids


@pytest.mark.parametrize(
    "lines",
    [
        ["NVRM: GPU 0000:29:00.0: GPU has fallen off the bus."],
        ["NVRM: GPU at PCI:0000:29:00.0 has fallen off the bus."],
        ["NVRM: GPU at PCI:0000:29:00: GPU has fallen off the bus."],
        [
            "[5.1] NVRM: The NVIDIA GPU 0000:29:00.0",
            "[5.1] NVRM: (PCI ID: 10de:2330) installed in this system has",
            "[5.1] NVRM: fallen off the bus and is not responding to commands.",
        ],
    ],
)
def test_a_gpu_that_fell_off_the_bus_needs_no_number(lines: list[str]) -> None:
    event = only(*lines)
    assert (event.code, event.device, event.numbered, event.count) == (79, "0000:29:00.0", False, 1)
    twice = only("NVRM: Xid (PCI:0000:29:00): 79, GPU has fallen off the bus.", *lines)
    assert (twice.code, twice.numbered, twice.count) == (79, True, 1)


def test_the_tail_of_a_message_accuses_no_gpu_by_itself() -> None:
    assert decoded(["NVRM: fallen off the bus and is not responding to commands."])[0] == []


@pytest.mark.parametrize(
    ("message", "unit", "sub_code", "status", "link", "fatal", "asked"),
    [
        (
            "149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000 0x0)",
            *("NETIR_LINK_EVT", 33, 0, 1, "yes", ("reset_gpu", "investigate_peer_device")),
        ),
        (
            "149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x026001c6 0x00000000 0x00000000)",
            *("NETIR_LINK_EVT", 38, 0, 0, "yes", ("ignore", "investigate_sw_user")),
        ),
        (
            "149, NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000)",
            *("NETIR", 0, 0, -1, "yes", ("reset_gpu", "report_if_alone")),
        ),
        (
            "145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x00000001)",
            *("RLW_RXPIPE", 0, 8, 13, "no", ("ignore", "contact_support")),
        ),
        (
            "145, RLW_REMAP Fatal XC0 i0 Link 00 (0x00000004 0x00000041)",  # two bits: the more severe one
            *("RLW_REMAP", 0, 0x41, 0, "yes", ("reset_gpu", "contact_support")),
        ),
        (
            "146, TLW_RX/TLW_RX_PIPE0 Fatal XC0 i0 Link 00 (0x0000000a 0x00000004)",
            *("TLW_RX", 0, 4, 0, "yes", ("reset_gpu", "contact_support")),
        ),
        ("150, MSE_WATCHDOG Fatal (0x0 0x0)", *("MSE_WATCHDOG", 0, 0, -1, "yes", ("reset_gpu", "contact_support"))),
        ("147, NEW_UNIT Fatal (0x0 0x0)", *("NEW_UNIT", 0, 0, -1, "yes", ("workflow_nvlink5_err",) * 2)),
        ("144, something else", "", -1, -1, -1, "", ("workflow_nvlink5_err",) * 2),
    ],
)
def test_sub_codes_of_nvlink_5(
    message: str, unit: str, sub_code: int, status: int, link: int, fatal: str, asked: tuple[str, str]
) -> None:
    event = only(f"NVRM: Xid (PCI:0009:01:00): {message}")
    assert (event.unit, event.sub_code, event.status) == (unit, sub_code, status)
    assert (event.link, event.fatal) == (link, fatal)
    assert advice(event.code, event.unit, event.sub_code, event.status) == Advice(*asked)


def test_causes_and_recoveries_are_read() -> None:
    cleanup = only("NVRM: Xid (PCI:0000:dc:00): 45, pid=9, name=python3, Ch 00000001 caused by previous Xid 149")
    assert (cleanup.code, cleanup.root) == (45, 149)
    change = "GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)"
    event = only(f"NVRM: Xid (PCI:0000:9b:00): 154, {change}")
    asked = recovery(event.recovery)
    assert asked is not None
    assert (asked.name, asked.action) == ("drain_and_reset", "reset_gpu")


def test_messages_of_a_switch() -> None:
    event = only("[9.5] nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress error (First)")
    assert (event.kind, event.code, event.device, event.unit) == ("sxid", 12028, "0000:05:00.0", "nvidia-nvswitch3")
    assert (event.fatal, event.link) == ("no", 32)
    fatal = only("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up")
    assert (fatal.fatal, fatal.link) == ("yes", 30)


def test_repeats_are_folded() -> None:
    lines = [f"[{second}.000000] NVRM: Xid (PCI:0000:3b:00): 13, pid={second}, name=p, x" for second in range(1, 101)]
    event = only(*lines)
    assert (event.count, event.first_us, event.last_us) == (100, 1_000_000, 100_000_000)
    assert len(event.processes) == 32
    events, _ = decoded([*lines, "NVRM: Xid (PCI:0000:5e:00): 13, x"])
    assert [(one.device, one.count) for one in events] == [("0000:3b:00.0", 100), ("0000:5e:00.0", 1)]


def test_the_uuid_of_a_gpu_is_joined() -> None:
    uuid = "GPU-2a3c9c1e-1111-2222-3333-444455556666"
    assert only(LOST, f"NVRM: GPU at PCI:0000:3b:00: {uuid}").uuid == uuid
    assert only(LOST, f"12,1,1,-;NVRM: GPU at PCI:0000:3b:00: {uuid}").uuid == ""  # a program's claim


@pytest.mark.parametrize("text", ["0000:3B:00", "0000:3b:00.0", "00000000:3B:00.0"])
def test_addresses_have_one_form(text: str) -> None:
    assert address(text) == "0000:3b:00.0"


def test_other_domains_stay_apart() -> None:
    assert address("0009:01:00") == "0009:01:00.0"
    assert address("00010000:01:00.0") == "00010000:01:00.0"


def test_damaged_lines_are_no_error() -> None:
    rng = random.Random(7)
    whole = [
        LOST,
        f"3,1,1,-;{LOST}",
        '{"MESSAGE":[78,86,82,77,58,32,300]}',
        '{"MESSAGE":{}}NVRM: ',
        "[" * 50_000 + "NVRM: ",
    ]
    for text in whole:
        decoded([text[: rng.randrange(len(text))] for _ in range(20)])
    noise = [bytes(rng.randrange(256) for _ in range(80)) + b"NVRM: Xid (PCI:0000:3b:00): 79" for _ in range(50)]
    events, seen = decoded(noise)
    assert events == []
    assert seen.quoted == 50
    assert decoded(["NVRM: Xid (PCI:0000:3b:00): 99999999999, x", "NVRM: Xid (PCI:0000:3b:00): 0, x"])[0] == []


def test_a_flood_of_different_messages_is_bounded() -> None:
    events, seen = decoded(f"NVRM: Xid (PCI:0000:3b:00): {code}, x" for code in range(1, 5001))
    assert len(events) == 4096
    assert seen.lost == 5000 - 4096


def test_every_code_has_an_action_or_none_is_stated() -> None:
    codes = catalogue().codes
    assert sorted(codes) == list(range(1, 173))
    stated = {number for number, code in codes.items() if code.action}
    assert set(range(1, 173)) - stated == set(range(162, 173))  # NVIDIA's catalogue has none for these
    assert all(code.area == "none" for code in codes.values() if code.meaning == UNUSED)
    assert code_of(999) is None
    assert advice(999) == Advice("", "")


@pytest.mark.parametrize("lang", LANGS)
def test_every_meaning_and_action_has_words(lang: str) -> None:
    known, said = catalogue(), words(lang)
    tables = (known.nvlink5.by_bit, known.nvlink5.by_value, known.nvlink5.by_sub_code)
    rules = [pair for table in tables for unit in table.values() for pair in unit.values()]
    actions = {code.action for code in known.codes.values()} | {code.further for code in known.codes.values()}
    actions |= {action for pair in rules for action in pair} | {one.action for one in known.recoveries.values()}
    assert actions - {""} <= said["xid_actions"].keys()
    switches = switch_catalogue()
    meanings = {code.meaning for code in known.codes.values()} | {code.meaning for code in switches.codes.values()}
    assert meanings | {"unknown", UNKNOWN} == said["xid_meanings"].keys()
    assert {code.action for code in switches.codes.values()} <= said["xid_actions"].keys()
    assert switches.classes.keys() == said["sxid_classes"].keys()
    assert {one.name for one in known.recoveries.values()} == said["gpu_recoveries"].keys()
    assert known.actions.keys() <= said["xid_actions"].keys()


@pytest.mark.skipif(not CATALOGUE.exists(), reason="the table of NVIDIA's catalogue is not part of the project")
def test_codes_and_mnemonics_are_those_of_nvidias_table() -> None:
    with CATALOGUE.open(encoding="utf-8", newline="") as file:
        rows = {int(row["code"]): row for row in csv.DictReader(file)}
    assert rows.keys() == catalogue().codes.keys()
    for number, row in rows.items():
        code = catalogue().codes[number]
        assert row["mnemonic"].split(" /")[0] == code.mnemonic
        assert (row["description"] == "Unused") == (code.meaning == UNUSED)
        assert row["gpud_event_type"].lower() == code.level


@pytest.mark.parametrize(
    ("code", "fatal", "expected"),
    [
        (20034, "yes", ("switch_link_down", "fatal", "reset_switch_port", Severity.MAJOR)),
        (12028, "no", ("switch_egress", "non_fatal", "restart_guest", Severity.MAJOR)),  # traffic stops all the same
        (11012, "no", ("switch_corrected", "non_fatal", "ignore", Severity.MINOR)),
        (11012, "yes", ("switch_corrected", "non_fatal", "ignore", Severity.MAJOR)),  # the message itself says more
        (22003, "yes", ("switch_controller", "always_fatal", "reset_fabric", Severity.CRITICAL)),
        (29999, "yes", (UNKNOWN, "fatal", "contact_support", Severity.MAJOR)),
        (29999, "no", (UNKNOWN, "non_fatal", "watch", Severity.MINOR)),
        (29999, "", (UNKNOWN, "", "watch", Severity.MINOR)),
    ],
)
def test_codes_of_switches_have_a_meaning_class_and_action(
    code: int, fatal: str, expected: tuple[str, str, str, Severity]
) -> None:
    found = switch_advice(code, fatal)
    assert (found.meaning, found.kind, found.action, found.severity) == expected
