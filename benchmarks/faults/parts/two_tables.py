"""Two tables with a lock each, moved between by the loop and by a helper thread."""

import threading
import time

from hooks import Hooks


class Callbacks(Hooks):
    def on_start(self):
        self.first = threading.Lock()
        self.second = threading.Lock()

    def on_settings(self):
        threading.Thread(target=self.move_back, daemon=True).start()

    def move_back(self):
        while True:
            with self.second:
                time.sleep(0.02)
                with self.first:  # mark: back
                    self.moved = time.time()

    def on_step(self, number):
        if self.job.revision > 1:
            self.move()

    def move(self):
        with self.first:
            time.sleep(0.02)
            with self.second:  # mark: there
                self.moved = time.time()
