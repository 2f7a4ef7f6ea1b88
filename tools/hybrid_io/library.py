"""Load the engine ``libwhystall_hybrid.so``, with the types of its functions."""

from __future__ import annotations

import ctypes
import os
import threading

from whystall.tools.hybrid_io import layout

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "objects", "libwhystall_hybrid.so")
REMEDY = "build it with: python -m whystall.tools.hybrid_io.build (needs a C compiler)"

_lock = threading.Lock()
_loaded: ctypes.CDLL | None = None


class Unavailable(OSError):
    """The engine cannot be loaded; the message is the reason and the remedy, in one line."""


def load() -> ctypes.CDLL:
    """Return the engine, loaded once per process. Raises `Unavailable`."""
    global _loaded  # noqa: PLW0603 - one engine per process
    with _lock:
        if _loaded is None:
            _loaded = _open(PATH)
        return _loaded


def _open(path: str) -> ctypes.CDLL:
    if not os.path.exists(path):
        raise Unavailable(f"the hybrid I/O engine is not built ({path}); {REMEDY}")
    try:
        library = ctypes.CDLL(path, use_errno=True)
        _declare(library)
    except (OSError, AttributeError) as error:
        raise Unavailable(f"the hybrid I/O engine cannot be loaded ({error}); {REMEDY} --force") from None
    wrong = layout.check(library)
    if wrong:
        raise Unavailable(f"the hybrid I/O engine is of another version ({wrong}); {REMEDY} --force")
    return library


def _declare(library: ctypes.CDLL) -> None:
    size, off, pointer, integer = ctypes.c_ssize_t, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int
    policy, pressure = ctypes.POINTER(layout.Policy), ctypes.POINTER(layout.Pressure)
    kinds: dict[str, tuple[object, tuple[object, ...]]] = {
        "hy_policy_default": (None, (policy,)),
        "hy_choose": (layout.Choice, (policy, ctypes.POINTER(layout.Request), pressure)),
        "hy_open": (pointer, (ctypes.c_char_p, integer, ctypes.c_uint, policy)),
        "hy_adopt": (pointer, (integer, policy)),
        "hy_close": (integer, (pointer,)),
        "hy_fileno": (integer, (pointer,)),
        "hy_read": (size, (pointer, pointer, ctypes.c_size_t, off)),
        "hy_write": (size, (pointer, pointer, ctypes.c_size_t, off)),
        "hy_seek": (off, (pointer, off, integer)),
        "hy_truncate": (integer, (pointer, off)),
        "hy_sync": (integer, (pointer, integer)),
        "hy_mark": (None, (pointer, ctypes.c_uint32)),
        "hy_status": (integer, (pointer, ctypes.POINTER(layout.Status))),
        "hy_pressure_now": (None, (pressure,)),
        "hy_counters": (ctypes.POINTER(layout.Counters), ()),
        "hy_counters_share": (integer, (ctypes.c_char_p,)),
        "hy_sizes": (None, (ctypes.POINTER(ctypes.c_uint32), ctypes.c_uint32)),
    }
    for name, (result, arguments) in kinds.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
