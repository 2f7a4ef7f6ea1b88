"""Summarise the step with a command, whose last line says whether it worked."""

import subprocess
import sys

from hooks import Hooks

PROGRAM = "import sys; sys.stdout.write('loss 0.1\\n' * int(sys.argv[1]))"


class Callbacks(Hooks):
    def on_step(self, number):
        if number % 20 == 0:
            with self.job.phase("summary"):
                self.summarise()

    def summarise(self):
        command = [sys.executable, "-S", "-c", PROGRAM, str(self.job.settings["lines"])]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        process.wait()  # mark: wait
        self.summary = process.stdout.read()
