"""Trackers and pagers that tickets are kept in step with. Driven by the engine, never by a model."""
