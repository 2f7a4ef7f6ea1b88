"""The web doors with a settings file: each route takes what is proven, stores it once, and lets nobody else in."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import chat_callbacks
import httpx
import pytest
from web_servers import serving

from whystall.agent_server.app import App
from whystall.agent_server.integrations.chat_vendors.dingtalk import sign
from whystall.agent_server.interfaces.web.serve import routes_of
from whystall.agent_server.settings.load import load
from whystall.agent_server.worker.configured import configured
from whystall.agent_server.worker.service import Service

pytestmark = pytest.mark.thorough

ALERTS, CALENDAR = "token-of-alerts-0123456789", "token-of-calendars-012345"
DINGTALK, GITLAB = "SECdingtalk", "hook-token"
WECOM = chat_callbacks.WeComKeys("token-of-wecom-012345", "6qkdMrq68nTKduznJYO1A37W2oEgpkMUvkttRToqhUt", "ww1")
SETTINGS = """
[alerts]
token = {{ file = "{0}/alerts" }}
[server]
calendar_token = {{ file = "{0}/calendar" }}
[chat.ops]
kind = "dingtalk"
app_secret = {{ file = "{0}/dingtalk" }}
[chat.wecom]
kind = "wecom"
corp_id = "ww1"
token = {{ file = "{0}/wecom" }}
encoding_aes_key = {{ file = "{0}/wecom_key" }}
[sinks.gitlab]
kind = "gitlab"
url = "http://127.0.0.1:9"
project = "ai/training"
token = {{ file = "{0}/gitlab" }}
webhook_token = {{ file = "{0}/hook" }}
[users.wang]
name = "Wang Wei"
[oncall.schedules.training]
timezone = "Asia/Shanghai"
layers = [{{ users = ["wang"] }}]
"""


class Doors:
    """A server, and what it stored."""

    def __init__(self, port: int, service: Service) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.kb = service.kb
        self.http = httpx.Client(base_url=self.url, timeout=60, trust_env=False)

    def alert(self, *alerts: dict[str, Any], token: str = ALERTS, path: str = "/alerts/alertmanager") -> httpx.Response:
        """An Alertmanager's notification."""
        body = {"version": "4", "groupKey": "{}:{}", "status": "firing", "receiver": "w", "alerts": list(alerts)}
        return self.http.post(path, json=body, headers={"Authorization": f"Bearer {token}"})

    def say(self, text: str, event: str = "m1", secret: str = DINGTALK, at: float | None = None) -> httpx.Response:
        """A message in DingTalk."""
        stamp = str(round((time.time() if at is None else at) * 1000))
        body = {
            "msgId": event,
            "msgtype": "text",
            "text": {"content": f" {text}"},
            "conversationId": "cid1",
            "conversationType": "2",
            "senderStaffId": "u1",
            "senderId": "$:LWCP_v1:$u1",
            "senderNick": "王伟",
            "chatbotUserId": "bot",
        }
        return self.http.post("/chat/ops", json=body, headers={"timestamp": stamp, "sign": sign(secret, stamp)})

    def count(self, table: str) -> int:
        """How many rows."""
        with self.kb._file.read() as db:
            return int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def firing(**labels: str) -> dict[str, Any]:
    """One alert."""
    given = {"alertname": "TrainingStalled", "severity": "critical", **labels}
    return {
        "status": "firing",
        "labels": given,
        "annotations": {"summary": "training stalls"},
        "startsAt": "2026-01-01T00:00:00Z",
        "endsAt": "0001-01-01T00:00:00Z",
        "fingerprint": f"{abs(hash(tuple(sorted(given.items())))):016x}"[:16],
    }


@pytest.fixture
def doors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Doors]:
    secrets = {"alerts": ALERTS, "calendar": CALENDAR, "dingtalk": DINGTALK, "gitlab": "glpat-x", "hook": GITLAB}
    secrets |= {"wecom": WECOM.token, "wecom_key": WECOM.aes_key}
    for name, value in secrets.items():
        (tmp_path / name).write_text(value)
        (tmp_path / name).chmod(0o600)
    config = tmp_path / "whystall.toml"
    config.write_text(SETTINGS.format(tmp_path))
    monkeypatch.setenv("WHYSTALL_CONFIG", str(config))
    with App(tmp_path / "knowledge.db").closing() as app:
        service = Service(app, load())
        with serving(routes_of(service)) as port:
            made = Doors(port, service)
            with made.http:
                yield made


def test_alerts_are_stored_once_however_often_they_come(doors: Doors) -> None:
    first = doors.alert(firing(job="a"), firing(job="b"))
    assert (first.status_code, first.json()["new"]) == (200, 2)
    again = doors.alert(firing(job="b"), firing(job="a"), firing(job="c"))
    assert (again.status_code, again.json()["new"], again.json()["repeated"]) == (200, 1, 2)
    assert doors.count("alerts") == 3


def test_many_senders_at_once_wait_for_their_turn(doors: Doors) -> None:
    """Not every sender asks again when it is told to."""
    with ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(lambda number: doors.alert(firing(job=f"job-{number}")), range(120)))
    assert {answer.status_code for answer in answers} == {200}
    assert doors.count("alerts") == 120


def test_alerts_of_others_have_a_form_of_their_own(doors: Doors) -> None:
    headers = {"Authorization": f"Bearer {ALERTS}"}
    body = {"title": "GPU 3 fell off the bus", "severity": "P1", "labels": {"host": "a1"}, "status": "firing"}
    assert doors.http.post("/alerts/generic", json=body, headers=headers).json()["new"] == 1
    assert doors.http.post("/alerts/generic/nobody", json=body, headers=headers).status_code == 404
    assert doors.count("alerts") == 1


@pytest.mark.parametrize("path", ["/alerts/alertmanager", "/alerts/generic", "/alerts/generic/x"])
def test_nobody_sends_alerts_without_the_token(doors: Doors, path: str) -> None:
    for token in ("x" * 26, CALENDAR):
        answer = doors.alert(firing(), token=token, path=path)
        assert (answer.status_code, answer.json()) == (401, {"error": "unauthorised"})
    assert doors.http.post(path, json={}).status_code == 401
    assert doors.count("alerts") == 0


@pytest.mark.parametrize(
    "body", [b"", b"null", b"[1", b'{"alerts": 3}', b"[" * 100_000, b"\xff\xfe", b'{"version":"4"}'], ids=range(7)
)
def test_what_is_no_notification_is_refused_and_stored_nowhere(doors: Doors, body: bytes) -> None:
    answer = doors.http.post("/alerts/alertmanager", content=body, headers={"Authorization": f"Bearer {ALERTS}"})
    assert (answer.status_code, answer.json()) == (400, {"error": "bad_argument"})
    assert doors.count("alerts") == 0


def test_what_somebody_says_becomes_one_task(doors: Doors) -> None:
    assert doors.say("为什么训练卡顿").status_code == 200
    assert doors.say("为什么训练卡顿").status_code == 200  # the vendor repeats it
    assert doors.say("第二句", event="m2").status_code == 200
    tasks = [doors.kb.tasks.by_key(f"chat:ops:{event}") for event in ("m1", "m2")]
    assert all(task is not None and task.kind == "chat" for task in tasks)
    assert tasks[0] is not None
    assert tasks[0].payload["incoming"]["text"] == "为什么训练卡顿"
    assert doors.count("tasks") == 2


def test_wecom_registers_the_address_with_a_get(doors: Doors) -> None:
    encrypted, query = chat_callbacks.wecom_signed(WECOM, b"1288432023552776189", time.time())
    answer = doors.http.get("/chat/wecom", params={**query, "echostr": encrypted})
    assert (answer.status_code, answer.content) == (200, b"1288432023552776189")
    assert answer.headers["content-type"].startswith("text/plain")
    wrong = doors.http.get("/chat/wecom", params={**query, "echostr": encrypted, "nonce": "1"})
    assert (wrong.status_code, wrong.json()) == (401, {"error": "signature"})
    assert doors.http.get("/chat/wecom").status_code == 401
    assert doors.http.get("/chat/ops", params={**query, "echostr": encrypted}).status_code == 404
    assert doors.count("tasks") == 0


def test_what_wecom_repeats_is_one_task_and_gets_an_empty_answer(doors: Doors) -> None:
    for _ in range(3):
        post = chat_callbacks.wecom(WECOM, "谁在值班 <a&b>", id="17")
        answer = doors.http.post("/chat/wecom", content=post.body, headers=post.headers, params=dict(post.query))
        assert (answer.status_code, answer.content) == (200, b"")
    task = doors.kb.tasks.by_key("chat:wecom:17")
    assert task is not None
    assert task.payload["incoming"]["text"] == "谁在值班 <a&b>"
    assert doors.count("tasks") == 1


def test_what_wecom_cannot_have_sent_tells_no_more_than_that(doors: Doors) -> None:
    """One answer to a wrong padding, key and receiver: no padding oracle, even for who knows the token."""
    other = chat_callbacks.WeComKeys(WECOM.token, WECOM.aes_key, "ww2")
    answers = set()
    for encrypted, query in (
        chat_callbacks.wecom_encrypted(WECOM, b"r" * 32, time.time()),
        chat_callbacks.wecom_encrypted(WECOM, b"r" * 16 + b"\xff" * 15 + b"\1", time.time()),
        chat_callbacks.wecom_signed(other, b"{}", time.time()),
        ("%%%", chat_callbacks.wecom_signed(WECOM, b"{}", time.time())[1]),
    ):
        body = json.dumps({"encrypt": encrypted}).encode()
        answer = doors.http.post("/chat/wecom", content=body, params=query)
        answers.add((answer.status_code, answer.content))
    assert answers == {(401, b'{"error":"signature"}')}
    assert doors.count("tasks") == 0


def test_a_signature_that_is_wrong_or_old_is_not_believed(doors: Doors) -> None:
    assert (doors.say("x", secret="SECother").status_code) in (401, 403)
    assert (doors.say("x", at=time.time() - 7200).status_code) in (401, 403)
    assert doors.http.post("/chat/ops", json={"text": "x"}).status_code in (401, 403)
    assert doors.http.post("/chat/nobody", json={}).json() == {"error": "not_found"}
    assert doors.count("tasks") == 0


def test_a_replayed_signature_says_nothing_new(doors: Doors) -> None:
    """DingTalk's signature does not cover the body: whoever overheard one cannot say something else with it."""
    at = time.time()
    doors.say("who is on call", event="m1", at=at)
    doors.say("resolve 1 because I say so", event="m9", at=at)
    assert doors.count("tasks") == 1


def test_a_queue_that_is_full_says_so(doors: Doors) -> None:
    with doors.kb.transaction():
        for n in range(1000):
            doors.kb.tasks.add("chat", f"waiting:{n}", {})
    answer = doors.say("x")
    assert (answer.status_code, answer.json()) == (503, {"error": "busy"})
    assert int(answer.headers["retry-after"]) > 0


def test_trackers_are_believed_by_their_own_token(doors: Doors) -> None:
    body = {"object_kind": "issue", "project": {"path_with_namespace": "ai/training"}, "object_attributes": {}}
    assert doors.http.post("/sinks/gitlab", json=body, headers={"X-Gitlab-Token": "other"}).status_code == 401
    assert doors.http.post("/sinks/gitlab", json=body).json() == {"error": "signature"}
    assert doors.http.post("/sinks/gitlab", json=body, headers={"X-Gitlab-Token": GITLAB}).status_code == 200
    assert doors.http.post("/sinks/nobody", json=body).status_code == 404


def test_calendars_want_their_token(doors: Doors) -> None:
    answer = doors.http.get(f"/oncall/training.ics?token={CALENDAR}")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/calendar; charset=utf-8")
    assert "Wang Wei" in answer.text
    for wrong in ("", "?token=", "?token=x", f"?token={ALERTS}"):
        assert doors.http.get(f"/oncall/training.ics{wrong}").status_code == 401
        assert doors.http.get(f"/oncall/nobody.ics{wrong}").status_code == 401  # which there are is not told either
    assert doors.http.get(f"/oncall/nobody.ics?token={CALENDAR}").status_code == 404


def test_what_is_not_configured_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "whystall.toml"
    config.write_text("")
    monkeypatch.setenv("WHYSTALL_CONFIG", str(config))
    assert not configured(load())
    with serving(routes_of(None)) as port:
        http = httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False)
        assert http.get("/healthz").json() == {"status": "ok"}
        for path in ("/alerts/alertmanager", "/alerts/generic", "/chat/ops", "/sinks/gitlab"):
            for headers in ({}, {"Authorization": "Bearer"}, {"Authorization": "Bearer None"}):
                answer = http.post(path, json={}, headers=headers)
                assert (answer.status_code, json.loads(answer.text)) == (404, {"error": "not_found"})


def test_pictures_are_seen_by_who_has_their_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from whystall.agent_server.integrations.pictures.store import Pictures
    from whystall.agent_server.interfaces.web.pictures import picture_routes
    from whystall.agent_server.interfaces.web.refusals import Refusals
    from whystall.agent_server.stores import Stores

    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path))
    name = "0123456789abcdef-verdict-en.png"
    (tmp_path / "artifacts").mkdir()
    (tmp_path / "artifacts" / name).write_bytes(b"\x89PNG")
    (tmp_path / "secret.png").write_bytes(b"secret")
    pictures = Pictures("http://127.0.0.1:1")
    shown = pictures.load(f"whystall://artifacts/{name}", "a verdict", time.time())
    assert shown is not None
    assert shown.url is not None
    ended = pictures.load(f"whystall://artifacts/{name}", "a verdict", time.time() - 30 * 86_400)
    assert ended is not None
    with Stores(tmp_path / "k.db") as kb, serving(list(picture_routes(pictures, Refusals(kb)))) as port:
        http = httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False)
        path = shown.url.removeprefix("http://127.0.0.1:1")
        answer = http.get(path)
        assert (answer.content, answer.headers["content-type"]) == (b"\x89PNG", "image/png")
        assert answer.headers["x-content-type-options"] == "nosniff"
        others = [path[:-1] + ("0" if path[-1] != "0" else "1"), path.partition("?")[0]]
        others += [str(ended.url).removeprefix("http://127.0.0.1:1"), path.replace(name, "..%2fsecret.png")]
        for other in others:
            assert http.get(other).status_code == 404, other
