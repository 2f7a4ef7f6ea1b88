"""Append to an index that several jobs share, under a lock of the file."""

import fcntl
import os

from hooks import Hooks


class Callbacks(Hooks):
    def on_start(self):
        path = os.path.join(self.job.settings["directory"], "index.bin")
        self.file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def on_step(self, number):
        with self.job.phase("index"):
            self.append(number)

    def append(self, number):
        fcntl.flock(self.file, fcntl.LOCK_EX)  # mark: take
        os.write(self.file, b"%d\n" % number)
        fcntl.flock(self.file, fcntl.LOCK_UN)
