"""Read every record from a file, in the loader's thread."""

import os

from hooks import Hooks


class Callbacks(Hooks):
    def on_start(self):
        self.path = os.path.join(self.job.settings["directory"], "records.bin")
        self.piece = self.job.settings["kib"] << 10
        with open(self.path, "wb") as file:
            file.write(os.urandom(self.piece * 16))
            os.fsync(file.fileno())

    def load(self, number):
        with self.job.phase("read"):
            return self.read_piece(number)

    def read_piece(self, number):
        with open(self.path, "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.seek(number % 16 * self.piece)
            return file.read(self.piece)  # mark: read
