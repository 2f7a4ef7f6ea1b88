"""A table that a helper thread refreshes under a lock which every step takes."""

import hashlib
import os
import threading
import time

from hooks import Hooks


class Callbacks(Hooks):
    def on_start(self):
        self.lock = threading.Lock()
        self.table = bytes(1 << 20)

    def on_settings(self):
        threading.Thread(target=self.keep_fresh, daemon=True).start()

    def keep_fresh(self):
        refresh = {"digest": self.digest, "store": self.store, "pace": self.pace}[self.job.settings["refresh"]]
        while True:
            with self.lock, self.job.phase("refresh"):
                refresh()
            time.sleep(self.job.settings["gap_s"])

    def digest(self):
        end = time.monotonic() + self.job.settings["hold_s"]
        while time.monotonic() < end:
            hashlib.sha256(self.table).digest()  # mark: digest

    def store(self):
        path = os.path.join(self.job.settings["directory"], "table.bin")
        with open(path, "wb") as file:
            for _ in range(self.job.settings["copies"]):
                file.write(self.table)
                file.flush()
                os.fsync(file.fileno())  # mark: sync

    def pace(self):
        time.sleep(self.job.settings["hold_s"])  # mark: pace

    def on_step(self, number):
        with self.lock:  # mark: take
            self.seen = len(self.table)
