"""The error of the release tools."""


class ReleaseError(Exception):
    """A release cannot be made; the message is one line for the person who makes it."""
