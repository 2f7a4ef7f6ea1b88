"""What the driver of a network device counts itself, as ``ethtool -S`` prints it: SIOCETHTOOL (linux/ethtool.h)."""

from __future__ import annotations

import array
import fcntl
import re
import socket
import struct

_SIOCETHTOOL = 0x8946
_GSSET_INFO, _GSTRINGS, _GSTATS = 0x37, 0x1B, 0x1D
_STATS = 1
_NAME_BYTES = 32
_MOST = 20_000
_WANTED = re.compile(r"(?:[rt]x_(?:prio\d_)?(?:global_)?pause(?:_duration|_transition|_storm\w*)?|[rt]x_pause_ctrl_phy|"
                     r"[rt]x_pfc\w*|rx_symbol_err_phy|rx_discards_phy|rx_crc_errors_phy|link_down_events_phy|"
                     r"rx_out_of_buffer|out_of_buffer|rx_pcs_symbol_err_phy)")  # fmt: skip
"""Pauses by (priority) flow control, and errors of the link: mlx5, bnxt, ice and i40e use these names."""


def statistics(device: str) -> dict[str, int]:
    """Return the driver's counters of pauses and link errors; none if it has none, or asking it is not permitted."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
            return {name: value for name, value in _all(link, device) if _WANTED.fullmatch(name)}
    except OSError:
        return {}


def _all(link: socket.socket, device: str) -> list[tuple[str, int]]:
    info = array.array("B", struct.pack("=IIQI", _GSSET_INFO, 0, 1 << _STATS, 0) + bytes(4))
    _ask(link, device, info)
    _, _, mask, count = struct.unpack_from("=IIQI", info)
    if not mask or not 0 < count <= _MOST:
        return []
    names = array.array("B", struct.pack("=III", _GSTRINGS, _STATS, count) + bytes(count * _NAME_BYTES))
    _ask(link, device, names)
    values = array.array("B", struct.pack("=II", _GSTATS, count) + bytes(count * 8))
    _ask(link, device, values)
    text = names.tobytes()[12:]
    labels = [text[at : at + _NAME_BYTES].split(b"\0", 1)[0] for at in range(0, count * _NAME_BYTES, _NAME_BYTES)]
    numbers = struct.unpack_from(f"={count}Q", values, 8)
    return [(label.decode("ascii", "replace"), number) for label, number in zip(labels, numbers, strict=True)]


def _ask(link: socket.socket, device: str, data: array.array[int]) -> None:
    address, _ = data.buffer_info()
    request = struct.pack("16sP16x", device.encode()[:15], address)
    fcntl.ioctl(link.fileno(), _SIOCETHTOOL, request)
