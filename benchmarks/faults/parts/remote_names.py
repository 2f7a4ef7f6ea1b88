"""Report after every few steps to a host that is looked up by name."""

import socket

from hooks import Hooks


class Callbacks(Hooks):
    def on_step(self, number):
        if self.job.revision > 1:
            with self.job.phase("report"):
                self.report()

    def report(self):
        try:
            socket.getaddrinfo("metrics.example.com", 80)  # mark: look_up
        except OSError as error:
            self.job.emit("failed", errno=error.errno)
