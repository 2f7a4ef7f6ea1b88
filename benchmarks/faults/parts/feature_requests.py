"""Fetch the features of every step in several requests over HTTP."""

import http.client

from hooks import Hooks


class Callbacks(Hooks):
    def on_start(self):
        self.open_connection()

    def open_connection(self):
        self.connection = http.client.HTTPConnection(self.job.settings["host"], self.job.settings["port"])
        with self.job.phase("connect"):
            self.connection.connect()  # mark: connect

    def on_step(self, number):
        with self.job.phase("fetch"):
            for part in range(self.job.settings["parts"]):
                self.fetch_part(number, part)

    def fetch_part(self, number, part):
        if self.job.revision > 1:
            self.connection.close()
            self.open_connection()
        self.connection.request("GET", f"/features?step={number}&part={part}")
        self.features = self.connection.getresponse().read()  # mark: read
