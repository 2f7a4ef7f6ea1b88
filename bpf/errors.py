"""The error of the package ``bpf``; its callers convert it to theirs."""

from __future__ import annotations


class BpfError(Exception):
    """BPF programs cannot be used: one line with the reason, and the remedy.

    ``code`` is one of ``no_libbpf``, ``no_btf``, ``no_privilege``, ``object_missing``,
    ``build_failed``, ``load_failed``, ``attach_failed``, ``read_failed``, ``bad_config``.
    ``log`` is the tail of libbpf's and the verifier's log, empty when there is none.
    """

    def __init__(self, code: str, message: str, remedy: str, log: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.remedy = remedy
        self.log = log

    def __str__(self) -> str:
        return f"{self.code}: {self.message} ({self.remedy})"
