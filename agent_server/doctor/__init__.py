"""Report what works on this host, what is missing, and the command that fixes it. Reads only; attaches nothing."""

from whystall.agent_server.doctor.examining import examine
from whystall.agent_server.doctor.report import report

__all__ = ["examine", "report"]
