"""The console: pages for people, behind the tokens of the MCP server."""
