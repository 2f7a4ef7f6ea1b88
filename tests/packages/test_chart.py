"""The chart as Helm renders it (its engine, as a library: `make test-packages` installs it)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

chart = pytest.importorskip("helm_python.chart")
DEPLOY = Path(__file__).parents[2] / "deploy"


def rendered(values: dict[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    """Return what is applied to the cluster, by kind."""
    loaded = chart.Chart.load(str(DEPLOY / "chart"))
    loaded.validate_schema(loaded.merge_values(values))
    texts = loaded.render(values, name="whystall", namespace="whystall").values()
    return {found["kind"]: found for text in texts if (found := yaml.safe_load(text))}


def test_the_defaults_are_the_manifest() -> None:
    written = {found["kind"]: found for found in yaml.safe_load_all((DEPLOY / "daemonset.yaml").read_text())}
    assert rendered() == {"DaemonSet": written["DaemonSet"]}


def test_what_a_cluster_changes_arrives_and_is_known_to_kubernetes() -> None:
    values: dict[str, Any] = {
        "image": {"repository": "registry.example/whystall", "tag": "7", "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "pull"}],
        "settings": "[watch]\non = true\n",
        "priorityClassName": "system-node-critical",
        "tokenSecret": "other",
    }
    documents = rendered(values)
    for document in documents.values():
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    assert documents["ConfigMap"]["data"] == {"whystall.toml": "[watch]\non = true\n"}
    pod = documents["DaemonSet"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "registry.example/whystall:7"
    assert pod["imagePullSecrets"] == [{"name": "pull"}]
    assert pod["priorityClassName"] == "system-node-critical"
    (secret,) = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]
    assert secret["secretName"] == "other"


def test_helm_finds_no_fault() -> None:
    report = chart.lint(str(DEPLOY / "chart"), namespace="whystall", strict=True)
    assert [found for found in report["messages"] if found["severity"] > 1] == []  # 1: an icon is recommended
    assert not report["errors"]
