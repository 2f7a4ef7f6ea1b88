"""Keep what every step computed."""

import os

from hooks import Hooks


class Callbacks(Hooks):
    def on_start(self):
        self.history = []

    def on_step(self, number):
        if self.job.revision > 1:
            with self.job.phase("remember"):
                self.remember()

    def remember(self):
        self.history.append(os.urandom(self.job.settings["kib"] << 10))  # mark: remember
