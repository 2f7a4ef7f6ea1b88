"""``kubectl whystall`` on a pod made by runc, through an API server to a real ``whystall serve`` on this node."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from containers import Box, box, named
from fleet_servers import serving
from kube_api import USER, Cluster, pod

TOKEN = "a-token-of-the-agent-0123456789"
POD = f"kubectl-{os.getpid()}-0"
PROGRAMS = Path(sys.executable).parent


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Box]:
    if os.geteuid() != 0 or shutil.which("runc") is None:
        pytest.skip("needs root and runc")
    argv = ["sh", "-c", "while :; do sleep 0.01; done"]
    with box(tmp_path, argv, number=7) as made, named(f"ml_{POD}", made.pod_uid):
        yield made


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """The port of the agent."""
    env = {**os.environ, "WHYSTALL_HOME": str(tmp_path / "agent"), "WHYSTALL_TOKEN": TOKEN}
    words = [PROGRAMS / "whystall", "serve", "--transport", "http", "--port", "0"]
    with subprocess.Popen(words, env=env, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        yield int(server.stderr.readline().rpartition(":")[2].partition("/")[0])
        server.terminate()
        server.stderr.read()


def test_a_pod_of_this_node_is_diagnosed_through_the_api_server(job: Box, port: int, tmp_path: Path) -> None:
    cluster = Cluster(
        pod(POD, "node1", job.pod_uid), pod("whystall-x", "node1", "a-1", "whystall"), port=port, token=TOKEN
    )
    with serving({"api": cluster.app}) as urls:
        config = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "ml"}}],
            "clusters": [{"name": "k", "cluster": {"server": urls["api"].removesuffix("/mcp")}}],
            "users": [{"name": "u", "user": {"token": USER}}],
        }
        (tmp_path / "config").write_text(yaml.safe_dump(config))
        env = {
            **os.environ,
            "PATH": f"{PROGRAMS}:{os.environ['PATH']}",
            "KUBECONFIG": str(tmp_path / "config"),
            "WHYSTALL_HOME": str(tmp_path / "home"),
        }
        words = ["kubectl-whystall", "diagnose", f"pod/{POD}", "--duration", "4", "--json"]
        done = subprocess.run(words, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["target"].endswith(f"pod ml/{POD}")
    assert job.pod_uid in found["target"]
    assert found["victim"]["comm"] in ("sh", "sleep"), found["victim"]
