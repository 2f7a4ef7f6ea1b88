"""Augment batches in many threads."""

import hashlib
import threading

from hooks import Hooks


class Callbacks(Hooks):
    def on_settings(self):
        for _ in range(self.job.settings["threads"]):
            threading.Thread(target=self.augment, daemon=True).start()

    def augment(self):
        data = bytes(1 << 20)
        while True:
            hashlib.sha256(data).digest()  # mark: augment
