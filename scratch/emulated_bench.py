"""Benchmarks for a GPU on a machine without one: whether every line of them runs, not how fast.

    PYTHONPATH=$PWD:$PWD/benchmarks python scratch/emulated_bench.py pytest benchmarks/bench_paper_attention.py -k 128 ...

emulated_gpu.py's CuPy on NumPy; attention is the dense definition's; torch's CUDA names are those of its CPU, torch.compile does nothing.
TORCH=site-packages of a torch for the same Python, put last.
"""
import os
import runpy
import sys
import time
import types

sys.path[:0] = [os.getcwd(), os.path.dirname(os.path.abspath(__file__))]
import numpy as np

if os.environ.get("TORCH"):
    sys.path.append(os.environ["TORCH"])
    import torch._dynamo  # all before CuPy is another one
    import torch.distributed
    import torch.nn.attention.flex_attention
import emulated_gpu

sys.modules["emulated_gpu"] = emulated_gpu
emulated_gpu.install()


REAL = []  # the package's own


def attention(q, k, v, mask=None, *, out=None, scale=None, **how):
    """Dense, by NumPy; of the arguments that attention of the package takes."""
    from stof_cupy.masks import BsrMask

    if how.get("explain"):
        return REAL[0](q, k, v, mask, out=out, scale=scale, **how)
    kept = None
    if mask is not None:
        mask = mask if isinstance(mask, BsrMask) else mask.tobsr()
        kept = mask.toarray()
    hosts = [x.host.astype(np.float32) for x in (q, k, v)]
    group = hosts[0].shape[1] // hosts[1].shape[1]
    hosts[1:] = [np.repeat(x, group, 1) for x in hosts[1:]]
    scores = hosts[0] @ hosts[1].swapaxes(-1, -2) * np.float32(q.shape[-1] ** -0.5)
    if kept is not None:
        scores = np.where(kept, scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    e = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = e.sum(-1, keepdims=True)
    result = (e / np.where(total == 0, 1, total)) @ hosts[2]
    made = emulated_gpu.asarray(result.astype(q.dtype))
    if out is None:
        return made

    def run():
        out.host[...] = made.host

    state = emulated_gpu.STATE.capturing
    run() if state is None else state.append(run)
    return out


def torch_on_cpu():
    import torch

    class Event:
        def __init__(self, **_):
            self.at = 0.0

        def record(self, *_):
            self.at = time.perf_counter()

        def synchronize(self):
            pass

        def elapsed_time(self, other):
            return max(1e3 * (other.at - self.at), 1e-3)

    class Stream:
        def wait_stream(self, *_):
            pass

        def synchronize(self):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    class CUDAGraph:
        def replay(self):
            pass

    class Capture:
        def __init__(self, graph, stream=None):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    cuda = torch.cuda
    cuda.Event, cuda.Stream, cuda.CUDAGraph, cuda.graph = Event, Stream, CUDAGraph, Capture
    cuda.current_stream = lambda *_: Stream()
    cuda.stream = lambda s: s
    cuda.synchronize = cuda.empty_cache = lambda *_: None
    torch.compile = lambda f=None, **_: f if f is not None else (lambda g: g)
    to = torch.Tensor.to
    torch.Tensor.to = lambda self, *a, **k: to(self, *("cpu" if str(x).startswith("cuda") else x for x in a), **k)
    dlpack = torch.from_dlpack
    torch.from_dlpack = lambda x: torch.from_numpy(np.ascontiguousarray(x.host)) if hasattr(x, "host") else dlpack(x)
    for name in ("empty", "zeros", "ones", "arange", "full", "tensor", "zeros_like", "randn"):
        of = getattr(torch, name)

        def made(*a, _of=of, **k):
            if str(k.get("device", "")).startswith("cuda"):
                k["device"] = "cpu"
            return _of(*a, **k)

        setattr(torch, name, made)
    from torch.nn import attention as names

    kernel = names.sdpa_kernel
    names.sdpa_kernel = lambda backend: kernel(names.SDPBackend.MATH)


def small():
    """EMULATE_SMALL=1: the shortest sequences and one batch of everything, for programs that run all cells."""
    import shapes

    shapes.PAPER_LENGTHS["gpu"], shapes.PAPER_BATCHES["gpu"] = (128, 256), (1,)
    shapes.PAPER_STACKS["gpu"], shapes.PAPER_HIDDEN["gpu"] = ((1, 128),), (512,)
    shapes.SCALING_LENGTHS["gpu"], shapes.SCALING_BATCHES["gpu"], shapes.SCALING_SEQ["gpu"] = (256,), (1,), 512
    shapes.SCALING_DENSITIES = (0.1,)
    shapes.ATTENTION, shapes.SMALL_ATTENTION, shapes.ELEMENT_SIZES = ((1, 2, 256, 128),), ((1, 2, 128, 64),), (256,)
    shapes.DECODING = ((1, 4, 2, 4, 256, 64),)
    shapes.RAGGED["cuda"], shapes.SEARCH["cuda"], shapes.SEARCH_HIDDEN["cuda"] = (("minilm",), 3, 2), ((1, 128),), 256
    from dataclasses import replace

    import engine_measure
    import engine_stacks

    engine_measure.CUBE, engine_measure.ERROR = 64, 1e9
    few = {"layers": 2, "hidden": 128, "heads": 2, "kv_heads": 2, "inner": 256}
    engine_stacks.STACKS.update({name: replace(each, **few) for name, each in engine_stacks.STACKS.items()})
    engine_stacks.GRID[:] = [replace(cell, stack=engine_stacks.STACKS[cell.stack.name], batch=cell.batch, seq=cell.seq) for cell in engine_stacks.GRID]


def main():
    import contextlib

    from stof_cupy.jit import ahead

    ahead.compile_ahead = lambda *_, **__: 0  # nothing is run that would be compiled
    ahead.compiling = lambda *_, **__: contextlib.nullcontext(0)
    if os.environ.get("EMULATE_SMALL"):
        small()
    if os.environ.get("TORCH"):
        torch_on_cpu()
    import stof_cupy
    import stof_cupy.ops.attention as ops

    del ops
    REAL.append(stof_cupy.attention)
    stof_cupy.attention = attention
    if sys.argv[1] == "pytest":
        import pytest

        sys.exit(pytest.main(["-m", "gpu", "-p", "no:cacheprovider", *sys.argv[2:]]))
    sys.argv = sys.argv[1:]
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
