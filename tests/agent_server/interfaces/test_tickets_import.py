"""``whystall tickets import`` at the command line."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from whystall.agent_server.interfaces.cli import main as cli
from whystall.agent_server.stores import Stores

Said = tuple[int, str, str]
Whystall = Callable[..., Said]
CSV = """编号,标题,描述,优先级,主机,类别
1,训练卡住,"每次存 checkpoint 训练都要停 20 秒, 写 NAS",P1,node-3,三楼那组
2,显存不够,CUDA out of memory on card 3,低,node-4,accelerator
3,训练卡住,"每次存 checkpoint 训练都要停 35 秒, 写 NAS",高,node-3,三楼那组
4,帮忙看看,,低,node-9,
"""


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A base as it comes, made once."""
    path = tmp_path_factory.mktemp("seeded") / "k.db"
    Stores(path).close()
    return path.read_bytes()


@pytest.fixture
def whystall(
    tmp_path: Path, seeded: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Whystall:
    """Run ``whystall tickets import ARGUMENTS`` in this process; status, standard output, standard error."""
    (tmp_path / "knowledge.db").write_bytes(seeded)
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path))

    def run(*words: str) -> Said:
        status = cli._command(["tickets", "import", *words])
        status = cli._deliver() or status
        out, err = capsys.readouterr()
        return status, out, err

    return run


@pytest.fixture
def orders(tmp_path: Path) -> str:
    file = tmp_path / "orders.csv"
    file.write_bytes(CSV.encode("gb18030"))
    return str(file)


def test_a_file_of_another_encoding_is_imported_and_scored(whystall: Whystall, orders: str, tmp_path: Path) -> None:
    status, out, _ = whystall(orders, "--category", "类别", "--class", "三楼那组=storage", "--by", "ann", "--json")
    told = json.loads(out)
    assert status == 0
    assert (told["rows"], told["new"], told["again"], told["encoding"]) == (4, 3, 1, "gb18030")
    assert told["columns"]["text"] == "描述"
    assert (told["score"]["right"]["hits"], told["score"]["right"]["of"]) == (3, 3)
    with Stores(tmp_path / "knowledge.db") as kb:
        ticket = kb.tickets.get("1")
        assert (ticket.occurrences, ticket.labels["主机"], ticket.severity.value) == (2, "node-3", "critical")
        assert kb.tickets.events("1")[0].by == "ann"


@pytest.mark.parametrize(
    ("lang", "words"), [("en", "Work orders: 4; new tickets: 3"), ("zh", "4 个工单：新建 3 个故障单")]
)
def test_it_says_what_became_of_it(whystall: Whystall, orders: str, lang: str, words: str) -> None:
    status, out, err = whystall(orders, "--category", "类别", "--lang", lang)
    assert (status, err) == (0, "")
    assert words in out
    assert "三楼那组" in out  # a label that means nothing here is named


def test_standard_input_and_a_dry_run(whystall: Whystall, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Input:
        buffer = io.BytesIO(b'{"title": "no space left on device on the login host"}\n')

    monkeypatch.setattr(sys, "stdin", Input())
    status, out, _ = whystall("-", "--dry-run")
    assert status == 0
    assert "new tickets: 1" in out
    assert "nothing was stored" in out
    with Stores(tmp_path / "knowledge.db") as kb:
        assert kb.tickets.count() == 0


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["{}", "--class", "x"], "LABEL=CATEGORY"),
        (["{}", "--class", "x=banana"], "LABEL=CATEGORY"),
        (["{}", "--title", "nope"], "no column"),
        (["{}", "--encoding", "klingon"], "encoding"),
        (["{}", "--delimiter", '"'], "one character"),
        (["/nonexistent/x.csv"], "cannot read"),
        (["/proc/self"], "cannot read"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(whystall: Whystall, orders: str, words: list[str], what: str) -> None:
    status, out, err = whystall(*(word.format(orders) for word in words))
    assert (status != 0, out) == (True, "")
    assert what in err
    assert err.count("\n") == 1


def test_rows_left_out_are_named(whystall: Whystall, tmp_path: Path) -> None:
    file = tmp_path / "odd.csv"
    file.write_text("id,title\n1,slow nfs,extra\n2,disk of host-1 is full again\n")
    status, _, err = whystall(str(file))
    assert status != 0
    assert "line 2" in err
    status, out, _ = whystall(str(file), "--skip")
    assert status == 0
    assert "line 2: it has another number of cells than the header (3/2)" in out
