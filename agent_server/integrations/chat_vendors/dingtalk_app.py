"""Send messages through the robot of a DingTalk app, into a group that it is in or to one person.

A group: https://open.dingtalk.com/document/orgapp/the-robot-sends-a-group-message; a person:
https://open.dingtalk.com/document/orgapp/chatbots-send-one-on-one-chat-messages-in-batches. Both take the app's access
token (https://open.dingtalk.com/document/orgapp/obtain-the-access_token-of-an-internal-app), valid for two hours, and
the message as JSON in a string. The answer has a ``processQueryKey``, or ``code`` and ``message`` of an error.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from whystall.agent_server.integrations.chat_vendors.vendor_requests import json_answer, number, one_line
from whystall.agent_server.integrations.messages import SendError, SendSteps
from whystall.agent_server.outbound.request import Request, Response, as_json
from whystall.agent_server.settings.sections.chat import DingTalkSettings

_JSON = {"Content-Type": "application/json; charset=utf-8"}
_LASTS_S = 7200
_EARLIER_S = 300
_GROUP = "cid"  # prefix of group ids; other ids are of people
_SLOW_S = 10.0


class AppRobot:
    """The robot of one app; caches its access token."""

    def __init__(self, name: str, settings: DingTalkSettings) -> None:
        self._name = name
        self._settings = settings
        self._token = ("", 0.0)

    def send(self, to: str, title: str, text: str, now: float) -> SendSteps:
        """Send Markdown to the group or person `to`."""
        settings = self._settings
        token = yield from self._access(now)
        body: dict[str, Any] = {
            "robotCode": settings.robot_code or settings.app_key,
            "msgKey": "sampleMarkdown",
            "msgParam": as_json({"title": title, "text": text}).decode(),
        }
        if to.startswith(_GROUP):
            method = "groupMessages/send"
            body["openConversationId"] = to
        else:
            method = "oToMessages/batchSend"
            body["userIds"] = [to]
        headers = {**_JSON, "x-acs-dingtalk-access-token": token}
        response = yield Request("POST", f"{settings.api}/v1.0/robot/{method}", headers, as_json(body), (token,))
        answer = json_answer(response)
        if answer.get("flowControlledStaffIdList"):
            raise SendError("flow_controlled", "too many messages to this person", again=True, wait=_SLOW_S)
        if answer.get("invalidStaffIdList"):
            raise SendError("invalid_staff", "there is no such person")
        if response.status >= 300 or not answer.get("processQueryKey"):
            raise self._refused(answer)

    def _access(self, now: float) -> Generator[Request, Response, str]:
        settings = self._settings
        assert settings.app_secret is not None  # noqa: S101 - settings give it with app_key
        secret = settings.app_secret.read(f"chat.{self._name}.app_secret")
        token, until = self._token
        if token and now < until <= now + _LASTS_S:
            return token
        body = as_json({"appKey": settings.app_key, "appSecret": secret})
        url = f"{settings.api}/v1.0/oauth2/accessToken"
        answer = json_answer((yield Request("POST", url, _JSON, body, (secret,), repeatable=True)))
        new, lasts = answer.get("accessToken"), number(answer, "expireIn") or 0
        if not isinstance(new, str) or not new:
            raise self._refused(answer)
        self._token = (new, now + min(lasts, _LASTS_S) - _EARLIER_S)
        return new

    def _refused(self, answer: Mapping[str, Any]) -> SendError:
        code = one_line(answer.get("code", "no processQueryKey"))
        if "InvalidAuthentication" in code:
            self._token = ("", 0.0)
            return SendError(code, "the access token has expired", again=True, wait=0.0)
        slow = "QpsLimit" in code or "Throttling" in code
        return SendError(code, one_line(answer.get("message", "")), again=slow, wait=_SLOW_S if slow else None)
