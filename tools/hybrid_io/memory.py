"""Addresses of the bytes of objects: read-only or writable buffers of any kind, and new ``bytes`` to be filled."""

from __future__ import annotations

import ctypes

_SIMPLE, _WRITABLE = 0, 1  # PyBUF_*: both ask for one contiguous block of bytes
_size = ctypes.c_ssize_t

# Not ctypes.pythonapi itself: the types of its functions are shared by all users.
_python = ctypes.PyDLL(None)


class _View(ctypes.Structure):
    """``Py_buffer``, whose layout is part of CPython's stable ABI."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", _size),
        ("itemsize", _size),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.POINTER(_size)),
        ("strides", ctypes.POINTER(_size)),
        ("suboffsets", ctypes.POINTER(_size)),
        ("internal", ctypes.c_void_p),
    )


_get = _python.PyObject_GetBuffer
_get.argtypes, _get.restype = (ctypes.py_object, ctypes.POINTER(_View), ctypes.c_int), ctypes.c_int
_release = _python.PyBuffer_Release
_release.argtypes, _release.restype = (ctypes.POINTER(_View),), None
_new_bytes = _python.PyBytes_FromStringAndSize
_new_bytes.argtypes, _new_bytes.restype = (ctypes.c_void_p, _size), ctypes.py_object
_address = _python.PyBytes_AsString
_address.argtypes, _address.restype = (ctypes.py_object,), ctypes.c_void_p


class block_of:  # used like a function; a class costs half as much as a generator
    """Give address and length of the bytes of `data`, which cannot be resized meanwhile.

    Raises ``TypeError`` without a buffer, ``BufferError`` or ``ValueError`` if it is not contiguous or, with
    `writable`, read-only.
    """

    __slots__ = ("_data", "_view", "_writable")

    def __init__(self, data: object, writable: bool = False) -> None:
        self._data = data
        self._writable = writable

    def __enter__(self) -> tuple[int, int]:
        self._view = view = _View()
        _get(self._data, view, _WRITABLE if self._writable else _SIMPLE)
        return view.buf or 0, view.len

    def __exit__(self, *_: object) -> None:
        _release(self._view)


def new_bytes(size: int) -> tuple[bytes, int]:
    """Return new ``bytes`` with arbitrary contents, and their address; fill them before use.

    `size` is at least 1: the empty ``bytes`` are shared.
    """
    made: bytes = _new_bytes(None, size)
    return made, _address(made)
