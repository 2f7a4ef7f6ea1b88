"""Lines of logs: who wrote them, by each form."""

from __future__ import annotations

import pytest

from whystall.tools.node.log_lines import first_message, lines

TEXT = "INFO: task udevd:5612 blocked for more than 143 seconds."


@pytest.mark.parametrize(
    ("line", "origin", "host"),
    [
        ("<3>1 2024-08-30T11:11:22Z node7 kernel - - - %s", "unknown", "node7"),
        ("<14>1 2024-08-30T11:11:22Z node7 kernel - - - %s", "user", "node7"),
        ("[25320.993947] node7 kernel: %s", "unknown", "node7"),
        ("[25320.993947] node7 python3[81]: %s", "user", "node7"),
        ("2024-08-30T11:11:22,123456+00:00 %s", "unknown", ""),
        ("[Aug30 11:11] %s", "unknown", ""),
        ('{"_TRANSPORT":"kernel","SYSLOG_FACILITY":"1","MESSAGE":"%s"}', "user", ""),
        ('{"_TRANSPORT":"kernel","_HOSTNAME":"node7","MESSAGE":"%s"}', "kernel", "node7"),
    ],
)
def test_both_readers_agree_on_who_wrote_a_line(line: str, origin: str, host: str) -> None:
    raw = (line % TEXT).encode()
    (part,) = lines(raw)
    assert (part.text, part.origin, part.host) == (TEXT, origin, host)
    assert first_message(raw) == part


@pytest.mark.parametrize("text", ["usb 1-1: new device", "WARNING: CPU: 3 PID: 7 at mm/slab.c", "load is [1.25] now"])
def test_a_driver_and_its_device_are_no_host_and_program(text: str) -> None:
    for stamp in ("[    1.000000] ", "2024-08-30T11:11:22,123456+00:00 "):
        (part,) = lines((stamp + text).encode())
        assert (part.text, part.origin) == (text, "unknown")


@pytest.mark.parametrize("raw", [b"", b"\n", b"{", b'{"MESSAGE":[256]}', b"[" * 5000, b"<9999999999>", b"\xff\xfe["])
def test_no_line_raises(raw: bytes) -> None:
    list(lines(raw))
    first_message(raw)
