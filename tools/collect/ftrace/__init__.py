"""Record the kernel's scheduling events in a tracefs instance of our own.

The functions exported here run inside a training process, so they need only the standard library.
"""

from whystall.tools.collect.ftrace.in_process import ftrace_record, ftrace_record_start, ftrace_record_stop

__all__ = ["ftrace_record", "ftrace_record_start", "ftrace_record_stop"]
