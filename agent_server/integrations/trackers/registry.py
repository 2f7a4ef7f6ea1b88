"""All trackers by the `kind` of their settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from whystall.agent_server.integrations.trackers.centre import Centre
from whystall.agent_server.integrations.trackers.github import GitHub
from whystall.agent_server.integrations.trackers.gitlab import GitLab
from whystall.agent_server.integrations.trackers.jira import Jira
from whystall.agent_server.integrations.trackers.pagerduty import PagerDuty
from whystall.agent_server.integrations.trackers.tracker import Notifier, Sink, Tracker
from whystall.agent_server.integrations.trackers.webhook import Webhook
from whystall.agent_server.settings.sections.trackers import SinkSettings, TrackerSettings

TRACKERS: Mapping[str, Callable[[str, Any], Tracker]] = {"github": GitHub, "gitlab": GitLab, "jira": Jira}
NOTIFIERS: Mapping[str, Callable[[str, Any], Notifier]] = {
    "pagerduty": PagerDuty,
    "webhook": Webhook,
    "centre": Centre,
}


def open_tracker(name: str, settings: TrackerSettings) -> Tracker:
    """Return the tracker `name`; its token is read at the first request."""
    return TRACKERS[settings.kind](name, settings)


def open_notifier(name: str, settings: SinkSettings) -> Notifier:
    """Return the notifier `name`; its secrets are read when they are needed."""
    return NOTIFIERS[settings.kind](name, settings)


def open_sink(name: str, settings: SinkSettings) -> Sink:
    """Return the tracker or notifier `name`."""
    return open_tracker(name, settings) if isinstance(settings, TrackerSettings) else open_notifier(name, settings)
