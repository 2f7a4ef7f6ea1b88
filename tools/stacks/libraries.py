"""Distinguish code of a program from code of libraries, by the paths of source files."""

from __future__ import annotations

import re

# /opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py, /usr/lib/python3/dist-packages/yaml/reader.py
_PACKAGES = re.compile(r"(?:^|/)(?:site|dist)-packages/(?P<path>.+)$")
# /usr/lib/python3.11/queue.py, /opt/conda/lib/python3.11/multiprocessing/connection.py
_STANDARD = re.compile(r"(?:^|/)lib(?:32|64)?/(?P<path>python3(?:\.\d+)?t?/.+)$")
_STANDARD_SHORT = re.compile(r"python3(?:\.\d+)?t?/")


def short_path(file: str) -> str:
    """Return the short form of the path of a source file.

    Of a library, from its package on (``torch/utils/data/dataloader.py``); of the standard library, from the
    interpreter's directory on (``python3.11/queue.py``); of the program, the file name alone (``train.py``).
    """
    for pattern in (_PACKAGES, _STANDARD):
        if found := pattern.search(file):
            return found["path"]
    return file.rpartition("/")[2] or file


def is_library(short: str) -> bool:
    """Return whether a path as `short_path` returns it is that of a library."""
    return "/" in short or short.startswith("<frozen ")


def is_standard(short: str) -> bool:
    """Return whether a path as `short_path` returns it is in the standard library."""
    return short.startswith("<frozen ") or bool(_STANDARD_SHORT.match(short))


def module_path(short: str) -> str:
    """Return the path without the interpreter's directory: ``multiprocessing/queues.py``, ``torch/storage.py``."""
    return _STANDARD_SHORT.sub("", short, count=1)
