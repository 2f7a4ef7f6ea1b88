"""Readers of ftrace's text and of trace-cmd files."""
