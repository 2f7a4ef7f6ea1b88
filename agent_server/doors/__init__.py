"""The doors: command line and MCP server, both thin over `agent_server.app`."""
