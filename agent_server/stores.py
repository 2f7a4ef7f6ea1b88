"""The server's database: the knowledge base, and the journal of what the server has received, sent and still to do."""

from __future__ import annotations

from functools import cached_property

from whystall.agent_server.journal.alerts import Alerts
from whystall.agent_server.journal.audit import Audit
from whystall.agent_server.journal.client_tasks import ClientTasks
from whystall.agent_server.journal.deliveries import Deliveries
from whystall.agent_server.journal.figures import Figures
from whystall.agent_server.journal.handled_requests import HandledRequests
from whystall.agent_server.journal.messages import Messages
from whystall.agent_server.journal.observation_requests import ObservationRequests
from whystall.agent_server.journal.overrides import Overrides
from whystall.agent_server.journal.pending_commands import PendingCommands
from whystall.agent_server.journal.silences import Silences
from whystall.agent_server.journal.tasks import Tasks
from whystall.agent_server.journal.work_orders import WorkOrders
from whystall.knowledge_base.store import KnowledgeBase, default_path


def open_default() -> Stores:
    """Open the database of this host and user; `ToolError` (database) when that fails."""
    return Stores(default_path())


class Stores(KnowledgeBase):
    """The knowledge base and the journal in one file, so that a transaction may span both."""

    @cached_property
    def tasks(self) -> Tasks:
        """Background tasks."""
        return Tasks(self._file)

    @cached_property
    def client_tasks(self) -> ClientTasks:
        """Calls of MCP tools whose results clients fetch later."""
        return ClientTasks(self._file)

    @cached_property
    def alerts(self) -> Alerts:
        """Alerts received, and their groups."""
        return Alerts(self._file)

    @cached_property
    def silences(self) -> Silences:
        """Silences of alerts."""
        return Silences(self._file)

    @cached_property
    def deliveries(self) -> Deliveries:
        """Deliveries of ticket changes to trackers."""
        return Deliveries(self._file)

    @cached_property
    def figures(self) -> Figures:
        """Numbers of tickets and diagnoses."""
        return Figures(self._file)

    @cached_property
    def work_orders(self) -> WorkOrders:
        """Imported work orders."""
        return WorkOrders(self._file)

    @cached_property
    def handled_requests(self) -> HandledRequests:
        """Keys of requests that were already handled."""
        return HandledRequests(self._file)

    @cached_property
    def pending_commands(self) -> PendingCommands:
        """Chat requests that await confirmation, and the last subject of each conversation."""
        return PendingCommands(self._file)

    @cached_property
    def observation_requests(self) -> ObservationRequests:
        """Observations requested in chats."""
        return ObservationRequests(self._file)

    @cached_property
    def messages(self) -> Messages:
        """Messages to send to chats."""
        return Messages(self._file)

    @cached_property
    def overrides(self) -> Overrides:
        """Exceptions from the on-call schedules."""
        return Overrides(self._file)

    @cached_property
    def audit(self) -> Audit:
        """The audit log: who sent or changed what."""
        return Audit(self._file)
