"""Look up rows of an embedding table that is mapped from a file."""

import mmap
import os
import random

from hooks import Hooks


class Callbacks(Hooks):
    def on_start(self):
        self.path = os.path.join(self.job.settings["directory"], "table.bin")
        size = self.job.settings["mib"] << 20
        with open(self.path, "wb") as file:
            file.write(os.urandom(size))
            os.fsync(file.fileno())
        self.file = os.open(self.path, os.O_RDONLY)
        self.table = mmap.mmap(self.file, size, prot=mmap.PROT_READ)
        self.table.madvise(mmap.MADV_RANDOM)

    def on_step(self, number):
        if self.job.revision > 1:
            self.table.madvise(mmap.MADV_DONTNEED)
            os.posix_fadvise(self.file, 0, 0, os.POSIX_FADV_DONTNEED)
            with self.job.phase("rows"):
                self.total = self.rows()

    def rows(self):
        total = 0
        for _ in range(self.job.settings["rows"]):
            total += self.table[random.randrange(len(self.table))]  # mark: row
        return total
