"""Memory of cgroups, of both versions, from trees laid out as the kernel does."""

from __future__ import annotations

from pathlib import Path

from whystall.tools.collect.proc_cgroup import Place
from whystall.tools.collect.proc_memory import Memory, read_memory

V1_STAT = """cache 1
rss 2
dirty 3
hierarchical_memory_limit {limit}
total_cache 4096
total_rss 8192
total_dirty 12288
total_writeback 16384
total_inactive_file 20480
total_active_file 24576
total_workingset_refault_file 77
"""
V2_STAT = """anon 8192
file 4096
file_dirty 12288
file_writeback 16384
inactive_file 20480
active_file 24576
workingset_refault_file 77
pgscan 900
pgsteal 800
"""


def place(directory: Path, version: int, files: dict[str, str]) -> Place:
    directory.mkdir(exist_ok=True)
    for name, text in files.items():
        (directory / name).write_text(text)
    return Place(version, b"job", None, str(directory).encode())


def test_version_1_counts_descendants_and_says_what_it_does_not_tell(tmp_path: Path) -> None:
    files = {
        "memory.stat": V1_STAT.format(limit=1 << 20),
        "memory.usage_in_bytes": "65536\n",
        "memory.failcnt": "5\n",
        "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
    }
    assert read_memory(place(tmp_path, 1, files)) == Memory(
        usage_bytes=65536,
        limit_bytes=1 << 20,
        anon_bytes=8192,
        file_bytes=4096,
        active_file_bytes=24576,
        inactive_file_bytes=20480,
        dirty_bytes=12288,
        writeback_bytes=16384,
        refaults_file=77,
        limit_hits=5,
        oom_kills=2,
    )


def test_version_1_without_a_limit_and_before_it_told_refaults(tmp_path: Path) -> None:
    stat = V1_STAT.format(limit=9223372036854771712).replace("total_workingset_refault_file 77\n", "")
    found = read_memory(place(tmp_path, 1, {"memory.stat": stat}))
    assert found is not None
    assert (found.limit_bytes, found.refaults_file, found.usage_bytes, found.limit_hits) == (-1, -1, -1, -1)


def test_version_2_tells_pressure_and_reclaim(tmp_path: Path) -> None:
    files = {
        "memory.stat": V2_STAT,
        "memory.current": "65536\n",
        "memory.max": "max\n",
        "memory.high": "1048576\n",
        "memory.events": "low 0\nhigh 4\nmax 3\noom 1\noom_kill 2\n",
        "memory.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=500\nfull avg10=0.00 total=400\n",
    }
    assert read_memory(place(tmp_path, 2, files)) == Memory(
        65536, -1, 1048576, 8192, 4096, 24576, 20480, 12288, 16384, 77, 900, 800, 7, 2, 500, 400
    )


def test_an_old_version_2_without_pressure(tmp_path: Path) -> None:
    stat = "anon 1\nfile 2\nworkingset_refault 9\n"
    found = read_memory(place(tmp_path, 2, {"memory.stat": stat, "memory.current": "3\n", "memory.max": "7\n"}))
    assert found == Memory(usage_bytes=3, limit_bytes=7, anon_bytes=1, file_bytes=2, refaults_file=9)


def test_a_cgroup_that_is_gone_or_has_no_memory_controller_has_none(tmp_path: Path) -> None:
    assert read_memory(Place(1, b"gone", None, str(tmp_path / "gone").encode())) is None
    assert read_memory(Place(2, b"job", b"/x", None)) is None
