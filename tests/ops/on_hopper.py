"""Kernels of sm_90a compiled for the CPU: every thread, barrier and copy of them, but no GPU.

What it shows is that a kernel computes the right thing, whatever the order of its threads and
copies, as long as the instructions do what tests/ops/on_hopper.hpp says.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from stof_cupy.jit.attention_sm90 import Sm90Config, attention_sm90
from stof_cupy.jit.spec import KernelSpec
from tests.masks import on_host

HERE = Path(__file__).parent
_KERNEL = """
#include "{folder}/on_hopper.hpp"
#define threadIdx (host::thread_of_cta())
#define blockIdx (host::block_of_cta())
#include "{header}"
using Kernel = {type};
static_assert(sizeof(Kernel::Params) == {params} && Kernel::kThreads == {threads});
static_assert(Kernel::kSmemBytes == {smem} && Kernel::kSmemBytes <= host::kEach);
static Kernel::Params params;
alignas(1024) static char smem[{cluster} * host::kEach];
static void run_kernel() {{ Kernel::run(params, smem + host::rank() * host::kEach); }}
#undef threadIdx
#undef blockIdx

// 0 for a good end, 1 for threads that wait forever, 2 for copies that nobody waited for.
extern "C" int launch(const void* packed, unsigned grid, unsigned seed) {{
  std::memcpy(&params, packed, sizeof params);
  host::body = run_kernel;
  host::shared = smem;
  host::cta_threads = {threads};
  host::cta_count = {cluster};
  host::chance.seed(seed);
  std::mt19937 random(seed);
  host::Cta cta({threads} * {cluster});
  host::cta = &cta;
  host::beside = host::land_one;
  gridDim.x = grid;
  for (blockIdx.x = 0; blockIdx.x < grid; blockIdx.x += {cluster}) {{
    std::memset(smem, 0xff, sizeof smem);
    host::reset();
    if (!host::run_cta(random)) return 1;
    if (!host::settled()) return 2;
  }}
  return 0;
}}
"""


def launch(spec: KernelSpec, grid: int, fields: dict[str, Any], *, seed: int = 0) -> None:
    """Run a kernel on NumPy arrays, cluster after cluster."""
    assert fields.keys() == {name for name, _ in spec.params}
    assert grid % spec.cluster == 0
    values = tuple(fields[name] for name, _ in spec.params)
    packed = np.array([values], spec.params_dtype())
    status = _compiled(spec)(packed.ctypes.data, grid, seed)
    assert status == 0, ("", "threads wait forever", "left before its copies were done")[status]


def attend(
    config: Sm90Config,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    mask: Any = None,
    *,
    scale: float | None = None,
    kv_lengths: np.ndarray | None = None,
    out: np.ndarray,
    overflow: bool = False,
    ctas: int = 3,
    section: int = 2,
    long_slots: int = 0,
    seed: int = 0,
) -> np.ndarray:
    """Run the attention with a few CTAs, one after the other; return the LSE."""
    dtype = q.dtype.name
    spec = attention_sm90(dtype, config)
    batch, heads, seq_q, dim_qk = q.shape
    lse = np.full((batch, heads, seq_q), np.nan, np.float32)
    counter = np.zeros(1, np.int32)
    lengths = None if kv_lengths is None else kv_lengths.astype(np.int32)
    flag = np.array([overflow], np.int32)
    fields: dict[str, Any] = {}
    for name, x, rows in (("q", q, config.m), ("k", k, config.n), ("v", v, config.n)):
        fields[name] = x.ctypes.data
        for axis, step in zip(("batch", "head", "row"), x.strides, strict=False):
            fields[f"{name}_{axis}"] = step // 2
        fields[f"map_{name}"] = tensor_map(x, rows)
    fields["map_out"] = tensor_map(out, 64)
    fields["map_k_group"], fields["map_v_group"] = tensor_map(k, 8), tensor_map(v, 8)
    names = ("row_ptr", "full_ptr", "cols", "bitmap_id", "bitmaps", "order", "mask_of")
    fields |= dict.fromkeys((*names, "groups", "mask_batch", "mask_head", "overflow"), 0)
    if mask is not None:
        tile = (config.m, config.n)
        lists = mask.schedule(tile, layout="accumulator", packed=config.packed)
        if config.packed:
            fields["groups"] = lists.groups.ctypes.data
        fields |= {name: getattr(lists, name).ctypes.data for name in names}
        fields["mask_batch"], fields["mask_head"] = lists.mask_strides(batch, heads)
        fields["overflow"] = flag.ctypes.data
    rows = -(-seq_q // config.m) * heads * batch
    fields |= {
        "lse": lse.ctypes.data,
        "kv_lengths": 0 if lengths is None else lengths.ctypes.data,
        "counter": counter.ctypes.data,
        "report": 0,
        "batch": batch,
        "heads": heads,
        "heads_per_kv": heads // k.shape[1],
        "section": min(section, batch * heads),
        "long_slots": min(long_slots, -(-seq_q // config.m)),
        "seq_q": seq_q,
        "seq_k": k.shape[2],
        "dim_qk": dim_qk,
        "dim_v": v.shape[3],
        "scale_log2": (dim_qk**-0.5 if scale is None else scale) * math.log2(math.e),
    }
    launch(spec, min(ctas, rows), fields, seed=seed)
    assert counter[0] == 0, "the next launch would not begin at the first row"
    return lse


def tensor_map(x: np.ndarray, rows: int) -> bytes:
    """Return a map of an array of four axes whose boxes are `rows` rows of 64."""
    return encode(x.ctypes.data, x.dtype.name, x.shape[::-1], x.strides[-2::-1], (64, rows, 1, 1))


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
def _compiled(spec: KernelSpec) -> Callable[..., int]:
    source = _KERNEL.format(
        folder=HERE,
        header=spec.header,
        type=spec.type,
        params=spec.params_dtype().itemsize,
        threads=spec.threads,
        smem=spec.smem_bytes,
        cluster=spec.cluster,
    )
    function = on_host.library(source).launch
    function.restype = ctypes.c_int
    function.argtypes = [ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    called: Callable[..., int] = function
    return called
