"""Prepare kernels for the first steps; later steps reuse them."""

import hashlib

from hooks import Hooks


class Callbacks(Hooks):
    def on_start(self):
        self.prepared = 0

    def on_step(self, number):
        if self.job.revision > 1 and self.prepared < self.job.settings["kernels"]:
            with self.job.phase("prepare"):
                self.prepare()

    def prepare(self):
        for _ in range(self.job.settings["rounds"]):
            hashlib.pbkdf2_hmac("sha256", b"kernel", b"salt", 20000)  # mark: prepare
        self.prepared += 1
