"""Add noise to the batch of every step."""

import os

from hooks import Hooks


class Callbacks(Hooks):
    def on_step(self, number):
        with self.job.phase("noise"):
            self.noise = self.draw(self.job.settings["kib"] << 10)

    def draw(self, size):
        return os.urandom(size)  # mark: draw
