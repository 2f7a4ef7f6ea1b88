"""``kubectl whystall diagnose``: the pod's node, the agent there through the API server, and its answer."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from fleet_servers import TOKEN, application, serving
from kube_api import USER, Cluster, pod
from making import checkpoint

from whystall.agent_server.app import App
from whystall.agent_server.diagnosis.params import DiagnoseParams
from whystall.agent_server.interfaces.cli.kubectl import main
from whystall.agent_server.presentation.results import diagnosis_text
from whystall.knowledge_base.models import Diagnosis

UID = "0b0f0a52-7d0c-4a3e-9a44-000000000001"
Plugin = Callable[..., "tuple[int, str, str]"]


class Diagnosing(App):
    """An agent whose diagnosis is known."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[DiagnoseParams] = []

    async def diagnose(self, params: DiagnoseParams, **_: Any) -> Diagnosis:
        self.asked.append(params)
        return checkpoint()


@pytest.fixture(scope="module")
def agent() -> Diagnosing:
    return Diagnosing()


@pytest.fixture(scope="module")
def servers(agent: Diagnosing) -> Iterator[tuple[Cluster, dict[str, str]]]:
    cluster = Cluster()
    with serving({"agent": application(agent), "api": cluster.app}) as urls:
        cluster.port = urlsplit(urls["agent"]).port
        yield cluster, urls


@pytest.fixture
def cluster(
    servers: tuple[Cluster, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cluster]:
    """The cluster with one pod and the agent of its node; the kubeconfig names it."""
    known, urls = servers
    kept = dict(vars(known))
    fresh = Cluster(
        pod("train-0", "node1", UID),
        pod("whystall-abcde", "node1", "a-1", "whystall"),
        pod("whystall-fghij", "node2", "a-2", "whystall"),
        port=known.port,
        token=TOKEN,
    )
    vars(known).update(vars(fresh))
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "ml"}}],
        "clusters": [{"name": "k", "cluster": {"server": urls["api"].removesuffix("/mcp")}}],
        "users": [{"name": "u", "user": {"token": USER}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(path))
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path))
    for name in ("KUBERNETES_SERVICE_HOST", "WHYSTALL_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    yield known
    vars(known).update(kept)


@pytest.fixture
def plugin(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> Plugin:
    """Runs the plugin; its status, standard output and standard error."""

    def run(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["diagnose", *words])
        shown = capsys.readouterr()
        assert TOKEN not in shown.out + shown.err
        assert USER not in shown.out + shown.err
        return int(ended.value.code or 0), shown.out, shown.err

    return run


def test_a_pod_is_diagnosed_by_the_agent_of_its_node(cluster: Cluster, plugin: Plugin, agent: Diagnosing) -> None:
    for lang in ("en", "zh"):
        status, out, _ = plugin("pod/train-0", "--duration", "2", "--symptom", "训练变慢", "--lang", lang)
        assert status == 0
        assert out.strip() == diagnosis_text(checkpoint(), "zh" if lang == "zh" else "en").strip()
    asked = agent.asked[-1]
    assert (asked.cgroup, asked.duration, asked.symptom) == (f"pod:{UID}", 2.0, "训练变慢")
    assert set(cluster.forwarded) == {("whystall-abcde", "8377")}


def test_a_container_is_diagnosed_as_json(plugin: Plugin, agent: Diagnosing) -> None:
    status, out, _ = plugin("train-0", "-n", "ml", "-c", "main", "--json")
    assert status == 0
    assert Diagnosis.model_validate(json.loads(out)).cause == checkpoint().cause
    assert agent.asked[-1].cgroup == f"containerd://{UID.replace('-', '') * 2}"


def _node2_only(cluster: Cluster) -> None:
    cluster.pods = [one for one in cluster.pods if one["metadata"]["name"] != "whystall-abcde"]


def _unready(cluster: Cluster) -> None:
    cluster.pods[1]["status"] |= {"conditions": [{"type": "Ready", "status": "False"}]}


def _pending(cluster: Cluster) -> None:
    cluster.pods[0] |= {"spec": {}, "status": {"phase": "Pending"}}


def _wrong_token(cluster: Cluster) -> None:
    cluster.secrets = {"whystall": {"token": "another-token-0123456789"}}


REFUSALS: list[tuple[Callable[[Cluster], Any], tuple[str, ...], int, str, str]] = [
    (lambda _: None, ("pod/other",), 1, "not_found", "there is no pod other in the namespace ml"),
    (lambda _: None, ("pod/train-0", "-n", "../x"), 2, "bad_argument", "no name of Kubernetes"),
    (lambda _: None, ("deployment/train",), 2, "bad_argument", "write pod/NAME"),
    (lambda _: None, ("train-0", "-c", "side"), 1, "not_found", "valid: main"),
    (lambda _: None, ("train-0", "--context", "none"), 2, "bad_argument", "no context none"),
    (lambda _: None, ("train-0", "--server", "http://example.com"), 2, "bad_argument", "kubectl proxy"),
    (_pending, ("train-0",), 1, "busy", "no node yet (Pending)"),
    (_node2_only, ("train-0",), 1, "not_found", "no whystall agent runs on the node node1"),
    (_unready, ("train-0",), 1, "busy", "the whystall agent whystall-abcde on the node node1 is not ready"),
    (lambda c: c.forbidden.add("get pods"), ("train-0",), 1, "no_privilege", "get of pods in ml is forbidden"),
    (lambda c: c.forbidden.add("list pods"), ("train-0",), 1, "no_privilege", "list of pods in whystall"),
    (lambda c: c.forbidden.add("get secrets"), ("train-0",), 1, "no_privilege", "no token: you may not read"),
    (lambda c: c.forbidden.add("create pods/portforward"), ("train-0",), 1, "no_privilege", "of pods/portforward"),
    (lambda c: c.secrets.clear(), ("train-0",), 1, "not_found", "no token: there is no Secret whystall"),
    (lambda c: c.authorised.clear(), ("train-0",), 1, "no_privilege", "does not accept the token"),
    (lambda c: setattr(c, "port", None), ("train-0",), 1, "io_error", "Connection refused"),
    (_wrong_token, ("train-0",), 1, "no_privilege", "the token is not accepted"),
]


@pytest.mark.parametrize(("change", "words", "status", "code", "holding"), REFUSALS)
def test_refusals_are_one_line(
    cluster: Cluster,
    plugin: Plugin,
    change: Callable[[Cluster], Any],
    words: tuple[str, ...],
    status: int,
    code: str,
    holding: str,
) -> None:
    change(cluster)
    ended, out, err = plugin(*words, "--json")
    assert ended == status
    assert json.loads(out)["error"]["code"] == code
    (line,) = err.splitlines()
    assert line.startswith(f"error: {code}: ")
    assert holding in line


def test_an_agent_that_does_not_know_the_pod_says_so(plugin: Plugin, agent: Diagnosing, monkeypatch: Any) -> None:
    monkeypatch.setattr(agent, "diagnose", App().diagnose)  # looks for the pod's processes on this machine
    status, _, err = plugin("train-0")
    assert status == 1
    (line,) = err.splitlines()
    assert f"no pod '{UID}' runs here" in line


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
@pytest.mark.thorough
def test_kubectl_finds_the_plugin_and_its_proxy_forwards_ports(cluster: Cluster, tmp_path: Path) -> None:
    cluster.authorised.add(None)  # over http:// kubectl sends no token
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    proxy = subprocess.Popen(["kubectl", "proxy", "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        assert proxy.stdout is not None
        address = proxy.stdout.readline().split()[-1]
        for words in ([], ["--server", f"http://{address}"]):
            done = subprocess.run(
                ["kubectl", "whystall", "diagnose", "pod/train-0", "-n", "ml", *words],
                env={**os.environ, "PATH": path, "WHYSTALL_HOME": str(tmp_path)},
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stderr
            assert done.stdout.strip() == diagnosis_text(checkpoint(), "en").strip()
    finally:
        proxy.terminate()
        proxy.communicate()
