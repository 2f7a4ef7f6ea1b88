"""What leaves the host names nobody, and says the same."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from recordings import PID, Scene

from whystall.tools.collect.tables import COLLECTORS
from whystall.tools.contract.findings import Finding
from whystall.tools.contract.kinds import KINDS
from whystall.tools.contract.registry import Tool
from whystall.tools.contract.result import BlindSpot
from whystall.tools.host.common import places, wait_kinds
from whystall.tools.recording import privacy
from whystall.tools.recording.judging import judge
from whystall.tools.recording.manifest import CollectorManifest
from whystall.tools.recording.privacy import Privacy
from whystall.tools.recording.redact import redact
from whystall.tools.recording.store import Recording
from whystall.tools.recording.target import Target
from whystall.tools.toolbox import registry

SECRETS = (
    "acme-secret-model",
    "fraudnet",
    "tenant",
    "90210555",
    "wizardlog",
    "projectx",
    "nodealpha",
    "mylib_private",
    "weirdcomm",
    "nvmesecret",
    "whyreason",
)


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))


def secretive() -> Recording:
    scene = Scene().thread(comm="fraudnet", user=50, blocked=40).thread(PID + 1, "weirdcomm", user=20)
    for step in range(4):
        base = f"/mnt/tenant90210555/acme-secret-model/step-{step}"
        scene.call(1 + 3 * step, 900, "fsync", f"{base}/fraudnet_{step}.bin", size=1 << 24)
        scene.call(0.1 + 3 * step, 400, "fsync", "/var/wizardlog/90210555", tid=PID + 1)
        scene.wait(2 + 3 * step, 300, "futex", lock=7, waker=(PID, PID + 1, "weirdcomm"))
    scene.wait(1, 50, "read", stack=("mylib_private::run()", "main"))
    scene.tables["stacks"][-1]["kernel"] = False
    scene.process(PID, "fraudnet", cpu=50, cgroup="/projectx/pod90210555").cgroup("/projectx/pod90210555")
    scene.disk("nvmesecret", busy=97, await_ms=90).requests("nvmesecret", "write", 90, 40)
    target = Target(everything=False, pid=PID, comm="fraudnet", cgroup="/projectx/pod90210555", pids=[PID])
    recording = scene.build(host="nodealpha", target=target)
    for entry in recording.manifest.collectors.values():
        entry.why = "whyreason"
        entry.not_seen = [BlindSpot(code="sampled", detail="whyreason")]
    return recording


def findings(recording: Recording) -> list[Finding]:
    every: list[Tool[Any, Any]] = registry().all()
    tools = [t for t in every if all(recording.has(n.collector) or n.optional for n in t.needs(t.params()))]
    return [f for tool in tools for f in judge(tool, recording, tool.params()).findings]


def shape(finding: Finding) -> tuple[Any, ...]:
    named = {key for key, value in finding.subject.model_dump().items() if value is not None}
    # the scene has a stack of private functions where the kernel's belong
    open_words = {k: v for k, v in finding.attributes.items() if k in privacy.PUBLIC_ATTRIBUTES - {"kernel_path"}}
    return (finding.kind, finding.polarity, finding.severity, finding.metrics, finding.interval, named, open_words)


@pytest.mark.thorough
def test_the_findings_are_the_same() -> None:
    recording = secretive()
    hidden = redact(recording)
    assert hidden.manifest.redacted
    assert [shape(f) for f in findings(hidden)] == [shape(f) for f in findings(recording)]
    assert [f for f in findings(recording) if f.metrics.get("period_s")], "the series was recognised"
    text = "".join(finding.model_dump_json() for finding in findings(hidden))
    assert not [secret for secret in SECRETS if secret in text]


def test_no_name_is_left_in_what_is_written(tmp_path: Path) -> None:
    recording = secretive()
    plain, hidden = tmp_path / "plain", tmp_path / "hidden"
    recording.save(plain)
    redact(recording).save(hidden)
    read = Recording.open(hidden, COLLECTORS)
    text = json.dumps({name: frame.to_dicts() for name, frame in read.tables().items()}, ensure_ascii=False)
    text += read.manifest.model_dump_json() + "".join(p.name for p in hidden.iterdir())
    raw = b"".join(p.read_bytes() for p in hidden.iterdir())
    control = json.dumps({n: f.to_dicts() for n, f in Recording.open(plain, COLLECTORS).tables().items()})
    control += recording.manifest.model_dump_json()
    for secret in SECRETS:
        assert secret in control, "the test looks for what is there"
        assert secret not in text
        assert secret.encode() not in raw


def test_equal_names_stay_equal_and_two_redactions_share_none() -> None:
    recording = secretive()
    one, two = redact(recording), redact(recording)
    calls, threads = one.table("syscalls.calls"), one.table("proc.threads")
    assert set(calls["comm"]) == set(threads["comm"])
    assert one.manifest.target.comm in set(calls["comm"])
    assert one.manifest.target.cgroup in set(one.table("proc.cgroups")["cgroup"])
    assert not set(calls["comm"]) & set(two.table("syscalls.calls")["comm"])
    assert recording.table("syscalls.calls")["comm"].unique().sort().to_list() == ["fraudnet", "weirdcomm"]


def test_what_is_no_secret_stays() -> None:
    hidden = redact(secretive())
    frames = hidden.table("switches.stacks").filter(kernel=True)["frames"].explode().to_list()
    assert "ext4_sync_file" in frames
    assert set(hidden.table("syscalls.calls")["syscall"]) == {"fsync"}
    assert set(hidden.table("syscalls.files")["fstype"]) == {"ext4"}


def test_every_text_column_is_classified() -> None:
    texts = (pl.String(), pl.List(pl.String))
    missing = [
        f"{collector}.{table}.{column}"
        for collector, tables in COLLECTORS.items()
        for table, schema in tables.items()
        for column, dtype in schema.items()
        if dtype in texts and privacy.of_column(f"{collector}.{table}", column) is None
    ]
    assert not missing, "add them to tools/recording/privacy.py"


def test_every_attribute_is_classified() -> None:
    declared = {name for spec in KINDS.values() for name in spec.attributes}
    assert declared == privacy.PUBLIC_ATTRIBUTES | privacy.PRIVATE_ATTRIBUTES, "change tools/recording/privacy.py"
    assert not privacy.PUBLIC_ATTRIBUTES & privacy.PRIVATE_ATTRIBUTES


def _private_rows(table: str, schema: pl.Schema) -> list[dict[str, Any]]:
    """A row per form that a private text of a column may have."""
    frames = ["fraudnet (/srv/acme/fraudnet.py:212)", "fraudnet (fraudnet/x.py:1)", "acme::fraudnet<int>(char)"]
    forms = {
        Privacy.ADDRESS: ["10.93.17.5:5432", "[fd00:dead::93]:80", "/run/fraudnet.sock", "@fraudnet", "fraudnet:80"],
        Privacy.OBJECT: ["/srv/fraudnet", "/memfd:fraudnet (deleted)", "fraudnet"],
        Privacy.FILESYSTEM: ["fuse.fraudnet"],
        Privacy.GROUP: ["fraudnet|0,1"],
    }
    made: list[dict[str, Any]] = []
    for index in range(5):
        row: dict[str, Any] = {}
        for column, dtype in schema.items():
            rule = privacy.of_column(table, column)
            if dtype == pl.List(pl.String):
                row[column] = frames
            elif dtype == pl.String():
                some = forms.get(rule or Privacy.NAME, ["/srv/fraudnet", "fraudnet"])
                row[column] = "x" if rule is Privacy.PUBLIC else some[index % len(some)]
            else:
                row[column] = False if dtype == pl.Boolean() else 1
        made.append(row)
    return made


def test_no_private_column_is_left_readable() -> None:
    tables, control = {}, 0
    recording = Scene().build()
    for collector, schemas in COLLECTORS.items():
        recording.manifest.collectors[collector] = CollectorManifest(engine="ebpf")
        for table, schema in schemas.items():
            rows = _private_rows(f"{collector}.{table}", schema)
            tables[f"{collector}.{table}"] = pl.DataFrame(rows, schema)
    hidden = redact(Recording.in_memory(recording.manifest, tables))
    for name, frame in hidden.tables().items():
        text = json.dumps(frame.to_dicts())
        control += "fraudnet" in json.dumps(tables[name].to_dicts())
        assert not [secret for secret in ("fraudnet", "acme", "10.93", "dead::") if secret in text], name
        assert frame.schema == tables[name].schema
    assert control > 30


@pytest.mark.parametrize(
    ("frame", "readable"),
    [
        ("wait (python3.11/threading.py:327)", True),
        ("wait (/opt/acme/lib/python3.11/threading.py:327)", False),
        ("_next_data (torch/utils/data/dataloader.py:9)", True),
        ("save (/srv/torch/utils.py:9)", False),
        ("run (acme/python3.11.py:9)", False),
        ("take_gil", True),
        ("gloo::transport::tcp::Loop::run", True),
        ("c10d::reduce<acme::Secret>", False),
        ("[libcuda.so.1]", True),
        ("[libacme.so]", False),
    ],
)
def test_public_code_stays_readable(frame: str, readable: bool) -> None:
    scene = Scene().thread(comm="train", user=50, blocked=40)
    scene.wait(1, 50, "read", stack=(frame,))
    scene.tables["stacks"][-1]["kernel"] = False
    ((shown,),) = redact(scene.build()).table("switches.stacks")["frames"].to_list()
    assert (shown == frame) is readable
    assert "acme" not in shown


def test_code_by_which_waits_are_recognised_is_public() -> None:
    for beginning in places._ROLES:
        if beginning.startswith("<"):
            continue
        package = beginning.partition("/")[0].removesuffix(".py")
        assert package in privacy.PACKAGES or package in sys.stdlib_module_names, beginning
    names = [name for group, _ in wait_kinds._NATIVE_WAITS for name in group]
    for name in (*names, *wait_kinds._RANKS, *places._DEVICE_CALLS, *places._COLLECTOR_CALLS):
        assert privacy.PUBLIC_NATIVE.fullmatch(name), name


def test_addresses_stay_addresses() -> None:
    scene = Scene()
    row = dict.fromkeys(COLLECTORS["objects"]["sockets"], 1)
    row |= dict.fromkeys(("comm", "family", "protocol", "state"), "tcp")
    scene.tables["objects.sockets"] = [{**row, "local": "127.0.0.1:80", "remote": "10.1.2.3:443"}]
    ((local, remote),) = redact(scene.build()).table("objects.sockets").select("local", "remote").rows()
    assert local == "127.0.0.1:80"
    assert remote.startswith("240.")
    assert remote.endswith(":443")
