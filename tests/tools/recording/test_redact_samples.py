"""Stacks that were sampled leave the host without the names of private code."""

from __future__ import annotations

import json
import re
from pathlib import Path

from recordings import Scene

from whystall.tools.collect.tables import COLLECTORS
from whystall.tools.recording.redact import redact
from whystall.tools.recording.store import Recording
from whystall.tools.stacks.build import Builder
from whystall.tools.stacks.model import StackProfile
from whystall.tools.stacks.recorded import recording_of, stacks_of

SECRETS = ("fraudnet", "score_customer", "acme", "tenant7", "wizard")


def profile() -> StackProfile:
    made = Builder()
    script = made.frame("score_customer", "/srv/acme/tenant7/fraudnet.py", 212, "python")
    loop = made.frame("<module>", "/srv/acme/tenant7/fraudnet.py", 300, "python")
    native = made.frame("acme::wizard(int)", "/opt/acme/libwizard.so", 0, "native")
    kernel = made.frame("ext4_sync_file", "[kernel]", 0, "kernel")
    device = made.frame("GPU:gemm_128x64", "", 0, "device")
    tick = made.event("cpu-clock", "ns", 1e7)
    one, two = (made.thread(7, tid, "fraudnet-worker") for tid in (7, 8))
    for at, (thread, frames) in enumerate(
        [(one, [loop, script, native, kernel]), (two, [loop, script]), (one, [device]), (two, [loop, script, native])]
    ):
        made.sample(made.stack(frames), tick, 1e7, at_ns=at * 10, thread=thread)
    return made.profile("ebpf")


def test_no_private_name_is_left(tmp_path: Path) -> None:
    plain = recording_of(profile(), name="run")
    assert all(secret in json.dumps([f.to_dicts() for f in plain.tables().values()]) for secret in SECRETS)
    redact(plain).save(tmp_path / "hidden")
    read = Recording.open(tmp_path / "hidden", COLLECTORS)
    text = json.dumps({name: frame.to_dicts() for name, frame in read.tables().items()})
    raw = b"".join(path.read_bytes() for path in (tmp_path / "hidden").iterdir())
    for secret in SECRETS:
        assert secret not in text
        assert secret.encode() not in raw


def test_the_shape_and_what_is_public_stay() -> None:
    before, after = profile(), stacks_of(redact(recording_of(profile(), name="run")))
    assert after.samples.equals(before.samples)
    assert after.stacks.equals(before.stacks)
    names = dict(zip(before.frames["name"], after.frames["name"], strict=True))
    files = dict(zip(before.frames["name"], after.frames["file"], strict=True))
    assert names["ext4_sync_file"] == "ext4_sync_file"
    assert names["GPU:gemm_128x64"] == "GPU:gemm_128x64"
    assert len(set(names.values())) == len(names), "different frames stay different"
    assert files["score_customer"] == files["<module>"], "one file stays one file"
    assert files["score_customer"].count("/") == 4
    assert after.frames["line"].equals(before.frames["line"])
    assert len(set(after.threads["comm"])) == 1


def test_a_frame_that_tells_its_line_still_does() -> None:
    scene = Scene().thread(comm="train", user=50, blocked=40)
    scene.wait(1, 50, "read", stack=("score_customer (/srv/acme/fraudnet.py:212)", "acme::wizard(int)"))
    scene.tables["stacks"][-1]["kernel"] = False
    (frames,) = redact(scene.build()).table("switches.stacks")["frames"].to_list()
    assert re.fullmatch(r"[a-z]{8} \(/[a-z]{8}/[a-z]{8}/[a-z]{8}:212\)", frames[0])
    assert re.fullmatch(r"[a-z]{8}", frames[1])
