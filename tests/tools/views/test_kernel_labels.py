"""Labels of kernels begin with what tells them apart."""

from __future__ import annotations

import pytest

from whystall.tools.views.kernel_labels import kernel_label, kernel_labels

FILL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul>>"
    "(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)"
)
ADD = FILL.replace("FillFunctor", "CUDAFunctor_add")


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("GPU:ampere_sgemm_128x64_tn", "ampere_sgemm_128x64_tn"),
        ("ncclDevKernel_AllReduce_Sum_f32(ncclDevKernelArgsStorage<4096ul>)", "ncclDevKernel_AllReduce_Sum_f32"),
        ("void (anonymous namespace)::softmax_warp_forward<float, 10>(float*, int)", "softmax_warp_forward<float, 10>"),
        ("cudaLaunchKernel", "cudaLaunchKernel"),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("(odd)", "(odd)"),
        ("", ""),
        ("void a<b", "a<b"),
    ],
)  # fmt: skip
def test_a_signature_loses_what_all_of_them_have(name: str, label: str) -> None:
    assert kernel_label(name) == label


def test_kernels_of_one_template_begin_with_their_own_arguments() -> None:
    labels = kernel_labels([FILL, ADD, "GPU:gemm"])
    assert labels[0].startswith("FillFunctor<float>")
    assert labels[1].startswith("CUDAFunctor_add<float>")
    assert all(label.endswith(" · vectorized_elementwise_kernel") for label in labels[:2])
    assert labels[2] == "gemm"
    assert kernel_labels([FILL])[0].startswith("vectorized_elementwise_kernel<4, FillFunctor<float>")
    assert kernel_labels(["f<a>", "f<a, b>"]) == ["a · f", "a, b · f"]


@pytest.mark.parametrize("name", ["<" * 9000, "void " + "a::" * 5000, "f<" + "x," * 900 + ">", "f(" * 500])
def test_odd_names_stay_names(name: str) -> None:
    assert kernel_labels([name, name + "1"])
