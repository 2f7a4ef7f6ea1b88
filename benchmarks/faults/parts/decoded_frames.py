"""Hold the decoded frames of a clip during a step."""

from hooks import Hooks


class Callbacks(Hooks):
    def on_step(self, number):
        with self.job.phase("decode"):
            self.decode(self.job.settings["frames"])

    def decode(self, count):
        frames = [bytearray(1 << 20) for _ in range(count)]  # mark: make
        frames.clear()  # mark: drop
