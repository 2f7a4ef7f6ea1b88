"""A model behind an OpenAI-compatible chat endpoint: asking it, and what may go wrong."""
