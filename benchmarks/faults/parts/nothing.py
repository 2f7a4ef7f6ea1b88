"""Extends the loop by nothing."""

from hooks import Hooks


class Callbacks(Hooks):
    pass
