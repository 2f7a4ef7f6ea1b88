"""Functions are found by symbol, and what a probe records of their arguments survives its cookie."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from whystall.bpf.collective_symbols import CALL, CREATE, EXECUTE, Function, elements_of, search
from whystall.bpf.elf_symbols import functions_named
from whystall.bpf.functions import Probe, Value

LOADS = "import ctypes, sys; ctypes.CDLL(sys.argv[1]); print(flush=True); sys.stdin.read()"


def decoded(cookie: int) -> tuple[int, list[Value | None]]:
    """A cookie as bpf/src/functions.bpf.c reads it, bit by bit from the lowest."""
    bits = [cookie >> at & 1 for at in range(64)]

    def take(count: int) -> int:
        return sum(bits.pop(0) << at for at in range(count))

    number, values = take(12), list[Value | None]()
    for _ in range(4):
        argument, loads, first, again, second = take(3), take(1), take(5), take(1), take(3)
        at, then = 8 * first if loads else None, 8 * second if again else None
        values.append(None if argument == 7 else Value(argument, at, then))
    return number, values


def test_a_cookie_holds_every_value_that_can_be_recorded() -> None:
    dice = random.Random(1)
    for _ in range(500):
        values: list[Value | None] = []
        for _ in range(dice.randint(0, 4)):
            at = dice.choice([None, 8 * dice.randint(0, 31)])
            then = None if at is None else dice.choice([None, 8 * dice.randint(0, 7)])
            values.append(dice.choice([None, Value(dice.randint(0, 6), at, then)]))
        number = dice.randint(0, 4094)
        assert decoded(Probe("/lib", 1, number, tuple(values)).cookie) == (number, values + [None] * (4 - len(values)))


@pytest.mark.parametrize("value", [Value(7), Value(-1), Value(0, 4), Value(0, 256), Value(0, 0, 64), Value(0, None, 8)])
def test_a_value_that_does_not_fit_is_refused(value: Value) -> None:
    with pytest.raises(ValueError, match="cannot be recorded"):
        value.encoded()


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """NCCL's functions with a second name each, as NCCL has them, gloo's constructor, and one that is not exported."""
    source = tmp_path / "stub.c"
    source.write_text(
        "int pncclAllReduce(void) { return 0; }\n"
        'int ncclAllReduce(void) __attribute__((alias("pncclAllReduce")));\n'
        "int ncclAllReduceNot(void) { return 1; }\n"
        "int work(void) __asm__(\n"
        ' "_ZN4c10d16ProcessGroupGloo9AsyncWorkC2ESt10shared_ptrIN4gloo7ContextEESt6vectorIS6_IN2at6TensorE"\n'
        ' "EENS_6OpTypeEm");\n'
        "int work(void) { return 2; }\n"
        'int execute(void) __asm__("_ZN4c10d16ProcessGroupGloo9AsyncWork7executeERKNS1_E");\n'
        "int execute(void) { return 4; }\n"
        '__attribute__((visibility("hidden"))) int MPI_Barrier(void) { return 3; }\n'
        "int caller(void) { return MPI_Barrier(); }\n"
    )
    path = tmp_path / "libnccl.so.2"
    subprocess.run(["cc", "-shared", "-fPIC", "-O0", "-o", path, source], check=True)
    return path


def addresses(path: Path) -> dict[str, int]:
    """Symbols as nm(1) lists them; in these small libraries code lies in the file where it lies in memory."""
    lines = subprocess.run(["nm", path], capture_output=True, text=True, check=True).stdout.splitlines()
    rows = [line.split() for line in lines]
    return {row[2]: int(row[0], 16) for row in rows if len(row) == 3 and row[1] in "Tt"}


def test_functions_are_found_by_their_whole_name(library: Path) -> None:
    names = re.compile(rb"ncclAllReduce|MPI_Barrier|caller")
    truth = addresses(library)
    assert functions_named(str(library), names) == {name: truth[name] for name in ("ncclAllReduce", "caller")}
    assert functions_named(str(library), re.compile(rb"MPI_Barrier")) == {"MPI_Barrier": truth["MPI_Barrier"]}
    assert functions_named("/dev/null", names) == {}
    broken = library.with_name("broken")
    broken.write_bytes(library.read_bytes()[:200])
    assert functions_named(str(broken), names) == {}


def test_libraries_of_a_process_are_searched(library: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", LOADS, library], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as one:
        assert one.stdout is not None
        one.stdout.readline()
        found = search([one.pid, one.pid, 4_000_000])
        one.communicate()
    functions = {each.function.symbol[:40]: each.function for each in found.found}
    reduce = functions["ncclAllReduce"]
    assert (reduce.library, reduce.op, reduce.event, reduce.returns) == ("nccl", "all_reduce", CALL, True)
    assert (reduce.meaning, reduce.values) == (("count", "type", "comm"), (Value(2), Value(3), Value(5)))
    (made,) = [each for each in functions.values() if each.event == CREATE]
    assert (made.meaning, made.values) == (
        ("work", "context", "op", "seq"),
        (Value(0), Value(1, 0), Value(3), Value(4)),
    )
    assert EXECUTE in {each.event for each in functions.values()}
    # a C++ function may throw through its frame: its return is never probed
    assert not any(each.returns for each in functions.values() if each.symbol.startswith("_Z"))
    assert found.pids == {one.pid}
    assert [each.probe.number for each in found.found] == list(range(len(found.found)))


def test_a_library_without_names_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "libnccl.so.2"
    subprocess.run(["cc", "-shared", "-o", path, "-x", "c", "-"], input=b"int other(void) { return 0; }", check=True)
    with subprocess.Popen([sys.executable, "-c", LOADS, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as one:
        assert one.stdout is not None
        one.stdout.readline()
        found = search([one.pid])
        one.communicate()
    assert (found.found, found.pids, found.stripped) == ([], set(), ["libnccl.so.2"])


def test_elements_are_read_from_both_layouts_of_gloo() -> None:
    address = 0x7FE714000D08
    assert elements_of({"first": 1000, "second": 4, "third": address}) == (1000, 4)
    assert elements_of({"first": address, "second": 1000, "third": 2}) == (1000, 2)
    assert elements_of({"first": address, "second": address, "third": 4}) is None
    assert elements_of({"first": 0, "second": 0, "third": 4}) is None
    assert elements_of({}) is None


def test_every_function_of_an_interface_can_be_probed() -> None:
    from whystall.bpf.collective_symbols import _C

    for function in _C.values():
        assert isinstance(function, Function)
        assert "comm" in function.meaning
        assert decoded(Probe("", 0, 1, function.values).cookie)[1][: len(function.values)] == list(function.values)
