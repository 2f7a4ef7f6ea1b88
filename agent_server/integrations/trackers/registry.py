"""The trackers of the settings, made ready to be spoken to."""

from __future__ import annotations

from typing import TypeAlias

from whystall.agent_server.integrations.trackers.github import GitHub
from whystall.agent_server.integrations.trackers.gitlab import GitLab
from whystall.agent_server.integrations.trackers.jira import Jira
from whystall.agent_server.settings.sections.trackers import GitHubSink, GitLabSink, SinkSettings, TrackerSettings

Board: TypeAlias = GitHub | GitLab | Jira


def board(name: str, settings: TrackerSettings) -> Board:
    """The tracker called `name`, with its secret read now. Raises `ToolError` (bad_argument) where that cannot be."""
    token = settings.token.read(f"sinks.{name}.token")
    if isinstance(settings, GitHubSink):
        return GitHub(name, settings, token)
    if isinstance(settings, GitLabSink):
        return GitLab(name, settings, token)
    return Jira(name, settings, token)


def is_tracker(settings: SinkSettings) -> bool:
    """Whether it has issues that can be read again."""
    return settings.kind in ("github", "gitlab", "jira")
