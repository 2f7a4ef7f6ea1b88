"""Evaluate in a forked process after every step, while a thread of this one writes a log under a lock."""

import os
import threading
import time

from hooks import Hooks


class Callbacks(Hooks):
    def on_start(self):
        self.lock = threading.Lock()

    def on_settings(self):
        threading.Thread(target=self.write_log, daemon=True).start()
        time.sleep(0.05)

    def write_log(self):
        while True:
            with self.lock:
                time.sleep(0.02)
                self.last = time.time()

    def on_step(self, number):
        if self.job.revision > 1:
            pid = os.fork()
            if pid == 0:
                self.evaluate()
                os._exit(0)
            os.waitpid(pid, 0)  # mark: wait

    def evaluate(self):
        with self.lock:  # mark: take
            self.last = time.time()
