"""DingTalk's robot of an app, speaking by itself: into a group that it is in, or to one person.

A group: https://open.dingtalk.com/document/orgapp/the-robot-sends-a-group-message; a person:
https://open.dingtalk.com/document/orgapp/chatbots-send-one-on-one-chat-messages-in-batches. Both take an access token
of the app (https://open.dingtalk.com/document/orgapp/obtain-the-access_token-of-an-internal-app), which holds for two
hours, and the message as JSON in a string. What was taken has a ``processQueryKey``; what was not, ``code`` and
``message``.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from whystall.agent_server.integrations.chat_vendors.responses import json_object, number, words
from whystall.agent_server.integrations.messages import SendError, SendSteps
from whystall.agent_server.outbound.request import Request, Response, as_json
from whystall.agent_server.settings.sections.chat import DingTalkSettings

_JSON = {"Content-Type": "application/json; charset=utf-8"}
_LASTS_S = 7200
_EARLIER_S = 300
_GROUP = "cid"  # ids of conversations begin so; others are of people
_SLOW_S = 10.0


class AppRobot:
    """One app's robot. Keeps the access token while it holds."""

    def __init__(self, name: str, settings: DingTalkSettings) -> None:
        self._name = name
        self._settings = settings
        self._token = ("", 0.0)

    def send(self, to: str, title: str, text: str, now: float) -> SendSteps:
        """Say Markdown in the conversation or to the person `to`."""
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
        answer = json_object(response)
        if answer.get("flowControlledStaffIdList"):
            raise SendError("flow_controlled", "this person is told too much", again=True, wait=_SLOW_S)
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
        answer = json_object((yield Request("POST", url, _JSON, body, (secret,), repeatable=True)))
        fresh, lasts = answer.get("accessToken"), number(answer, "expireIn") or 0
        if not isinstance(fresh, str) or not fresh:
            raise self._refused(answer)
        self._token = (fresh, now + min(lasts, _LASTS_S) - _EARLIER_S)
        return fresh

    def _refused(self, answer: Mapping[str, Any]) -> SendError:
        code = words(answer.get("code", "no processQueryKey"))
        if "InvalidAuthentication" in code:  # the token has ended
            self._token = ("", 0.0)
            return SendError(code, "the access token has ended", again=True, wait=0.0)
        slow = "QpsLimit" in code or "Throttling" in code
        return SendError(code, words(answer.get("message", "")), again=slow, wait=_SLOW_S if slow else None)
