"""Two products in one kernel against the oracle: on NumPy, the code on the CPU, and on a GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from stof_cupy.errors import ArgumentError, DTypeError, ShapeError
from stof_cupy.jit.device import DeviceFacts
from stof_cupy.jit.epilogues import EpilogueKind
from stof_cupy.jit.gemm_pair import PAIR_TILES, PairTile, gemm_pair
from stof_cupy.ops import gemm_gemm as module
from stof_cupy.ops import reference
from stof_cupy.ops.epilogue import Epilogue, Rotary
from stof_cupy.ops.gemm import gemm
from stof_cupy.ops.gemm_args import Problem
from stof_cupy.ops.gemm_gemm import gemm_gemm
from stof_cupy.ops.gemm_pair import Pair, apart, choose, fault, fields, predict
from stof_cupy.testing import assert_close, poison, random_array, rng
from tests.masks import on_host
from tests.ops.conftest import OnHost

H100 = DeviceFacts(
    "NVIDIA H100 80GB HBM3", "90a", (9, 0), 132, 232448, 233472, 50 << 20, 1980000, 80 << 30, 2048,
    2619000, 5120,
)  # fmt: skip
L4 = DeviceFacts("NVIDIA L4", "89", (8, 9), 58, 101376, 102400, 48 << 20, 2040000, 24 << 30)
GELU = EpilogueKind(bias=True, activation="gelu")
GATED = EpilogueKind(scale=True, bias=True, activation="silu", gated=True)
ADDED = EpilogueKind(scale=True, bias=True, activation="relu", residual=True)
PLAIN = EpilogueKind()


@dataclass
class Case:
    """Two random products whose arrays have poison around them, and how they are checked."""

    pair: Pair
    a: Any  # (M, K)
    b: Any  # (H, K), or twice as many rows
    d: Any  # (N, H)
    between: Epilogue
    epilogue: Epilogue
    out: Any

    @classmethod
    def draw(
        cls,
        seed: int,
        size: tuple[int, int, int, int],
        kinds: tuple[EpilogueKind, EpilogueKind],
        dtype: str = "bfloat16",
        pitch: int = 0,
        fence: bool = True,
    ) -> Case:
        g, (m, k, h, n) = rng(seed), size

        def laid(shape: tuple[int, int], scale: float = 1.0) -> Any:
            """Return a matrix in poison, in 16-byte aligned rows, after which memory ends."""
            wide = poison((shape[0], -(-shape[1] // 8) * 8 + 8), random_array(g, (1,), dtype).dtype)
            wide = on_host.fenced(wide) if fence else wide
            wide[:, 8 : 8 + shape[1]] = random_array(g, shape, dtype, scale)
            return wide[:, 8 : 8 + shape[1]]

        first, second = Problem(dtype, m, h, k, kinds[0]), Problem(dtype, m, n, h, kinds[1])
        a = laid((m, k))
        b, d = (laid((p.columns, p.k), p.k**-0.5) for p in (first, second))
        out = poison((m, pitch or n), a.dtype)[:, :n]
        ends = []
        for problem in (first, second):
            kind, shape = problem.epilogue, (m, problem.n)
            ends.append(
                Epilogue(
                    random_array(g, (problem.columns,), dtype) if kind.bias else None,
                    kind.activation,
                    laid(shape) if kind.residual else None,
                    kind.gated,
                    0.75 if kind.scale else None,
                )
            )
        return cls(Pair(first, second), a, b, d, *ends, out)

    def compare(self, got: Any, residual: Any = None) -> None:
        def computed(precision: str | None) -> Any:
            x = self.a
            for w, e in ((self.b, self.between), (self.d, self.epilogue)):
                how = {"bias": e.bias, "activation": e.activation, "gated": e.gated}
                added = e.residual if residual is None or e is self.between else residual
                how |= {"residual": added, "scale": e.scale, "precision": precision}
                x = reference.gemm(x, w.T, **how)
            return x

        assert_close(got, computed(None), computed(self.pair.first.dtype))


def run_on_cpu(tile: PairTile, case: Case, seed: int = 0) -> Any:
    pair = case.pair
    assert fault(tile, pair, H100) is None
    given = [
        {"bias": e.bias, "residual": e.residual, "scale": 1.0 if e.scale is None else e.scale}
        for e in (case.between, case.epilogue)
    ]
    spec = gemm_pair(pair.first.dtype, tile, pair.first.epilogue, pair.second.epilogue)
    grid = (-(-pair.first.m // tile.m), 1)
    values = fields(pair, case.a, case.b, case.d, case.out, *given)
    on_host.launch(spec, grid, seed=seed, **values)
    return case.out


@pytest.mark.parametrize("tile", PAIR_TILES, ids=lambda t: f"{t.m}x{t.hidden}")
def test_the_code_computes_two_products(tile: PairTile) -> None:
    """Tails in all four sizes, the widest inside and the least, and steps of less than a slice."""
    sizes = ((1, 40, 72, 24), (70, 72, tile.hidden, 136), (65, 3, 1, 5), (33, 100, 130, 260))
    for seed, size in enumerate(sizes):
        kinds = (GELU, ADDED) if seed % 2 else (PLAIN, PLAIN)
        case = Case.draw(seed, size, kinds, pitch=0 if seed % 2 else size[3] + 12)
        out = run_on_cpu(tile, case, seed)
        case.compare(out)
        if out.base is not None and out.base.shape[1] > size[3]:
            assert np.isnan(out.base[:, size[3] :].astype(np.float32)).all()


@pytest.mark.parametrize("tile", PAIR_TILES[1:], ids=lambda t: f"{t.m}x{t.hidden}")
def test_the_code_of_a_gate(tile: PairTile) -> None:
    for seed, size in enumerate(((67, 72, 200, 72), (9, 136, 43, 75))):
        case = Case.draw(seed, size, (GATED, ADDED), "float16", pitch=77)
        case.compare(run_on_cpu(tile, case))


def test_the_code_in_place_of_the_residual() -> None:
    case = Case.draw(5, (70, 64, 96, 75), (GELU, ADDED))
    given = case.epilogue.residual.copy()
    case.out = case.epilogue.residual
    case.compare(run_on_cpu(PAIR_TILES[0], case), given)


def test_what_is_not_finite_stays_in_its_row() -> None:
    case = Case.draw(6, (70, 64, 72, 40), (PLAIN, PLAIN))
    case.a[3, 5], case.a[66, 1] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        case.compare(run_on_cpu(PAIR_TILES[0], case))


def test_on_numpy() -> None:
    g = rng(0)
    x, w, v = (random_array(g, shape, "float32") for shape in ((2, 5, 8), (12, 8), (6, 6)))
    bias, residual = (random_array(g, shape, "float32") for shape in ((12,), (2, 5, 6)))
    between, after = Epilogue(bias, "silu", gated=True), Epilogue(residual=residual)
    out = residual.copy()
    got = gemm_gemm(x, w.T, v.T, between=between, epilogue=Epilogue(residual=out), out=out)
    assert got is out
    inside = reference.gemm(x, w.T, bias=bias, activation="silu", gated=True)
    exact = reference.gemm(inside, v.T, residual=after.residual)
    np.testing.assert_allclose(got, exact, atol=1e-4)
    assert gemm_gemm(x[:0], w.T[:, :6], v.T).shape == (0, 5, 6)


def test_what_is_turned_after_is_turned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Halves of 20 take a kernel of their own, which that of two products does not launch."""
    checked = module.checked
    monkeypatch.setattr(module, "checked", lambda *how: ("cuda", checked(*how)[1]))
    monkeypatch.setattr(module, "launch", lambda *how: np.zeros((2, 40)))
    monkeypatch.setattr(module.gemm_pair, "choose", lambda *how: PAIR_TILES[0])
    monkeypatch.setattr("stof_cupy.jit.device.facts", lambda _: H100)
    g = rng(5)
    a, b, d = (random_array(g, s).view(OnHost) for s in ((2, 40), (40, 40), (40, 40)))
    turned = Epilogue(rotary=Rotary(np.array([3, 8]), np.ones(10, np.float32), 2, 20))
    for how in ({"between": turned}, {"epilogue": turned}):
        got = gemm_gemm(a, b.T, d.T, **how)
        inside = gemm(a, b.T, epilogue=how.get("between"))
        assert np.array_equal(got, gemm(inside, d.T, epilogue=how.get("epilogue")))
    assert not gemm_gemm(a, b.T, d.T).any()  # which is the one kernel's


def test_bad_arguments() -> None:
    a, b, d = (np.ones(shape, np.float32) for shape in ((2, 3), (3, 4), (4, 5)))
    with pytest.raises(ShapeError, match=r"d: got \(3, 4\), expected \(4, N\)"):
        gemm_gemm(a, b, b)
    with pytest.raises(DTypeError, match="d: got float64"):
        gemm_gemm(a, b, d.astype(np.float64))
    with pytest.raises(ShapeError, match="residual: got"):
        gemm_gemm(a, b, d, epilogue=Epilogue(residual=a))
    with pytest.raises(ShapeError, match="heads"):
        gemm_gemm(a[None], b, d, between=Epilogue(heads=2))
    with pytest.raises(ShapeError, match="out"):
        gemm_gemm(a, b, d, out=np.ones((2, 4), np.float32))


def pair_of(m: int, k: int, h: int, n: int, dtype: str = "float16") -> Pair:
    return Pair(Problem(dtype, m, h, k, GELU), Problem(dtype, m, n, h, EpilogueKind(bias=True)))


def test_what_fits() -> None:
    assert [fault(tile, pair_of(8, 64, 512, 64), H100) is None for tile in PAIR_TILES] == [
        False, True, True,
    ]  # fmt: skip
    assert "shared memory" in str(fault(PAIR_TILES[1], pair_of(8, 64, 512, 64), L4))
    assert all(fault(tile, pair_of(8, 64, 1032, 64), H100) for tile in PAIR_TILES)
    assert "empty" in str(fault(PAIR_TILES[0], pair_of(8, 0, 64, 64), H100))
    first, second = pair_of(8, 64, 64, 64)
    heads = Problem("float16", 8, 64, 64, EpilogueKind(heads=True))
    assert "epilogue" in str(fault(PAIR_TILES[0], Pair(first, heads), H100))
    added = Problem("float16", 8, 64, 64, EpilogueKind(residual=True))
    assert "between" in str(fault(PAIR_TILES[0], Pair(added, second), H100))


def test_what_is_chosen_by_the_model() -> None:
    many = pair_of(4096, 64, 256, 64)
    tile = choose(many, H100)
    assert tile is not None and predict(tile, many, H100) < apart(many, H100)
    for pair in (pair_of(16, 512, 1024, 512), pair_of(32768, 768, 3072, 768)):
        assert choose(pair, H100) is None


# ---------------------------------------------------------------- the kernel, on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("tile", PAIR_TILES, ids=lambda t: f"{t.m}x{t.hidden}")
def test_the_kernel(tile: PairTile, dtype: str) -> None:
    cupy = pytest.importorskip("cupy")
    from stof_cupy.jit import device
    from tests.ops.test_gemm_sm90 import upload

    sizes = ((1, 40, 72, 24), (17, 1000, tile.hidden, 100), (127, 72, 130, 72), (5000, 64, 256, 64))
    for seed, size in enumerate(sizes):
        kinds = (GATED, ADDED) if seed == 2 else (GELU, ADDED) if seed % 2 else (PLAIN, PLAIN)
        case = Case.draw(
            seed, size, kinds, dtype, pitch=0 if seed % 2 else size[3] + 13, fence=False
        )
        if fault(tile, case.pair, device.facts()) is not None:
            pytest.skip("does not fit this GPU")
        a, b, d, out = (upload(cupy, x) for x in (case.a, case.b, case.d, case.out))
        ends = [
            replace(e, bias=upload(cupy, e.bias), residual=upload(cupy, e.residual))
            for e in (case.between, case.epilogue)
        ]
        results = []
        for _ in range(2):
            out.fill(np.nan)
            module.launch(tile, case.pair, a, b.T, d.T, *ends, out)
            results.append(out.get())
        case.compare(results[0])
        assert np.array_equal(results[0].view("u2"), results[1].view("u2"))


def test_what_is_no_array_or_overlaps_is_said() -> None:
    x = np.ones((4, 4), np.float32)
    with pytest.raises(DTypeError, match="d: got list"):
        gemm_gemm(x, x, [[1.0]])
    out = np.empty((4, 4), np.float32)
    told = Epilogue(statistics=out.reshape(-1)[:8].reshape(4, 1, 2))
    with pytest.raises(ArgumentError, match="shared with statistics of between"):
        gemm_gemm(x, x, x, between=told, out=out)
    with pytest.raises(DTypeError, match="between: got str"):
        gemm_gemm(x, x, x, between="gelu")
    with pytest.raises(ArgumentError, match="shared with d, expected"):
        gemm_gemm(x, x, out, out=out)
    told = Epilogue(statistics=x.reshape(-1)[:8].reshape(4, 1, 2))
    with pytest.raises(ArgumentError, match="statistics: got memory possibly shared with a,"):
        gemm_gemm(x, x.copy(), x.copy(), epilogue=told)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [5, 3000])
def test_any_arrays(rows: int) -> None:
    """One kernel or two, whatever is chosen, with operands that only two take, too."""
    cupy = pytest.importorskip("cupy")
    from tests.ops.test_gemm_sm90 import upload

    for along in ("k", "rows"):
        case = Case.draw(3, (rows, 64, 256, 72), (GELU, ADDED), fence=False)
        x, b, d = (cupy.asarray(each) for each in (case.a, case.b, case.d))
        if along == "rows":
            b, d = (cupy.asfortranarray(each) for each in (b, d))
        ends = [
            replace(e, bias=upload(cupy, e.bias), residual=upload(cupy, e.residual))
            for e in (case.between, case.epilogue)
        ]
        got = gemm_gemm(x, b.T, d.T, between=ends[0], epilogue=ends[1])
        case.compare(got.get())
