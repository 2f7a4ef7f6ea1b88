"""Append a line to a file after every step; a thread saves samples to the same file."""

import os
import threading

from hooks import Hooks


class Callbacks(Hooks):
    def on_start(self):
        path = os.path.join(self.job.settings["directory"], "events.bin")
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        self.samples = bytes(64 << 20)

    def on_settings(self):
        threading.Thread(target=self.save_samples, name="samples", daemon=True).start()

    def save_samples(self):
        while True:
            os.pwrite(self.file, self.samples, 1 << 20)  # mark: save

    def on_step(self, number):
        with self.job.phase("line"):
            self.append(number)

    def append(self, number):
        os.pwrite(self.file, b"%d\n" % number, 0)  # mark: append
