"""The client of a language model behind a server of chat completions or of the Messages API."""
