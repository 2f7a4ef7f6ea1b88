"""Assistants that only call tools over MCP: their sessions, policies and transcripts."""
