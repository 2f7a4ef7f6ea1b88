"""Append each step's samples to a file, one durable record per sample."""

import os

from hooks import Hooks


class Callbacks(Hooks):
    def on_start(self):
        path = os.path.join(self.job.settings["directory"], "samples.bin")
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def on_step(self, number):
        with self.job.phase("save"):
            for sample in range(self.job.settings["records"]):
                self.append(number * self.job.settings["records"] + sample)

    def append(self, sample):
        os.write(self.file, sample.to_bytes(8, "little") * 128)
        os.fsync(self.file)  # mark: sync
