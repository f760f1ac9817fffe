"""How fast are products with an epilogue on the GPU, beside cuBLASLt and torch.compile?

    pytest benchmarks/bench_gemm.py -m gpu --benchmark-quiet --benchmark-json=out.json
    python benchmarks/summary_gemm.py out.json

``-k plain``, ``bias_gelu``, ``swiglu``, ``layer_norm`` or ``fold`` picks a kind, ``-k 32768x`` the
rows, and after ``--budget`` seconds the rest is skipped. ``--heavy`` adds all but plain products of
512 rows and more beside torch.compile with max-autotune, which takes 20 s a cell: ``--heavy -k
"compiled and fold and 4096x"``. What Inductor has found stays in TORCHINDUCTOR_CACHE_DIR. Runs on
several GPUs that add to one file (``--results``) take a cell each, and go on with the next that
none has.

GPU seconds, by estimate: plain and bias_gelu 65 each, swiglu 60, layer_norm 30, fold 80, and 15 for
kernels at the first time; ``--heavy`` 20 a cell of 123.

Ours is the fastest of what the model expects to be near the best and of cuBLASLt, if that is
there, timed once a cell and kept in STOF_CACHE_DIR; the times and the model's own choice are in the
results.

bfloat16; M = N = K, and the rows and weights of shapes.py. N are columns of B: a gated product has
half as many. Ours is compared with the float64 oracle in some rows and columns, within the budget
of testing.py, and the others with ours everywhere, within twice that. A time is the device's, from
replays of CUDA graphs on both sides: of 20 calls where the inputs fit L2, else of one after L2 was
flushed. 16 rows and fewer are timed with weights from memory: after a flush, or from 10 MB on by 20
calls that take other weights in turn, 200 MB of them. What takes more than 0.1 ms is timed after
the GPU has rested, since it runs slower under load. "templates" are our own kernels where something
else is chosen, and "apart" is a product and a LayerNorm in two kernels, where ours may be one, or a
fold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

import attention_peers
import device_time
import gemm_cells
import gemm_peers
import pytest
from gemm_cells import KINDS, Cell, Shape

from stof_cupy.jit import device
from stof_cupy.ops.gemm_timing import normal

COPIED = 2**31  # bytes
COPY = """
extern "C" __global__ void copy(const uint4* x, uint4* y) {
  const long long at = 1024ll * blockIdx.x + threadIdx.x;
  uint4 v[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = x[at + 256 * i];
#pragma unroll
  for (int i = 0; i < 4; ++i) y[at + 256 * i] = v[i];
}"""  # 4.07 TB/s on an H200, where the driver's copy reached 2.8 and CuPy's 3.0
ULP = 2.0**-7  # of bfloat16, relative
MINE: dict[str, Callable[[Cell], Any]] = {
    "ours": gemm_cells.ours,
    "templates": gemm_cells.templates,
    "apart": gemm_cells.apart,
}


def cases(ways: Callable[[str], Iterable[str]], *but: str, least: int = 1) -> list[Any]:
    """Return every way of every kind and shape of at least so many rows."""
    return [
        pytest.param(kind, shape, way, id=f"{kind}-{'x'.join(map(str, shape))}-{way}")
        for kind in KINDS
        if kind not in but
        for shape in gemm_cells.shapes(kind)
        if shape[0] >= least
        for way in ways(kind)
    ]


def quick(kind: str) -> tuple[str, ...]:
    parts = ("apart",) if kind in ("layer_norm", "fold") else ("templates",)
    return ("ours", *parts, *gemm_peers.QUICK[kind])


def slow(kind: str) -> tuple[str, ...]:
    return (*quick(kind), "compile")


@pytest.fixture(scope="session", autouse=True)
def _kernels(request: pytest.FixtureRequest) -> None:
    """Compile what will run, in parallel."""
    params = [i.callspec.params for i in request.session.items if hasattr(i, "callspec")]
    wanted = {(p["kind"], p["shape"]) for p in params if p.get("kind") in KINDS}
    if any(item.get_closest_marker("gpu") for item in request.session.items):
        gemm_cells.compile_all(sorted(wanted))


@pytest.mark.gpu
def bench_copy(benchmark: Any) -> None:
    """The bandwidth that others are measured by, bytes read and written; and the GPU's facts."""
    import cupy

    x = normal((COPIED // 2,), "float16", 0)
    y = cupy.empty_like(x)
    kernel = cupy.RawKernel(COPY, "copy")

    def copy() -> None:
        kernel((COPIED // 2**14,), (256,), (x, y))

    measured = device_time.ours(copy, small=False)
    benchmark.pedantic(copy, rounds=1)
    speed = 2 * COPIED / measured.p50 / 1e6
    benchmark.extra_info |= {"way": "copy", "gbytes_per_s": speed, "facts": asdict(device.facts())}


@pytest.mark.gpu
@pytest.mark.parametrize(("kind", "shape", "way"), cases(quick))
def bench_gemm(benchmark: Any, kind: str, shape: Shape, way: str) -> None:
    record(benchmark, kind, shape, way)


@pytest.mark.gpu
@pytest.mark.parametrize(("kind", "shape", "way"), cases(slow, "plain", least=gemm_cells.MANY))
def bench_compiled_heavy(benchmark: Any, kind: str, shape: Shape, way: str) -> None:
    record(benchmark, kind, shape, way)


def record(benchmark: Any, kind: str, shape: Shape, way: str) -> None:
    """Time one way through a cell, after its result was found right."""
    known = gemm_cells.measured(kind, shape)
    cell = gemm_cells.cell(kind, shape)
    if way in MINE:
        import cupy

        run, wait = mine(cell, way), cupy.cuda.Device().synchronize
        measured = device_time.ours(run, small=cell.small)
    else:
        run, wait = peer(cell, way)
        measured = device_time.theirs(run, small=cell.small)
    benchmark.pedantic(lambda: (run(), wait()), rounds=3, warmup_rounds=1)
    quantiles = {f"device_{n}_ms": getattr(measured, n) for n in ("p20", "p50", "p80")}
    benchmark.extra_info |= {
        **{"kind": kind, "shape": list(shape), "way": way, "graph": measured.graph, **quantiles},
        "tflops": cell.flop / measured.p50 / 1e9,
        "gbytes_per_s": cell.moved / measured.p50 / 1e6,
        "cold": cell.cold,
    }
    if way == "ours":
        benchmark.extra_info |= known._asdict()


def mine(cell: Cell, way: str) -> Callable[[], Any]:
    """Return a call of ours, or another of our own where that is not the same."""
    if way == "ours":
        return gemm_cells.in_turn(cell, MINE[way])
    run = MINE[way](cell)
    if run is None:
        pytest.skip("ours is one of the templates")
    want = cell.out.copy()
    run()
    found_right(way, cell, want)
    return gemm_cells.in_turn(cell, MINE[way])


def peer(cell: Cell, way: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return a peer's call and the wait for it; skip if it fails."""
    torch = pytest.importorskip("torch")
    try:
        with torch.no_grad():
            got = gemm_peers.PEERS[way](cell)()
            run = torch.no_grad()(gemm_cells.in_turn(cell, gemm_peers.PEERS[way]))
            run()
            torch.cuda.synchronize()
    except Exception as error:  # a peer's failure is a fact about the peer
        torch.cuda.empty_cache()
        pytest.skip(f"{way}: {type(error).__name__}: {' '.join(str(error).split())[:150]}")
    found_right(way, cell, got)
    return run, torch.cuda.synchronize


def found_right(way: str, cell: Cell, got: Any) -> None:
    """Compare ours with another result, an array or a tensor, everywhere."""
    torch = pytest.importorskip("torch")
    tensor = attention_peers.tensor
    got = got if isinstance(got, torch.Tensor) else tensor(got)
    want = tensor(cell.out).float()
    # PyTorch rounds in between what ours does not: an ulp of each value more.
    off = float(((got.float() - want).abs() - ULP * want.abs()).max())
    if not off <= cell.allowed:
        raise AssertionError(f"{way}: off by {off:.2e}, allowed {cell.allowed:.2e}")
