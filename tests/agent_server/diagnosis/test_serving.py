"""Diagnoses of inference servers: when metrics are read, what they support, and what they do not confirm."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from making import finding

from whystall.agent_server.diagnosis.causes import SERVING_TOOL, of_hosts
from whystall.agent_server.diagnosis.functions import Functions
from whystall.agent_server.diagnosis.params import DiagnoseParams
from whystall.agent_server.diagnosis.serving import serving_options
from whystall.agent_server.presentation.serving_lines import slowest_stage
from whystall.knowledge_base.causes import load_causes
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.findings import Polarity
from whystall.tools.recording.target import Target
from whystall.tools.toolbox import registry

OWN = Target(everything=False, pids=(os.getpid(),))


def test_a_process_that_serves_no_metrics_is_not_asked() -> None:
    assert serving_options(None, OWN) is None
    options = serving_options("http://127.0.0.1:8000/metrics", OWN)
    assert options is not None
    assert options[SERVING_TOOL]["metrics_url"] == "http://127.0.0.1:8000/metrics"


def test_a_url_belongs_to_an_observation() -> None:
    with pytest.raises(ToolError) as with_traces:
        DiagnoseParams(traces="/tmp", metrics_url="http://127.0.0.1:8000/").check(None)
    with pytest.raises(ToolError) as with_recording:
        DiagnoseParams(metrics_url="http://127.0.0.1:8000/").check(Path("/tmp/r"))
    with pytest.raises(ToolError) as no_url:
        DiagnoseParams(metrics_url="gopher://127.0.0.1").check(None)
    assert {e.value.code for e in (with_traces, with_recording, no_url)} == {ErrorCode.BAD_ARGUMENT}


def test_a_cause_that_only_metrics_decide_is_open_for_servers_alone() -> None:
    causes = load_causes()
    assert "kv_cache_full" in of_hosts(causes)
    assert "kv_cache_full" not in of_hosts(causes, serving=False)


def test_the_earliest_slow_stage_is_named() -> None:
    found = [
        finding("serving.decode"),
        finding("serving.queue"),
        finding("serving.stuck", polarity=Polarity.NORMAL),
        finding("serving.kv_cache"),
    ]
    assert [one.kind for one in slowest_stage(found)] == ["serving.kv_cache"]
    assert slowest_stage(found[2:3]) == []


def test_a_model_cannot_name_an_address_or_a_file() -> None:
    functions = Functions([registry().get(SERVING_TOOL)], ["kv_cache_full"], duration=10.0, searchable=False)
    offered = next(one for one in functions.offered() if one.name == SERVING_TOOL)
    assert not {"metrics_url", "metrics"} & offered.parameters["properties"].keys()
