"""Stages that do more than change elements: norms, rotary, statistics, heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from stof_cupy.errors import ArgumentError, DTypeError, ShapeError, UnsupportedError
from stof_cupy.jit.catalogue import GEMM_TILES, GemmTile
from stof_cupy.jit.epilogues import EpilogueKind
from stof_cupy.jit.gemm_sm90 import GEMM_SM90_CONFIGS, Sm90Gemm, gemm_sm90
from stof_cupy.ops import gemm_sm80, reference
from stof_cupy.ops import gemm_sm90 as module
from stof_cupy.ops.epilogue import Epilogue, Normed, Rotary
from stof_cupy.ops.gemm import gemm
from stof_cupy.ops.gemm_args import Problem
from stof_cupy.ops.gemm_norm import gemm_layer_norm
from stof_cupy.ops.gemm_sm90 import Plan
from stof_cupy.ops.gemm_stages import Stages
from stof_cupy.testing import assert_close, poison, random_array, rng
from tests.masks import on_host
from tests.ops import on_hopper

SHARED = Sm90Gemm(128, 64)
WIDE = Sm90Gemm(128, 128, cluster=2)
TALL = Sm90Gemm(256, 128, stages=2)
TURNS = Sm90Gemm(64, 128, pingpong=True)
PIECES = Sm90Gemm(128, 64, split=True)
FEW = Sm90Gemm(128, 16, swapped=True, split=True)
UNEVEN = Sm90Gemm(128, 80, pingpong=True)
JOINED = Sm90Gemm(128, 64, joined=2)
HOPPERS = (SHARED, WIDE, TALL, TURNS, PIECES, FEW, UNEVEN, JOINED)


@dataclass
class Case:
    """One random product of rows ``(batch, seq)``."""

    kind: EpilogueKind
    batch: int
    seq: int
    heads: int  # of all columns
    head_dim: int
    a: Any  # (batch * seq, K)
    b: Any  # (N, K)
    bias: Any
    residual: Any
    scale: float
    stages: Stages
    out: Any

    @classmethod
    def draw(
        cls,
        seed: int,
        kind: EpilogueKind,
        sizes: tuple[int, int, int, int, int],  # batch, seq, heads, head_dim, K
        *,
        dtype: str = "bfloat16",
        padded: bool = False,
        xp: Any = np,
    ) -> Case:
        batch, seq, heads, head_dim, k = sizes
        g, m, n = rng(seed), batch * seq, heads * head_dim
        columns = n * kind.halves
        half = head_dim // 2 if isinstance(kind.rotary, int) else max(1, head_dim // 2 - 3)
        turned = max(1, heads - 1) * head_dim

        def low(shape: tuple[int, ...], scale: float = 1.0) -> Any:
            return random_array(g, shape, dtype, scale, xp)

        def single(*shape: int) -> Any:
            return xp.asarray(g.standard_normal(shape).astype(np.float32))

        turns = kind.rotary is not None
        stages = Stages(
            single(m, 2) if kind.normed else None,
            single(columns) if kind.normed else None,
            xp.asarray(g.integers(0, 5000, m).astype(np.int32)) if turns else None,
            xp.asarray(10000.0 ** -(np.arange(half) / half), np.float32) if turns else None,
            poison((m, -(-n // 64), 2), np.float32, xp) if kind.statistics else None,
            *((1.25, turned, half, head_dim) if turns else (1.0, 0, 0, 2)),
        )
        a, b = low((m, k)), low((columns, k), max(k, 1) ** -0.5)
        if kind.heads:
            pitch = head_dim + 8 * padded
            out = poison((batch, heads, seq + padded, pitch), a.dtype, xp)[:, :, :seq, :head_dim]
        else:
            out = poison((m, n + 8 * padded), a.dtype, xp)[:, :n]
        bias = low((columns,)) if kind.bias else None
        residual = low((m, n)) if kind.residual else None
        scale = 0.75 if kind.scale else 1.0
        return cls(
            *(kind, batch, seq, heads, head_dim, a, b, bias, residual, scale, stages, out),
        )

    @property
    def problem(self) -> Problem:
        rows, n = self.batch * self.seq, self.heads * self.head_dim
        return Problem(self.a.dtype.name, rows, n, self.a.shape[1], self.kind)

    def exact(self) -> Any:
        """Return the result in rows, in float64, from the definition."""
        kind, s = self.kind, self.stages
        a, b = (_wide(x) for x in (self.a, self.b))
        acc = a @ b.T
        if kind.normed:
            given = _wide(s.row_statistics)
            acc = (acc - given[:, :1] * _wide(s.column_sums)) * given[:, 1:]
        acc = acc * self.scale
        if kind.bias:
            acc = acc + _wide(self.bias)
        if kind.rotary:
            acc = self.turned(acc)
        gate, rest = np.split(acc, 2, -1) if kind.gated else (acc, 1.0)
        if kind.activation:
            gate = reference._activation(gate, kind.activation)
        acc = gate * rest
        return acc + _wide(self.residual) if kind.residual else acc

    def turned(self, acc: Any) -> Any:
        s, acc = self.stages, acc.copy()
        angles = _host(s.positions).astype(np.float32)[:, None] * _host(s.frequency)
        cosine, sine = (s.magnitude * f(angles.astype(np.float64)) for f in (np.cos, np.sin))
        for head in range(s.turned // s.head_dim):
            for i in range(s.half):
                first = head * s.head_dim
                if self.kind.rotary == "neighbours":
                    x, y = first + 2 * i, first + 2 * i + 1
                else:
                    x, y = first + i, first + i + s.half
                c, d = cosine[:, i], sine[:, i]
                acc[:, x], acc[:, y] = (
                    acc[:, x] * c - acc[:, y] * d,
                    acc[:, y] * c + acc[:, x] * d,
                )
        return acc

    def compare(self) -> None:
        exact = self.exact()
        out = _host(self.out)
        rows = out
        if self.kind.heads:
            exact_out = exact.reshape(self.batch, self.seq, self.heads, -1).swapaxes(1, 2)
            assert_close(out, exact_out, reference.rounder(self.a.dtype.name)(exact_out))
            rows = out.swapaxes(1, 2).reshape(exact.shape)
        else:
            assert_close(out, exact, reference.rounder(self.a.dtype.name)(exact))
        if self.kind.statistics:
            told, wide = _host(self.stages.statistics), rows.astype(np.float64)
            for i in range(told.shape[1]):
                part = wide[:, 64 * i : 64 * i + 64]
                np.testing.assert_allclose(told[:, i, 0], part.mean(1), atol=1e-5)
                squares = part.var(1) * part.shape[1]
                np.testing.assert_allclose(told[:, i, 1], squares, rtol=1e-4, atol=1e-5)

    def around_is_left(self) -> None:
        base = _host(self.out.base).astype(np.float32)
        assert np.isnan(base).sum() == base.size - self.out.size


def _host(x: Any) -> Any:
    return x.get() if hasattr(x, "get") else x


def _wide(x: Any) -> Any:
    return _host(x).astype(np.float64)


QKV = EpilogueKind(bias=True, rotary=64, heads=True)
PAIRS = EpilogueKind(bias=True, rotary="neighbours", heads=True)
ROWS = EpilogueKind(scale=True, rotary=32, residual=True, statistics=True)
FOLD = EpilogueKind(normed=True, bias=True, activation="gelu")
GATED = EpilogueKind(normed=True, scale=True, bias=True, activation="silu", gated=True, heads=True)
EVERY = EpilogueKind(
    normed=True, bias=True, rotary="neighbours", activation="relu", statistics=True, heads=True
)
LARGE = EpilogueKind(rotary=128, heads=True, statistics=True)
NORMED = ("row_statistics", "column_sums")
CASES = (
    (QKV, (2, 35, 3, 64, 72)),  # a box would be in two sequences: no tensor map
    (QKV, (2, 64, 3, 64, 40)),
    (QKV, (5, 1, 3, 64, 72)),  # a step of decoding
    (PAIRS, (1, 70, 2, 64, 72)),
    (PAIRS, (2, 9, 3, 24, 40)),
    (ROWS, (1, 130, 3, 32, 136)),
    (FOLD, (1, 70, 3, 25, 72)),
    (GATED, (2, 5, 2, 64, 72)),
    (EVERY, (1, 140, 3, 40, 72)),
    (LARGE, (2, 64, 2, 128, 72)),
)


def run_on_hopper(plan: Plan, case: Case, *, ctas: int = 3, seed: int = 0) -> None:
    problem, config = case.problem, plan.config
    found = module.layout(problem, case.a, case.b)
    assert module.fault(plan, problem, found) is None
    tiles = int(np.prod(plan.tiles(problem))) * config.cluster
    partial = np.full(tiles * plan.pieces(problem) * config.m * config.n, np.nan, np.float32)
    counters = np.zeros(tiles * config.sharers, np.int32)
    fields = module.fields(
        *(plan, problem, case.a, case.b, case.out, case.bias, case.residual, case.scale, 4),
        *(on_hopper.encode, None, case.stages),
        partial=partial.ctypes.data,
        counters=counters.ctypes.data,
        report=0,
    )
    clusters = plan.units(problem)
    if config.joined == 1:
        clusters = min(clusters, max(1, ctas // config.ctas))
    spec = gemm_sm90(problem.dtype, config, problem.epilogue)
    on_hopper.launch(spec, clusters * config.ctas, fields, seed=seed)


@pytest.mark.parametrize("config", HOPPERS, ids=lambda c: c.name)
@pytest.mark.parametrize(
    ("kind", "sizes"), CASES, ids=lambda x: x.name if isinstance(x, EpilogueKind) else str(x)
)
def test_the_code_of_sm_90(kind: EpilogueKind, sizes: Any, config: Sm90Gemm) -> None:
    if config.fault(kind) is not None:
        pytest.skip("no such kernel")
    if config.joined > -(-sizes[-1] // 64):
        pytest.skip("nothing to join")
    case = Case.draw(sum(sizes), kind, sizes, padded=sizes[1] % 2 == 0)
    pieces = 2 if config.split and sizes[-1] > 64 else config.joined
    run_on_hopper(Plan(config, pieces), case, seed=sizes[1])
    case.compare()
    if sizes[1] % 2 == 0:
        case.around_is_left()


@pytest.mark.parametrize("joined", [1, 4, 8])
def test_the_code_of_sm_90_reads_nothing_beyond(joined: int) -> None:
    """Tails in rows and columns: what is read for them ends where memory does."""
    kind = EpilogueKind(normed=True, bias=True, activation="relu", residual=True)
    case = Case.draw(joined, kind, (1, 17, 2, 50, 456))
    case.bias, case.residual = on_host.fenced(case.bias), on_host.fenced(case.residual)
    read = {name: on_host.fenced(getattr(case.stages, name)) for name in NORMED}
    case.stages = case.stages._replace(**read)
    run_on_hopper(Plan(Sm90Gemm(128, 64, joined=joined), joined), case)
    case.compare()


@pytest.mark.parametrize("tile", GEMM_TILES, ids=lambda t: f"{t.m}x{t.n}")
@pytest.mark.parametrize(
    ("kind", "sizes"), CASES, ids=lambda x: x.name if isinstance(x, EpilogueKind) else str(x)
)
def test_the_code_of_sm_80(kind: EpilogueKind, sizes: Any, tile: GemmTile) -> None:
    config = gemm_sm80.Config(tile)
    case = Case.draw(sum(sizes), kind, sizes, padded=sizes[1] % 2 == 0)
    if config.fault(case.problem) is not None:
        pytest.skip("no such kernel")
    fields = gemm_sm80.fields(
        *(case.problem, case.a, case.b, case.out, case.bias, case.residual, case.scale),
        case.stages,
    )
    spec = config.spec(case.problem, (gemm_sm80.layout(case.a), gemm_sm80.layout(case.b)))
    on_host.launch(spec, (config.blocks(case.problem), 1), seed=sizes[1], **fields)
    case.compare()
    if sizes[1] % 2 == 0:
        case.around_is_left()


def test_every_kind_has_a_kernel_with_large_tiles() -> None:
    for kind, _ in CASES:
        legal = [c for c in GEMM_SM90_CONFIGS if c.fault(kind) is None]
        assert any(c.m * c.n >= 128 * 256 for c in legal), kind.name


# ---------------------------------------------------------------- the public function


def epilogue_of(case: Case) -> Epilogue:
    kind, s = case.kind, case.stages
    turn = None
    if kind.rotary:
        positions = s.positions.reshape(case.batch, case.seq)
        how = (positions, s.frequency, s.turned // s.head_dim, s.head_dim)
        turn = Rotary(*how, kind.rotary == "neighbours", s.magnitude)
    residual = case.residual
    if residual is not None:
        residual = residual.reshape(case.batch, case.seq, -1)
    return Epilogue(
        bias=case.bias,
        activation=kind.activation,
        residual=residual,
        gated=kind.gated,
        scale=case.scale if kind.scale else None,
        normed=Normed(s.row_statistics, s.column_sums) if kind.normed else None,
        rotary=turn,
        heads=case.heads if kind.heads else None,
        statistics=s.statistics,
    )


def run_public(case: Case) -> None:
    a = case.a.reshape(case.batch, case.seq, -1)
    out = case.out if case.kind.heads else case.out.reshape(case.batch, case.seq, -1)
    epilogue = epilogue_of(case)
    assert epilogue.kind == case.kind
    got = gemm(a, case.b.T, epilogue=epilogue)
    assert got.shape == out.shape
    case.out[...] = got.reshape(case.out.shape)


@pytest.mark.parametrize(
    ("kind", "sizes"), CASES, ids=lambda x: x.name if isinstance(x, EpilogueKind) else str(x)
)
def test_numpy(kind: EpilogueKind, sizes: Any) -> None:
    case = Case.draw(1, kind, sizes, dtype="float32")
    run_public(case)
    case.compare()


@pytest.mark.parametrize("kind", (QKV, FOLD, EVERY), ids=lambda k: k.name)
def test_numpy_of_no_sum(kind: EpilogueKind) -> None:
    """Of rows of no elements there is the epilogue of zeros."""
    case = Case.draw(1, kind, (2, 3, 2, 64, 0), dtype="float32")
    run_public(case)
    case.compare()


def test_what_does_not_fit() -> None:
    a, b = np.zeros((2, 5, 8), np.float32), np.zeros((8, 12), np.float32)
    positions, frequency = np.zeros((2, 5), np.int32), np.zeros(2, np.float32)

    def fails(error: type[Exception], text: str, x: Any = a, **how: Any) -> None:
        with pytest.raises(error, match=text):
            gemm(x, b, epilogue=Epilogue(**how))

    fails(ShapeError, "heads: got 4", heads=4)
    fails(ShapeError, "because of heads", a[0], heads=3)
    fails(ShapeError, r"statistics: got \(10, 2, 2\)", statistics=np.zeros((10, 2, 2), "f4"))
    fails(DTypeError, "statistics: got float64", statistics=np.zeros((10, 1, 2)))
    fails(ArgumentError, "contiguous", statistics=np.zeros((2, 1, 10), "f4").T)
    fails(DTypeError, "statistics: got list", statistics=[1.0])
    fails(ArgumentError, "with a, expected", statistics=a.reshape(-1)[:20].reshape(10, 1, 2))
    told = np.zeros((10, 1, 2), np.float32)
    told.flags.writeable = False
    fails(ArgumentError, "statistics: got a read-only array", statistics=told)
    fails(DTypeError, "normed: got int, expected a Normed", normed=3)
    fails(DTypeError, "rotary: got str, expected a Rotary", rotary="half")
    other = np.zeros((10, 2), np.dtype("f4").newbyteorder())
    fails(DTypeError, f"got {other.dtype.str}, expected float32", normed=Normed(other, None))
    fails(DTypeError, "normed.sums: got None", normed=Normed(np.zeros((10, 2), "f4"), None))
    fails(ShapeError, "normed.sums", normed=Normed(np.zeros((10, 2), "f4"), np.zeros(3, "f4")))
    fails(ShapeError, "positions", rotary=Rotary(positions[0], frequency, 3, 4))
    fails(DTypeError, "positions", rotary=Rotary(positions * 1.0, frequency, 3, 4))
    fails(DTypeError, "positions: got None", rotary=Rotary(None, frequency, 3, 4))
    fails(DTypeError, "frequency", rotary=Rotary(positions, positions[0], 3, 4))
    fails(DTypeError, "frequency: got None", rotary=Rotary(positions, None, 3, 4))
    fails(ShapeError, r"frequency: got \(\)", rotary=Rotary(positions, np.ones((), "f4"), 3, 4))
    for how in ({"heads": "3"}, {"head_dim": 4.0}, {"magnitude": "a"}):
        with pytest.raises(ArgumentError, match=f"{next(iter(how))}: got "):
            Rotary(positions, frequency, **{"heads": 3, "head_dim": 4, **how})
    fails(ShapeError, "rotary: got 4 of 4", rotary=Rotary(positions, frequency, 4, 4))
    fails(ShapeError, "frequency: got 2", rotary=Rotary(positions, frequency, 3, 2))
    fails(ShapeError, "head_dim", rotary=Rotary(positions, frequency, 3, 4), heads=2)
    turn = Rotary(positions, frequency, 3, 4)
    fails(UnsupportedError, "second kernel", rotary=turn, activation="relu")
    with pytest.raises(ArgumentError, match="gated"):
        Epilogue(activation="silu", gated=True, rotary=turn)
    one = np.ones(12, np.float32)
    with pytest.raises(ArgumentError, match="elements alone"):
        gemm_layer_norm(a, b, one, one, eps=1e-5, epilogue=Epilogue(heads=3))
    with pytest.raises(ArgumentError, match="epilogue: got rotary, expected"):
        after = Epilogue(rotary=Rotary(positions, frequency[:1], 3, 4))
        gemm_layer_norm(a, b, one, one, eps=1e-5, epilogue=after)


@pytest.mark.parametrize("interleaved", [False, True])
def test_sizes_of_small_types_do_not_wrap(interleaved: bool) -> None:
    a, b = (random_array(rng(3), shape, "float32") for shape in ((1, 5, 8), (8, 256)))
    positions, frequency = np.arange(5)[None], np.ones(32, np.float32)
    turns = [
        Rotary(positions, frequency, each(4), each(64), interleaved)
        for each in (int, np.int8, np.uint8)
    ]
    want, *others = (gemm(a, b, epilogue=Epilogue(rotary=turn)) for turn in turns)
    for got in others:
        np.testing.assert_array_equal(got, want)
    heads = Epilogue(rotary=turns[0], heads=np.uint8(4))
    assert type(heads.heads) is int and gemm(a, b, epilogue=heads).shape == (1, 4, 5, 64)
    wide = np.ones((8, 800), np.float32)
    assert gemm(a, wide, epilogue=Epilogue(heads=np.uint8(200))).shape == (1, 200, 5, 4)


def test_halves_that_take_a_second_kernel() -> None:
    """Head dims, and parts of heads, that the product's kernel does not turn."""
    g = rng(3)
    a, w = random_array(g, (2, 7, 16)), random_array(g, (60, 16))
    positions = g.integers(0, 99, (2, 7))
    for half in (10, 4):
        frequency = (0.5 ** np.arange(half)).astype(np.float32)
        turn = Rotary(positions, frequency, 2, 20)
        assert turn.kind is None
        split = gemm(a, w.T, epilogue=Epilogue(rotary=turn, heads=3))
        rows = gemm(a, w.T, epilogue=Epilogue(rotary=turn))
        assert np.array_equal(split.swapaxes(1, 2).reshape(rows.shape), rows)
        exact = (a @ w.T).reshape(2, 7, 3, 20).astype(np.float64)
        angle = positions[:, :, None, None] * frequency.astype(np.float64)
        x, y = exact[:, :, :2, :half].copy(), exact[:, :, :2, half : 2 * half].copy()
        exact[:, :, :2, :half] = x * np.cos(angle) - y * np.sin(angle)
        exact[:, :, :2, half : 2 * half] = y * np.cos(angle) + x * np.sin(angle)
        np.testing.assert_allclose(rows, exact.reshape(rows.shape), atol=1e-4)


# ---------------------------------------------------------------- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("kind", "sizes"), CASES, ids=lambda x: x.name if isinstance(x, EpilogueKind) else str(x)
)
def test_what_is_chosen(kind: EpilogueKind, sizes: Any, dtype: str) -> None:
    cupy = pytest.importorskip("cupy")
    for seed, seq in enumerate((sizes[1], 300, 1)):
        here = (sizes[0], seq, *sizes[2:])
        case = Case.draw(seed, kind, here, dtype=dtype, xp=cupy)
        run_public(case)
        case.compare()


@pytest.mark.gpu
@pytest.mark.parametrize("kind", (QKV, PAIRS, FOLD, LARGE, EVERY), ids=lambda k: k.name)
@pytest.mark.parametrize("config", GEMM_SM90_CONFIGS, ids=lambda c: c.name)
def test_every_configuration(config: Sm90Gemm, kind: EpilogueKind) -> None:
    cupy = pytest.importorskip("cupy")
    from stof_cupy.jit import device

    if device.facts().arch != "90a":
        pytest.skip(f"{device.facts().name} is no Hopper")
    if config.fault(kind) is not None:
        pytest.skip("no such kernel")
    dim = 128 if kind.rotary == 128 else 64
    for sizes in ((3, 320, 5, dim, 200), (2, 33, 3, dim, 72)):
        case = Case.draw(sum(sizes), kind, sizes, xp=cupy)
        how = {"bias": case.bias, "residual": case.residual, "scale": case.scale}
        plan = Plan(config, 2 if config.split else config.joined)
        if plan.config.joined not in (1, plan.pieces(case.problem)):
            continue
        module.prepare(plan, case.problem, case.a, case.b, case.out, **how, stages=case.stages)()
        case.compare()


@pytest.mark.gpu
@pytest.mark.parametrize("tile", GEMM_TILES, ids=lambda t: f"{t.m}x{t.n}")
def test_the_kernel_of_sm_80(tile: GemmTile) -> None:
    cupy = pytest.importorskip("cupy")
    config = gemm_sm80.Config(tile)
    for kind, (batch, _, heads, dim, _) in CASES:
        case = Case.draw(3, kind, (batch, 150, heads, dim, 200), xp=cupy)
        if config.fault(case.problem) is None:
            how = {"bias": case.bias, "residual": case.residual, "scale": case.scale}
            gemm_sm80.launch(
                config, case.problem, case.a, case.b, case.out, **how, stages=case.stages
            )
            case.compare()
