"""Read every batch from a file, in the loader's thread; save checkpoints in a thread of their own."""

import os
import threading
import time

import numpy as np
from hooks import Hooks


class Callbacks(Hooks):
    def on_start(self):
        self.path = os.path.join(self.job.settings["directory"], "samples.bin")
        self.piece = 256 << 10
        with open(self.path, "wb") as file:
            file.write(os.urandom(self.piece * 64))
            os.fsync(file.fileno())
        self.state = os.urandom(self.job.settings["mib"] << 20)

    def on_settings(self):
        threading.Thread(target=self.keep_saving, daemon=True).start()

    def keep_saving(self):
        path = os.path.join(self.job.settings["directory"], "model.bin")
        while True:
            with self.job.phase("save"):
                self.save(path)
            time.sleep(self.job.settings["every_s"])

    def save(self, path):
        with open(path, "wb") as file:
            file.write(self.state)  # mark: write
            file.flush()
            os.fsync(file.fileno())  # mark: sync

    def load(self, number):
        with self.job.phase("read"):
            data = self.read_piece(number)
        return np.resize(np.frombuffer(data, dtype=np.uint8) / 255.0, (self.job.settings["size"], 8))

    def read_piece(self, number):
        with open(self.path, "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.seek(number % 64 * self.piece)
            return file.read(self.piece)  # mark: read
