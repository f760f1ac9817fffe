"""layer_norm and rms_norm, of one array and of a sum, against a device-to-device copy of as many bytes:

    PYTHONPATH=$PWD timeout 120 python3 scratch/add_norm.py

Two kernels of 3 s each to compile, then an estimated 30 s (it has not run yet). The goal is 85 % or more of the copy in the rows "large".
Calls are recorded 20 to a CUDA graph, so that the host is not timed. The last rows have each number of warps a row, beside the rule's choice:
whether the rule should look at how many rows there are, too.
"""
import sys

import cupy
import numpy as np

import stof_cupy
from stof_cupy.ops import norm_rows, reference, reference_decoder
from stof_cupy.ops.elementwise import add
from stof_cupy.testing import assert_close

CALLS = 20
LARGE = [(32768, 768), (32768, 1024), (16384, 2048), (16384, 4096), (8192, 8192), (4096, 16384)]
SMALL = [(1, 2048), (16, 4096), (128, 768), (512, 1024), (4096, 768)]
ODD = [(32768, 1001), (16384, 2047)]
EPS = 1e-5


def ms(call):
    """The median of a call, in ms, of 20 in a CUDA graph."""
    call()
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.get_current_stream().synchronize()
    with stream:
        call()
        stream.synchronize()
        stream.begin_capture()
        for _ in range(CALLS):
            call()
        graph = stream.end_capture()
        for _ in range(2):
            graph.launch(stream)
        events = [(cupy.cuda.Event(), cupy.cuda.Event()) for _ in range(9)]
        for start, end in events:
            start.record(stream)
            graph.launch(stream)
            end.record(stream)
        stream.synchronize()
    return float(np.median([cupy.cuda.get_elapsed_time(*each) for each in events])) / CALLS


def copying(nbytes):
    """The time of a copy that reads and writes `nbytes` in all."""
    source, to = (cupy.zeros(nbytes // 2, cupy.uint8) for _ in range(2))
    kind = cupy.cuda.runtime.memcpyDeviceToDevice
    return ms(lambda: cupy.cuda.runtime.memcpyAsync(to.data.ptr, source.data.ptr, to.nbytes, kind, cupy.cuda.get_current_stream().ptr))


def norm_of(name, weight, bias):
    if name == "rms_norm":
        return lambda x, **how: stof_cupy.rms_norm(x, weight, eps=EPS, **how)
    return lambda x, **how: stof_cupy.layer_norm(x, weight, bias, eps=EPS, **how)


def right(name, x, residual, weight, bias, out, sum_out):
    """Raise unless the first and last rows are as float64 has them."""
    for rows in (slice(0, 3), slice(-3, None)):
        a, b, g, s, got, total = (y.get().astype(np.float64) for y in (x[rows], residual[rows], weight, bias, out[rows], sum_out[rows]))
        low = {"precision": str(x.dtype)}
        if name == "rms_norm":
            exact, rounded = (reference_decoder.rms_norm(a + b, g, eps=EPS, **how) for how in ({}, low))
        else:
            exact, rounded = (reference.layer_norm(a + b, g, s, eps=EPS, **how) for how in ({}, low))
        assert_close(got.astype(x.dtype), exact, rounded)
        assert_close(total.astype(x.dtype), a + b, reference.add(a, b, **low))


def arrays(rows, hidden):
    new = lambda *shape: cupy.random.standard_normal(shape, cupy.float32).astype(cupy.float16)
    x, residual, weight, bias = new(rows, hidden), new(rows, hidden), new(hidden), new(hidden)
    return x, residual, weight, bias, cupy.full_like(x, cupy.nan), cupy.full_like(x, cupy.nan)


def line(title, name, rows, hidden):
    x, residual, weight, bias, out, sum_out = arrays(rows, hidden)
    norm = norm_of(name, weight, bias)
    norm(x, residual=residual, sum_out=sum_out, out=out)
    right(name, x, residual, weight, bias, out, sum_out)
    cases = {
        "norm": (2, lambda: norm(x, out=out)),
        "add+norm": (3, lambda: norm(x, residual=residual, out=out)),
        "add+norm+sum": (4, lambda: norm(x, residual=residual, sum_out=sum_out, out=out)),
    }
    shown = []
    for case, (passes, call) in cases.items():
        took, copy = ms(call), copying(passes * x.nbytes)
        shown.append(f"{case} {took * 1e3:7.1f} us {passes * x.nbytes / took / 1e9:5.2f} TB/s {copy / took:6.1%} of the copy")

    def two():
        add(x, residual, out=sum_out)
        norm(sum_out, out=out)

    print(f"{title:5} {name:10} {rows:6} x {hidden:5}: {' | '.join(shown)} | two kernels {ms(two) * 1e3:7.1f} us", flush=True)


def warps(name, rows, hidden):
    """Time each number of warps a row."""
    x, residual, weight, bias, out, sum_out = arrays(rows, hidden)
    norm, rule, shown = norm_of(name, weight, bias), norm_rows.arguments, []
    for each in (1, 2, 4, 8):
        def forced(*args, **how):
            _, fields = rule(*args, **how)
            return -(-rows // (8 // each)), {**fields, "warps": each}

        norm_rows.arguments = forced
        shown.append(f"{each}: {ms(lambda: norm(x, residual=residual, sum_out=sum_out, out=out)) * 1e3:6.2f} us")
    norm_rows.arguments = rule
    right(name, x, residual, weight, bias, out, sum_out)
    chosen = rule(x, weight, bias, out, eps=EPS)[1]["warps"]
    print(f"warps {name:10} {rows:6} x {hidden:5}: {'  '.join(shown)}  rule: {chosen}", flush=True)


if __name__ == "__main__":
    print(cupy.cuda.runtime.getDeviceProperties(0)["name"].decode(), "cupy", cupy.__version__, sys.version.split()[0])
    for title, shapes in (("large", LARGE), ("odd", ODD), ("small", SMALL)):
        for name in ("layer_norm", "rms_norm"):
            for shape in shapes:
                line(title, name, *shape)
    for shape in (*SMALL, (16384, 2048), (16384, 4096)):
        warps("layer_norm", *shape)
