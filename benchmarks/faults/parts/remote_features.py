"""Fetch features for every step from a server over HTTP."""

import http.client

from hooks import Hooks


class Callbacks(Hooks):
    def on_start(self):
        self.connection = http.client.HTTPConnection(
            self.job.settings.get("host", "127.0.0.1"), self.job.settings["port"]
        )

    def on_step(self, number):
        with self.job.phase("fetch"):
            self.fetch_features(number)

    def fetch_features(self, number):
        self.connection.request("GET", f"/features?step={number}")
        self.features = self.connection.getresponse().read()  # mark: read
