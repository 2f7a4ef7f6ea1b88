"""Interrupts are set aside before two profiles are compared: the host makes them."""

from __future__ import annotations

from whystall.tools.profiles.flamegraph_diff.interrupts import without_interrupts
from whystall.tools.stacks.build import Builder
from whystall.tools.stacks.model import StackProfile
from whystall.tools.stacks.tree import Part, call_tree

Stack = list[tuple[str, str]]
USER: Stack = [("main", "native"), ("work", "native")]


def kernel(*names: str) -> Stack:
    return [(name, "kernel") for name in names]


def profile(*stacks: tuple[Stack, float]) -> StackProfile:
    builder = Builder()
    event = builder.event("cpu-clock", "ns")
    for frames, weight in stacks:
        builder.sample(builder.stack([builder.frame(name, kind=kind) for name, kind in frames]), event, weight)
    return builder.profile("made")


def left(part: Part) -> list[str]:
    tree = call_tree(part)
    return [label for label, total in zip(tree.labels, tree.frame_total[0], strict=True) if total > 0]


def test_what_runs_in_an_interrupt_is_set_aside_and_told() -> None:
    ipi = kernel("asm_sysvec_reschedule_ipi", "irqentry_exit_to_user_mode", "schedule")
    part, pct = without_interrupts(
        Part(profile((USER, 94.0), (USER + ipi, 5.0), (USER + kernel("irqentry_exit"), 1.0)))
    )
    assert pct == 6.0
    assert left(part) == ["main", "work"]


def test_system_calls_and_page_faults_are_the_programs_own() -> None:
    call = kernel("entry_SYSCALL_64_after_hwframe", "do_syscall_64", "ksys_read")
    fault = kernel("asm_exc_page_fault", "irqentry_exit", "exit_to_user_mode_loop")
    given = Part(profile((USER + call, 3.0), (USER + fault, 2.0)))
    assert without_interrupts(given) == (given, 0.0)


def test_a_function_of_the_program_may_be_called_like_one() -> None:
    given = Part(profile(([("asm_sysvec_mine", "native")], 1.0), ([("do_IRQ", "python")], 1.0)))
    assert without_interrupts(given) == (given, 0.0)


def test_a_profile_of_nothing_but_interrupts_is_left_as_it_is() -> None:
    given = Part(profile((kernel("asm_common_interrupt", "handle_irq"), 1.0)))
    assert without_interrupts(given) == (given, 100.0)
