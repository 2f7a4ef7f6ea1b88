"""A thread that computes statistics in Python, beside the loop."""

import threading
import time

from hooks import Hooks


class Callbacks(Hooks):
    def on_settings(self):
        for _ in range(self.job.settings["threads"]):
            threading.Thread(target=self.summarise, daemon=True).start()

    def summarise(self):
        words = [f"token{i % 997}" for i in range(5000)]
        while True:
            counts = {}
            for word in words:
                counts[word] = counts.get(word, 0) + len(word)  # mark: count
            best = sorted(counts, key=counts.get)  # mark: sort
            self.best = best[-10:]
            if self.job.settings.get("pause_s"):
                time.sleep(self.job.settings["pause_s"])
