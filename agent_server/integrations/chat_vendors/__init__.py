"""The supported chat vendors."""

from __future__ import annotations

from collections.abc import Mapping

from whystall.agent_server.integrations.messages import Vendor
from whystall.agent_server.settings.sections.chat import (
    ChannelSettings,
    DingTalkSettings,
    FeishuSettings,
    SlackSettings,
    WeComSettings,
)
from whystall.tools.contract.extras import extra


def vendor(name: str, settings: ChannelSettings) -> Vendor:
    """Return the vendor of ``[chat.NAME]`` in the settings."""
    if isinstance(settings, DingTalkSettings):
        from whystall.agent_server.integrations.chat_vendors.dingtalk import DingTalk

        return DingTalk(name, settings)
    if isinstance(settings, FeishuSettings):
        with extra("ticketing"):
            from whystall.agent_server.integrations.chat_vendors.feishu import Feishu

        return Feishu(name, settings)
    if isinstance(settings, SlackSettings):
        from whystall.agent_server.integrations.chat_vendors.slack import Slack

        return Slack(name, settings)
    if isinstance(settings, WeComSettings):
        with extra("ticketing"):
            from whystall.agent_server.integrations.chat_vendors.wecom import WeCom

        return WeCom(name, settings)
    from whystall.agent_server.integrations.chat_vendors.webhook import Webhook

    return Webhook(name, settings)


def vendors(chats: Mapping[str, ChannelSettings]) -> dict[str, Vendor]:
    """Return the vendors of all chats in the settings by name."""
    return {name: vendor(name, settings) for name, settings in chats.items()}
