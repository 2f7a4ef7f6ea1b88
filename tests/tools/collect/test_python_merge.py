"""Python frames among native ones."""

from __future__ import annotations

import pytest

from whystall.bpf.python_code import Frame
from whystall.tools.collect.frames import Call
from whystall.tools.collect.python_merge import Native, label, merged, with_accelerator_call

LIBC, PYTHON, TORCH = "/lib/libc.so.6", "/usr/lib/libpython3.11.so.1.0", "/opt/libtorch_cpu.so"
EVALUATOR = ("_PyEval_EvalFrameDefault", PYTHON)


def py(name: str, line: int = 1, entry: bool = False) -> Frame:
    return Frame(name, f"/job/{name}.py", line, entry)


def names(native: list[Native], python: list[Frame]) -> list[str]:
    return [call.name for call in merged(native, python)]


def test_each_call_of_the_evaluator_stands_for_the_frames_it_runs() -> None:
    native = [
        ("fsync", LIBC),
        ("os_fsync", PYTHON),
        EVALUATOR,
        ("slot_tp_call", PYTHON),
        ("_PyEval_EvalFrameDefault.cold", PYTHON),
        ("Py_RunMain", PYTHON),
        ("_start", "/usr/bin/python3"),
    ]
    python = [py("save", 5), py("step", 6, entry=True), py("train", 7), py("<module>", 8, entry=True)]
    assert names(native, python) == [
        "fsync", "os_fsync", "save", "step", "slot_tp_call", "train", "<module>", "Py_RunMain", "_start",
    ]  # fmt: skip
    made = merged(native, python)
    assert made[2] == Call("save", "/job/save.py", 5, "python")
    assert made[0] == Call("fsync", LIBC, 0, "native")


@pytest.mark.parametrize(
    ("native", "leaf"),
    [
        ([], []),
        ([EVALUATOR], []),
        ([("fsync", LIBC)], ["fsync"]),
        ([("addmm", TORCH), ("at::call", TORCH), ("PyObject_Call", PYTHON)], ["addmm", "at::call"]),
        # the walk jumped over the evaluator, to what called it
        ([("[python3.14+0x149bb0]", PYTHON), ("PyEval_EvalCode", PYTHON)], ["[python3.14+0x149bb0]"]),
        ([("read", LIBC), ("[heap+0x10]", "")], ["read"]),
        ([("[anonymous+0x10]", ""), ("[unknown]", "")], ["[anonymous+0x10]"]),
        ([("memcpy", LIBC), EVALUATOR], ["memcpy"]),
    ],
)
def test_without_a_whole_native_stack_nothing_is_invented(native: list[Native], leaf: list[str]) -> None:
    python = [py("inner", 3, entry=True), py("outer", 4, entry=True)]
    assert names(native, python) == [*leaf, "inner", "outer"]


def test_a_cut_python_stack_keeps_its_order() -> None:
    native = [("read", LIBC), EVALUATOR, EVALUATOR, EVALUATOR, ("main", "/usr/bin/python3")]
    python = [py("a"), py("b", entry=True), py("c")]
    assert names(native, python) == ["read", "a", "b", "c"]


def test_a_thread_without_python_keeps_its_native_frames() -> None:
    native = [("cblas_dgemm", TORCH), ("start_thread", LIBC)]
    assert names(native, []) == ["cblas_dgemm", "start_thread"]


def test_what_a_perf_map_names_is_python() -> None:
    native = [("read", LIBC), EVALUATOR, ("py::load:/job/data.py", ""), EVALUATOR, ("py::<module>:/job/a:b.py", "")]
    made = merged(native, [])
    assert [(call.name, call.file, call.kind) for call in made] == [
        ("read", LIBC, "native"),
        ("load", "/job/data.py", "python"),
        ("<module>", "/job/a:b.py", "python"),
    ]
    # the interpreter itself knows the lines
    python = [py("load", 9, entry=True), py("<module>", 3, entry=True)]
    assert [(call.name, call.line) for call in merged(native, python)] == [("read", 0), ("load", 9), ("<module>", 3)]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (Call("save", "/job/train.py", 212, "python"), "save (train.py:212)"),
        (Call("save", "/job/train.py", 0, "python"), "save (train.py)"),
        (Call("f", "<string>", 3, "python"), "f (<string>:3)"),
        (Call("[python]", "", 0, "python"), "[python]"),
        (Call("f", "/job/odd/", 3, "python"), "f (/job/odd/:3)"),
        (Call("fsync", LIBC, 0, "native"), "fsync"),
    ],
)
def test_labels(call: Call, text: str) -> None:
    assert label(call) == text


@pytest.mark.parametrize(
    ("native", "expected"),
    [  # outermost first; the function itself is replaced, also by a name with a suffix
        ([("poll", LIBC)], ["train", "GPU: wait for stream (cuStreamSynchronize)", "poll"]),
        (
            [("poll", LIBC), ("cuStreamSynchronize_ptsz", "/opt/libcuda.so.1"), ("at::item", TORCH)],
            ["train", "at::item", "GPU: wait for stream (cuStreamSynchronize)", "poll"],
        ),
    ],
)
def test_a_call_into_an_accelerators_library_is_beneath_its_line(native: list[Native], expected: list[str]) -> None:
    name = "GPU: wait for stream (cuStreamSynchronize)"
    made = with_accelerator_call(merged(native, [py("train")])[::-1], name)
    assert [call.name for call in made] == expected
    assert next(call.kind for call in made if call.name == name) == "native"
    assert name in [call.name for call in with_accelerator_call(merged(native, [])[::-1], name)]


def test_hostile_names_are_inert() -> None:
    frame = Frame("\x1b[31mtrain\u202e" + "x" * 9000, "/a\nb/" + "y" * 9000, 3, True)
    (call,) = merged([], [frame])
    assert call.name.startswith("\\x1b[31mtrain\\u202e")
    assert len(call.name) <= 1024
    assert "\n" not in call.file
    assert len(call.file) <= 4096
