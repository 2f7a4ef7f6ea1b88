"""The tool crash_analyse: what logs, core files and error files state about crashes, and which process failed first."""
