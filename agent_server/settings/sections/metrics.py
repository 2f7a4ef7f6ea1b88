"""``[metrics]``: who may read the metrics of this server. Off without a token."""

from __future__ import annotations

from whystall.agent_server.settings.secret import Secret
from whystall.agent_server.settings.section import Section


class MetricsSettings(Section):
    """`token`: bearer token of those who scrape ``GET /metrics``; it opens nothing else."""

    token: Secret | None = None
