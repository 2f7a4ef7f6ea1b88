"""The HTTP server: webhooks, calendars, pictures, and MCP."""
