"""Keep a large state, and copy a piece of it to a new buffer in every step."""

import mmap
import os

from hooks import Hooks


class Callbacks(Hooks):
    def on_start(self):
        self.state = [bytearray(os.urandom(4096) * 256) for _ in range(self.job.settings["mib"])]

    def on_step(self, number):
        with self.job.phase("copy"):
            self.copy(self.state[number % len(self.state)])

    def copy(self, piece):
        size = self.job.settings["kib"] << 10
        with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE) as buffer:
            buffer.write(piece[:size])  # mark: write
