"""Symbols against functions whose addresses this process knows."""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from whystall.bpf.elf_symbols import NAME_BYTES, Code, Table, read_file, read_vdso
from whystall.bpf.symbols import KernelSymbols, OpenFiles, ProcessSymbols


def test_a_table_finds_what_begins_before_and_has_not_ended() -> None:
    table = Table([(100, 10, "a"), (200, 0, "b"), (300, 5, "c" * 1000)])
    assert table.find(99) is None
    assert table.find(100) == ("a", 0)
    assert table.find(109) == ("a", 9)
    assert table.find(110) is None
    assert table.find(299) == ("b", 99)
    assert table.find(304) == ("c" * NAME_BYTES, 4)
    assert table.find(305) is None


KALLSYMS = """\
ffffffff81000300 T schedule
ffffffff81000100 T _text
ffffffff81000200 t do_sleep_hostile$(x)
ffffffff81000400 D some_data
ffffffffc0000000 t in_module\t[ext4]
ffffffff81000500 T bpf_trace_run4
ffffffff81000600 T __schedule
ffffffff81000700 t ext4_sync_file
"""


def test_kernel_names(tmp_path: Path) -> None:
    source = tmp_path / "kallsyms"
    source.write_text(KALLSYMS)
    symbols = KernelSymbols(source)
    assert not symbols.hidden
    assert symbols.name(0xFFFFFFFF81000210) == "do_sleep_hostile$(x)"
    assert symbols.name(0xFFFFFFFF81000450) == "schedule"  # data is no code
    assert symbols.name(0xFFFFFFFFC0000001) == "in_module"
    assert symbols.name(0x1000) == "[kernel+0x1000]"
    assert symbols.name(0xFFFFFFFFA0000000) == "[kernel+0xffffffffa0000000]"  # a jitted program: far from any symbol
    stack = [0xFFFFFFFFA0000001, 0xFFFFFFFF81000501, 0xFFFFFFFF81000601, 0xFFFFFFFF81000301, 0xFFFFFFFF81000701]
    assert symbols.stack(stack) == ["ext4_sync_file"]
    assert symbols.stack(stack[3:]) == ["ext4_sync_file"]
    assert symbols.stack(stack[2:4]) == ["schedule"]  # never empty


def test_kernel_names_are_read_anew_after_a_refresh(tmp_path: Path) -> None:
    source = tmp_path / "kallsyms"
    source.write_text("ffffffffc0000000 t in_module\t[ext4]\n")
    symbols = KernelSymbols(source)
    assert symbols.name(0xFFFFFFFFC0000001) == "in_module"
    source.write_text("ffffffffc0000000 t in_another\t[xfs]\n")
    symbols.refresh()
    assert symbols.name(0xFFFFFFFFC0000001) == "in_another"


def test_a_library_overwritten_in_place_gets_its_new_names(tmp_path: Path) -> None:
    library = tmp_path / "lib.so"

    def name_of_function(name: str) -> str:
        source = tmp_path / f"{name}.c"
        source.write_text(f"int {name}(int x) {{ return x + 1; }}\n")
        made = tmp_path / f"{name}.so"
        subprocess.run(["clang", "-shared", "-fPIC", "-O1", "-nostdlib", "-o", str(made), str(source)], check=True)
        library.write_bytes(made.read_bytes())  # the same inode
        with library.open("rb") as file:
            area = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC)
        functions = read_file(str(library))
        assert functions is not None
        start = next(at for at in range(len(area)) if functions.find(at) == (name, at))
        symbols = ProcessSymbols(os.getpid())
        mapping = next(one for one in symbols._mappings if one.path == str(library))
        found = symbols.name(mapping.start - mapping.offset + start)
        area.close()
        return found

    assert name_of_function("first") == "first"
    assert name_of_function("other") == "other"


def test_hidden_addresses_are_said_not_guessed(tmp_path: Path) -> None:
    source = tmp_path / "kallsyms"
    source.write_text("0000000000000000 T _text\n0000000000000000 T schedule\n")
    symbols = KernelSymbols(source)
    assert symbols.hidden
    assert symbols.name(0xFFFFFFFF81000210) == "[kernel+0xffffffff81000210]"
    assert KernelSymbols(tmp_path / "missing").hidden


def test_functions_of_this_process() -> None:
    symbols = ProcessSymbols(os.getpid())
    libc = ctypes.CDLL(None)
    for function in ("fsync", "getpid", "qsort"):
        address = ctypes.cast(getattr(libc, function), ctypes.c_void_p).value
        assert address is not None
        assert function in symbols.name(address + 2)
    assert symbols.name(1) == "[unknown]"
    assert ProcessSymbols(2**22 + 1).name(address) == "[unknown]"


def test_a_pipe_or_a_link_in_the_place_of_symbols_is_neither_waited_for_nor_followed(tmp_path: Path) -> None:
    pipe, map_ = tmp_path / "lib.so", Path(f"/tmp/perf-{os.getpid()}.map")
    os.mkfifo(pipe)
    assert read_file(str(pipe)) is None
    other = tmp_path / "other.map"
    other.write_text("1000 10 not_ours\n")
    for lay in (lambda: os.mkfifo(map_), lambda: map_.symlink_to(other)):
        lay()
        try:
            assert ProcessSymbols(os.getpid()).name(0x1008) == "[unknown]"
        finally:
            map_.unlink()


def test_jitted_code_is_named_by_a_perf_map() -> None:
    area = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    address = ctypes.addressof(ctypes.c_char.from_buffer(area))
    path = Path(f"/tmp/perf-{os.getpid()}.map")
    symbols = ProcessSymbols(os.getpid())
    assert symbols.name(address + 0x15) == "[anonymous+0x15]"
    path.write_text(f"{address:x} 20 py::train \x1b[31m step\nbroken line\nzz 1 x\n")
    try:
        symbols = ProcessSymbols(os.getpid())
        assert symbols.name(address + 0x15) == "py::train \x1b[31m step"
        assert symbols.name(address + 0x20) == "[anonymous+0x20]"
    finally:
        path.unlink()


@pytest.mark.parametrize("damage", [b"", b"\x7fELF", b"\x7fELF" + b"\xff" * 400, b"MZ" * 100])
def test_a_broken_file_has_no_names(tmp_path: Path, damage: bytes) -> None:
    broken = tmp_path / "broken.so"
    broken.write_bytes(damage)
    assert read_file(str(broken)) is None


def test_a_truncated_library_has_no_names(tmp_path: Path) -> None:
    whole = Path(os.path.realpath("/proc/self/exe")).read_bytes()
    for cut in (64, 1000, len(whole) // 2, len(whole) - 10):
        broken = tmp_path / "cut"
        broken.write_bytes(whole[:cut])
        table = read_file(str(broken))
        assert table is None or len(table) >= 0


def test_a_neighbours_name_is_not_taken() -> None:
    names = Table([(0x100, 0, "unsized"), (0x200, 0x20, "sized")])
    code = Code(names, [0x100, 0x140, 0x200, 0x220])
    assert code.find(0x110) == ("unsized", 0x100)
    assert code.find(0x150) == ("", 0x140)  # a function begins between: it is that one, without a name
    assert code.find(0x21F) == ("sized", 0x200)
    assert code.find(0x230) == ("", 0x220)
    assert code.find(0x50) == ("", 0x50)
    assert Code(names).find(0x1100) == ("", 0x1100)  # too far behind a symbol without a size


def test_stripped_functions_are_told_apart(tmp_path: Path) -> None:
    source = tmp_path / "lib.c"
    source.write_text(
        "static int __attribute__((noinline)) f(int x) { return x * 3; }\nint g(int x) { return f(x) + 1; }\n"
    )
    made, bare = tmp_path / "lib.so", tmp_path / "bare.so"
    subprocess.run(["clang", "-shared", "-fPIC", "-O1", "-o", str(made), str(source)], check=True)
    subprocess.run(["llvm-strip", "-o", str(bare), str(made)], check=True)
    named, stripped = read_file(str(made)), read_file(str(bare))
    assert named is not None
    assert stripped is not None
    begins = {name: begin for begin in range(0x300, 0x3000) for name, start in [named.find(begin)] if start == begin}
    assert {"f", "g"} <= set(begins)
    assert stripped.find(begins["g"]) == ("g", begins["g"])  # exported
    assert stripped.find(begins["f"] + 1) == ("", begins["f"])


def test_the_kernels_own_code_in_a_process_has_names() -> None:
    code = read_vdso()
    assert code is not None
    assert any("gettime" in code.find(offset)[0] for offset in range(0, 0x3000, 16))


def test_symbols_of_a_process_that_is_gone(tmp_path: Path) -> None:
    copy = tmp_path / "sleep"
    shutil.copy("/bin/sleep", copy)
    process = subprocess.Popen([copy, "60"])
    files = OpenFiles()
    symbols = ProcessSymbols(process.pid, files)
    while not (mapping := [m for m in symbols._mappings if m.path == str(copy)]):  # until it has its own program
        symbols.update()
    address = mapping[0].start + 0x10
    assert symbols.keep([address])
    assert not symbols.keep([1])
    process.kill()
    process.wait()
    copy.unlink()
    before = symbols.frame(address)
    assert before.module == str(copy)
    assert files.path((before.module, mapping[0].identity)) is not None
    files.close()


def test_a_stack_ends_where_it_leaves_all_code() -> None:
    symbols = ProcessSymbols(os.getpid())
    address = ctypes.cast(ctypes.CDLL(None).qsort, ctypes.c_void_p).value
    assert address is not None
    assert [frame.name for frame in symbols.frames([1, address + 2, 2, address + 2])] == [
        "[unknown]",
        symbols.name(address + 1),
    ]
