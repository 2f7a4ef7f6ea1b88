"""The interfaces to whystall: command line, MCP and web. Each is a thin layer over `agent_server.app`."""
