"""``whystall sinks`` on the command line, against a tracker on loopback."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sink_scenes import ROUTING, TOKEN, Scene, scene
from tracker_servers import reply

from whystall.agent_server.integrations.trackers.issue import SyncState
from whystall.agent_server.integrations.trackers.tracker import Notification
from whystall.agent_server.integrations.trackers.webhook import Webhook
from whystall.agent_server.interfaces.cli import main as cli
from whystall.agent_server.outbound.redact import request_text
from whystall.agent_server.settings.secret import Secret
from whystall.agent_server.settings.sections.trackers import WebhookSink
from whystall.agent_server.worker.lock import worker_lock

Said = tuple[int, str, str]
Whystall = Callable[..., Said]


@pytest.fixture
def whystall(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Whystall:
    """Run a command in this process: its status, output and errors."""

    def run(*words: str) -> Said:
        monkeypatch.setattr("sys.argv", ["whystall", "sinks", *words])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


@pytest.fixture
def s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """A GitLab-like tracker, which one ticket is to be brought to, and a service that rings."""
    with scene("gitlab", tmp_path) as s:
        config = tmp_path / "whystall.toml"
        config.write_text(
            f'[tickets]\nsinks = ["s"]\n[sinks.s]\nkind = "gitlab"\nproject = "demo/training"\nurl = "{s.gate.url}"\n'
            'token = { env = "SINK_TOKEN" }\n[users.ann]\ntrackers = { s = "alice" }\n[oncall]\nfallback = ["ann"]\n'
            '[sinks.ring]\nkind = "pagerduty"\nrouting_key = { env = "SINK_ROUTING" }\n'
            f'[sinks.hook]\nkind = "webhook"\nurl = "{s.gate.url}/in?key=abc123"\n',
            "utf-8",
        )
        config.chmod(0o600)
        monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path))
        monkeypatch.setenv("WHYSTALL_CONFIG", str(config))
        s.file()
        yield s


def test_a_dry_run_sends_nothing_and_tells_no_secret(whystall: Whystall, s: Scene) -> None:
    status, out, _ = whystall("deliver", "--dry-run")
    assert status == 0
    assert "POST " in out
    assert "training hangs" in out
    assert TOKEN not in out
    assert s.gate.calls == []
    assert s.delivery().delivered == 0
    assert whystall("deliver", "s")[0] == 0
    s.ticket_service.acknowledge(s.ticket, "ann")
    requests = json.loads(whystall("deliver", "s", "--dry-run", "--json")[1])[0]["requests"]
    assert [r.partition(" ")[0] for r in requests] == ["GET", "GET", "PUT", "POST"]
    assert "status::acknowledged" in requests[2]
    assert "nothing is to be sent" in whystall("deliver", "ring", "--dry-run")[1]


def test_a_signature_is_not_shown_either(s: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads it over a shoulder could say the same once more."""
    monkeypatch.setenv("OURS", "s3cret-of-ours")
    webhook = Webhook("s", WebhookSink(kind="webhook", url="https://hook.example/in", secret=Secret(env="OURS")))
    sent = SyncState(nonce="n0nce")
    (request,) = webhook.requests(Notification(s.kb.tickets.get(s.ticket), "", "", [], sent, 1_800_000_000.0))
    assert f"webhook-signature: {request.headers['webhook-signature']}" not in request_text(request)
    assert "webhook-signature: ***" in request_text(request)


def test_what_is_wrong_is_shown_and_tried_again(whystall: Whystall, s: Scene) -> None:
    s.gate.faults = lambda call: reply(401, {"message": "401 Unauthorized"})
    status, out, _ = whystall("deliver", "s")
    assert (status, "1 still to make" in out) == (1, True)
    status, out, _ = whystall("list")
    assert status == 0
    assert "1 waiting for you" in out
    assert "ticket 1 is not retried until you have fixed it: unauthorised: HTTP 401: 401 Unauthorized" in out
    assert "whystall sinks deliver s" in out
    assert "abc123" not in out + whystall("list", "--json")[1]
    assert "修复" in whystall("list", "--lang", "zh")[1]
    s.gate.faults = None
    assert whystall("deliver", "s", "--ticket", "1")[0] == 0
    (row, *_) = json.loads(whystall("list", "--json")[1])
    assert (row["name"], row["tickets"], row["behind"], row["troubles"]) == ("s", 1, 0, [])
    assert len(s.issues) == 1


def test_where_a_server_runs_it_makes_the_deliveries(whystall: Whystall, s: Scene) -> None:
    with worker_lock(s.kb.path) as mine:
        assert mine
        status, out, _ = whystall("deliver")
    assert status == 0
    assert "the running server makes 1 deliveries now" in out
    assert s.gate.calls == []


def test_whether_trackers_answer(whystall: Whystall, s: Scene) -> None:
    status, out, _ = whystall("test")
    assert status == 0
    assert "s answers and accepts the credentials" in out
    assert "ring cannot be tested" in out
    assert "PRIVATE-TOKEN: ***" in whystall("test", "s", "--dry-run")[1]
    s.gate.faults = lambda call: reply(403, {"message": f"no {TOKEN}"})
    status, out, err = whystall("test", "s")
    assert status != 0
    assert "HTTP 403" in err
    assert TOKEN[-10:] not in out + err


def test_news_are_taken_over_when_asked_for(whystall: Whystall, s: Scene) -> None:
    whystall("deliver", "s")
    s.vendor.act(1, "close", "bob")
    assert "1 changes received" in whystall("sync")[1]
    assert s.kb.tickets.get("1").state == "resolved"
    status, _, err = whystall("sync", "ring")
    assert status != 0
    assert "webhook" in err


def test_names_that_are_none(whystall: Whystall, s: Scene) -> None:
    status, _, err = whystall("deliver", "nobody")
    assert status != 0
    assert "known: hook, ring, s" in err
    assert whystall("deliver", "--ticket", "99")[0] != 0
    assert ROUTING not in whystall("list", "--json")[1]
