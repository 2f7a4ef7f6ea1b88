"""How many processes and threads cgroups may hold."""

from __future__ import annotations

from pathlib import Path

from whystall.tools.collect.proc_task_limits import task_limits
from whystall.tools.node.mounts import Mount


def test_limits_of_a_cgroup_and_of_those_above_it(tmp_path: Path) -> None:
    for name, limit, tasks in (("pods", "20", "20"), ("pods/a", "max", "7")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "pids.max").write_text(f"{limit}\n")
        (tmp_path / name / "pids.current").write_text(f"{tasks}\n")
    v1 = Mount(1, "0:1", b"/", str(tmp_path).encode(), "cgroup", frozenset({"pids"}))
    v2 = v1._replace(fstype="cgroup2", super_options=frozenset({"rw"}))
    assert task_limits([v1], [{"pids": b"/pods/a"}, {"pids": b"/"}], lambda: 9) == [(9, "/pods", 20, 20)]
    assert task_limits([v2], [{"": b"/pods/a"}], lambda: 9) == [(9, "/pods", 20, 20)]
    assert not task_limits([], [{"pids": b"/pods"}], lambda: 9)
