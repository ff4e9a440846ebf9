"""The one table of the kernels: every public name, the module of its CPU form and the module of its CUDA form.

It drives the dispatch in `hybridmpi.kernels` and the tests, which fail for a kernel that has only one form, for forms
with different parameters, and for a public function of a kernel module that is missing here.
"""

from __future__ import annotations

from typing import NamedTuple


class Kernel(NamedTuple):
    """Where the two forms of one kernel live; both carry the kernel's name."""

    cpu: str
    cuda: str


def _in(chapter: str, *names: str) -> dict[str, Kernel]:
    forms = Kernel(f"hybridmpi.kernels.{chapter}", f"hybridmpi.kernels.{chapter}_cuda")
    return dict.fromkeys(names, forms)


KERNELS: dict[str, Kernel] = {
    **_in("order", "argsort_ids", "unique_inverse"),
    **_in("rows", "gather", "scatter", "scatter_add", "scatter_add_bags"),
    **_in("segments", "aggregate", "position_sums", "segment_sum"),
    **_in("optimisers", "sgd_dense", "momentum_dense", "adagrad_dense", "adam_dense"),
    **_in("optimisers", "sgd_rows", "momentum_rows", "adagrad_rows", "adam_rows"),
    **_in("initial", "uniform_rows", "normal_rows"),
    **_in("check", "count_beyond", "nonfinite_count"),
    **_in("norm", "square_sum"),
    **_in("half", "to_bfloat16", "from_bfloat16", "add_bfloat16", "to_float16", "from_float16", "add_float16"),
}
