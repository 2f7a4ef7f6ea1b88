"""What works on this host, what is missing, and the command that fixes it. Reads only; attaches nothing."""

from whystall.agent_server.doctor.examine import examine, report

__all__ = ["examine", "report"]
