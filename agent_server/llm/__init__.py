"""The client of a language model behind an OpenAI-compatible chat server."""
