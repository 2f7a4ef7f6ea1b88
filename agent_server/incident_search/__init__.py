"""The search of past incidents that all interfaces call: by words, by embeddings, ordered by a language model."""
