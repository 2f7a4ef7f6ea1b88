"""Push metrics after every step to a collector; try again if it does not answer."""

import socket
import time

from hooks import Hooks


class Callbacks(Hooks):
    def on_step(self, number):
        if self.job.revision > 1:
            with self.job.phase("push"):
                self.push_metrics(number)  # mark: push

    def push_metrics(self, number):
        delay = self.job.settings["first_delay_s"]
        for _ in range(self.job.settings["tries"]):
            try:
                with socket.create_connection(("127.0.0.1", self.job.settings["port"]), timeout=2) as connection:
                    connection.sendall(b"step %d\n" % number)
                    return
            except OSError:
                with self.job.phase("delay"):
                    time.sleep(delay)  # mark: delay
                delay *= 2
