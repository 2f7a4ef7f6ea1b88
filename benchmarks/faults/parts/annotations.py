"""Keep the annotations of the data set in memory; worker processes look some up for every step."""

import multiprocessing
import random

from hooks import Hooks


class Callbacks(Hooks):
    def on_start(self):
        context = multiprocessing.get_context("fork")
        self.annotations = [{"id": number, "label": number % 997} for number in range(self.job.settings["items"])]
        self.found = context.Queue(16)
        self.workers = [
            context.Process(target=self.look_up, args=(number,), daemon=True)
            for number in range(self.job.settings["workers"])
        ]

    def on_settings(self):
        for worker in self.workers:
            worker.start()

    def look_up(self, number):
        chance = random.Random(number)
        while True:
            with self.job.phase("lookup"):
                total = 0
                for annotation in chance.sample(self.annotations, 10):
                    total += annotation["label"]  # mark: look_up
            self.found.put(total)

    def on_step(self, number):
        if self.job.revision > 1:
            self.total = self.found.get()
