"""Run a command after every step."""

import subprocess
import sys

from hooks import Hooks


class Callbacks(Hooks):
    def on_step(self, number):
        if self.job.revision > 1:
            with self.job.phase("command"):
                self.export(number)

    def export(self, number):
        program = "import json, decimal, email, http.client; print(json.dumps(1))"
        subprocess.run([sys.executable, "-S", "-c", program], capture_output=True)  # mark: run
