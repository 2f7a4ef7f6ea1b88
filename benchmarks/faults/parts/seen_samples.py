"""Count how many distinct samples the loop has seen."""

from hooks import Hooks


class Callbacks(Hooks):
    def on_start(self):
        self.seen = []
        self.next = 0

    def on_step(self, number):
        if self.job.revision > 1:
            with self.job.phase("distinct"):
                self.distinct(self.job.settings["per_step"])  # mark: distinct

    def distinct(self, count):
        for _ in range(count):
            sample = f"sample-{self.next}"
            self.next += 1
            if sample not in self.seen:  # mark: search
                self.seen.append(sample)
