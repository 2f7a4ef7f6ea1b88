"""Capture of the kernel's scheduling events in a tracefs instance of our own.

What this package's front offers runs inside a training process: it takes the standard library and nothing else.
"""

from whystall.tools.collect.ftrace.in_process import ftrace_record, ftrace_record_start, ftrace_record_stop

__all__ = ["ftrace_record", "ftrace_record_start", "ftrace_record_stop"]
