"""Keep a large state, and touch all of it in every step."""

import os

from hooks import Hooks


class Callbacks(Hooks):
    def on_start(self):
        self.state = []
        self.on_settings()

    def on_settings(self):
        while len(self.state) < self.job.settings["mib"]:
            self.state.append(bytearray(os.urandom(4096) * 256))

    def on_step(self, number):
        with self.job.phase("touch"):
            self.touch(number)

    def touch(self, number):
        for piece in self.state:
            for place in range(0, len(piece), 4096):
                piece[place] = number & 0xFF  # mark: touch
