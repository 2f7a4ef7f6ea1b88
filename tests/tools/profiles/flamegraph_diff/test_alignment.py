"""Names of one thing that differ between profiles are aligned by a rule that the result lists; others are not."""

from __future__ import annotations

import numpy as np
import pytest

from whystall.tools.profiles.flamegraph_diff.comparison import compare
from whystall.tools.profiles.flamegraph_diff.renames import aligned
from whystall.tools.stacks.build import Builder
from whystall.tools.stacks.model import StackProfile
from whystall.tools.stacks.tree import Part


def profile(counts: dict[str, int]) -> StackProfile:
    build = Builder()
    event = build.event("samples")
    for name, count in counts.items():
        build.sample(build.stack([build.frame("main"), build.frame(name)]), event, float(count))
    return build.profile("folded")


@pytest.mark.parametrize(
    ("rule", "old", "new"),
    [
        ("runtime", "cudaLaunchKernel", "hipLaunchKernel"),
        ("runtime", "cuLaunchKernel", "hipModuleLaunchKernel"),
        ("runtime", "cudaLaunchKernelExC", "hipExtLaunchKernel"),
        ("runtime", "cudaMemcpyAsync", "hipMemcpyAsync"),
        ("numbered", "GPU:triton_red_fused_add_mean_17", "GPU:triton_red_fused_add_mean_23"),
        ("numbered", "GPU:triton_poi_fused_add_3_0d1d2", "GPU:triton_poi_fused_add_5_0d1d2de"),
        ("numbered", "GPU:attention_kernel_0d1d2de", "GPU:attention_kernel_0d1d2d3de"),
        ("hash", "_ZN4core3fmt5write17h0123456789abcdefE", "_ZN4core3fmt5write17hfedcba9876543210E"),
        ("tile", "GPU:ampere_sgemm_128x64_tn", "GPU:ampere_sgemm_128x128_tn"),
        (
            "tile",
            "GPU:cutlass_80_tensorop_s1688gemm_128x256_16x3_tn_align4",
            "GPU:cutlass_80_tensorop_s1688gemm_256x128_16x3_tn_align8",
        ),
    ],
)
def test_one_thing_with_two_names_is_aligned_by_its_rule(rule: str, old: str, new: str) -> None:
    before, after, found = aligned(profile({old: 5}), profile({new: 5}))
    assert [(one.rule, one.name, one.before, one.after) for one in found] == [(rule, new, (old,), (new,))]
    assert set(before.frames["name"]) == set(after.frames["name"])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("cudaMemcpyAsync", "hipMemsetAsync"),
        ("cudaLaunchKernel", "cudaStreamSynchronize"),
        ("GPU:triton_poi_fused_add_1", "GPU:triton_poi_fused_mul_1"),
        ("GPU:triton_poi_fused_add_1", "GPU:triton_red_fused_add_1"),
        ("GPU:ampere_sgemm_128x64_tn", "GPU:ampere_sgemm_128x64_nn"),
        ("GPU:ampere_sgemm_128x64_tn", "GPU:ampere_hgemm_128x64_tn"),
        ("forward", "forward2"),
        ("max_pool_2d", "max_pool_3d"),
        ("layers.0.mlp", "layers.1.attention"),
    ],
)
def test_different_things_are_not_aligned(old: str, new: str) -> None:
    assert aligned(profile({old: 5}), profile({new: 5}))[2] == []


def test_a_name_that_both_have_stands_for_itself_unless_it_is_a_number() -> None:
    both = {"GPU:ampere_sgemm_128x64_tn": 5}
    assert aligned(profile(both), profile({**both, "GPU:ampere_sgemm_64x64_tn": 5}))[2] == []
    first = {f"GPU:triton_poi_fused_add_{at}": 5 for at in (1, 2)}
    second = {f"GPU:triton_poi_fused_add_{at}": 5 for at in (2, 3)}
    (found,) = aligned(profile(first), profile(second))[2]
    assert (found.name, len(found.before), len(found.after)) == ("GPU:triton_poi_fused_add_*", 2, 2)


def test_like_layers_are_one_with_a_count() -> None:
    layers = {f"nn.Module: DecoderLayer_{at}": 40 for at in range(24)}
    (found,) = aligned(profile(layers), profile(layers))[2]
    assert (found.rule, found.name, len(found.before)) == ("layer", "nn.Module: DecoderLayer_*", 24)


def test_kernels_of_another_compilation_are_neither_new_nor_gone() -> None:
    rest = {f"f{at}": 100 + 20 * at for at in range(12)}
    rng = np.random.default_rng(1)

    def run(first: int) -> StackProfile:
        kernels = {f"GPU:triton_poi_fused_{op}_{first + at}": 400 for at, op in enumerate(("add", "mul", "gelu"))}
        return profile({name: int(rng.poisson(count)) for name, count in {**rest, **kernels}.items()})

    found = compare(Part(run(0)), Part(run(7)))
    assert found.verdict == "alike"
    assert {one.rule for one in found.aligned} == {"numbered"}
