"""The trackers of the settings: ``[sinks.NAME]``, told apart by `kind`."""

from __future__ import annotations

from typing import Literal

from whystall.agent_server.settings.section import Section


class WebhookSink(Section):
    """Any program that takes JSON."""

    kind: Literal["webhook"]


SinkSettings = WebhookSink
