"""Kernels of sm_90a compiled for the CPU: every thread, barrier and copy of them, but no GPU.

What it shows is that a kernel computes the right thing, whatever the order of its threads and
copies, as long as the instructions do what tests/ops/on_hopper.hpp says.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any
from unittest import mock

import numpy as np

from stof_cupy.jit import tensormap
from stof_cupy.jit.spec import KernelSpec
from stof_cupy.ops.attention_fields import Args
from stof_cupy.ops.attention_sm90 import Config
from stof_cupy.ops.attention_sm90_launches import launches
from tests.masks import on_host

_KERNEL = """
#include "on_hopper.hpp"
#define threadIdx (host::thread_of_cta())
#define blockIdx (host::block_of_cta())
#include "{header}"
using Kernel = {type};
static_assert(sizeof(Kernel::Params) == {params} && Kernel::kThreads == {threads});
static_assert(Kernel::kSmemBytes == {smem} && Kernel::kSmemBytes <= host::kEach);
static Kernel::Params params;
static void run(char* smem) {{ Kernel::run(params, smem); }}
#undef threadIdx
#undef blockIdx

extern "C" int launch(const void* packed, unsigned grid, unsigned seed) {{
  std::memcpy(&params, packed, sizeof params);
  return host::launch({{run, {threads}, {cluster}}}, grid, seed);
}}
"""
_FAULTS = (
    *("", "threads wait forever", "left before its copies were done"),
    "a copy or product of what its writer has not fenced",
)


def launch(
    spec: KernelSpec,
    grid: int,
    fields: dict[str, Any],
    *,
    seed: int = 0,
    earlier: Sequence[on_host.Written] = (),
) -> None:
    """Run a kernel on NumPy arrays, cluster after cluster; `earlier` as of `on_host.launch`."""
    assert fields.keys() == {name for name, _ in spec.params}
    assert grid % spec.cluster == 0
    values = tuple(fields[name] for name, _ in spec.params)
    packed = np.array([values], spec.params_dtype())
    run = _compiled(spec)
    with on_host.writing(run.made, earlier):
        status = run(packed.ctypes.data, grid, seed)
    assert status == 0, _FAULTS[status]


def attend(
    config: Config,
    args: Args,
    *,
    overflow: bool = False,
    ctas: int = 3,
    section: int = 2,
    seed: int = 0,
) -> None:
    """Run the attention with a few CTAs, one after the other, as its launches say."""
    with mock.patch.object(tensormap, "tensor_map", encode):
        every, used = launches(config, args, ctas=ctas, section=section)
    flag = np.array([overflow], np.int32)
    for spec, grid, fields in every:
        fields["overflow"] = flag.ctypes.data
        launch(spec, grid, fields, seed=seed)
    assert used[0] == 0, "the next launch would not begin at the first row"


def encode(
    address: int,
    dtype: str,
    dims: tuple[int, ...],
    strides: tuple[int, ...],
    box: tuple[int, ...],
) -> bytes:
    """Return what `host::Map` in on_hopper.hpp reads, in place of what the driver encodes."""
    assert len(dims) == 4, dtype
    layout = [("data", "u8"), ("strides", "(3,)i8"), ("dims", "(4,)u4"), ("box", "(4,)u4")]
    values = (address, strides, dims, box, 2)
    made = np.array([values], [*layout, ("element", "u4")]).tobytes()
    return made + bytes(128 - len(made))


@cache
def _compiled(spec: KernelSpec) -> Any:
    """As that of `on_host`."""
    source = _KERNEL.format(
        header=spec.header,
        type=spec.type,
        params=spec.params_dtype().itemsize,
        threads=spec.threads,
        smem=spec.smem_bytes,
        cluster=spec.cluster,
    )
    made = on_host.library(source)
    function = made.launch
    function.restype = ctypes.c_int
    function.argtypes = [ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    function.made = made
    return function
