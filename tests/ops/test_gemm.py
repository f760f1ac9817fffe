"""The public GEMM: bad arguments everywhere, and the kernels against the oracle on a GPU."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from stof_cupy.errors import ArgumentError, DTypeError, ShapeError, UnsupportedError
from stof_cupy.jit.catalogue import GEMM_TILES
from stof_cupy.ops import gemm as module
from stof_cupy.ops import gemm_args, gemm_sm80, reference
from stof_cupy.ops.epilogue import ACTIVATIONS, Epilogue, Normed, Rotary
from stof_cupy.ops.gemm import gemm
from stof_cupy.ops.gemm_args import validate
from stof_cupy.ops.gemm_fold import row_statistics
from stof_cupy.ops.gemm_norm import gemm_layer_norm, gemm_rms_norm
from stof_cupy.testing import assert_close, poison, random_array, rng, strided

DTYPES = ("float16", "bfloat16")


@pytest.mark.parametrize(
    ("a", "b", "epilogue", "text"),
    [
        ((3,), (3, 4), {}, "a: got"),
        ((2, 3), (4, 3), {}, r"b: got \(4, 3\), expected \(3, N\)"),
        ((2, 3), (3,), {}, "b: got"),
        ((2, 3), (3, 4), {"bias": (3,)}, r"bias: got \(3,\), expected \(4,\)"),
        ((2, 3), (3, 4), {"residual": (4, 2)}, "residual"),
    ],
)
def test_shapes_that_clash_are_named(a, b, epilogue, text):
    operands = {name: np.ones(shape, np.float32) for name, shape in epilogue.items()}
    with pytest.raises(ShapeError, match=text):
        gemm(np.ones(a, np.float32), np.ones(b, np.float32), epilogue=Epilogue(**operands))


def test_other_bad_arguments():
    a, b = np.ones((2, 3), np.float32), np.ones((3, 3), np.float32)
    with pytest.raises(DTypeError, match="b: got float64"):
        gemm(a, b.astype(np.float64))
    with pytest.raises(ArgumentError, match="tanh"):
        Epilogue(activation="tanh")
    with pytest.raises(ArgumentError, match="gated"):
        Epilogue(gated=True)
    with pytest.raises(ShapeError, match="even N"):
        gemm(a, b, epilogue=Epilogue(activation="silu", gated=True))
    with pytest.raises(DTypeError, match="epilogue"):
        gemm(a, b, epilogue="gelu")
    with pytest.raises(ArgumentError, match="possibly shared with a"):
        gemm(a, b, out=a)
    for x, y, name in ((b, b.copy(), "a"), (b.copy(), b, "b")):  # no residual alone
        with pytest.raises(ArgumentError, match=f"possibly shared with {name}"):
            gemm(x, y, epilogue=Epilogue(residual=b), out=b)
    with pytest.raises(DTypeError, match="b: got None"):
        gemm(a, None)
    with pytest.raises(DTypeError, match=r"b: got <f4, expected >f4 like a"):
        gemm(a.astype(">f4"), b.astype("<f4"))
    for scale in ("2", np.ones(3), float("nan"), 1e39, True):
        with pytest.raises(ArgumentError, match=r"scale: got .*, expected a number that float32"):
            Epilogue(scale=scale)
    for activation in (np.ones(2), ["gelu"], 1):
        with pytest.raises(ArgumentError, match=r"activation: got .*, expected None, 'gelu'"):
            Epilogue(activation=activation)
    for flag in (np.ones(2), "no", 1, None):
        with pytest.raises(ArgumentError, match=r"gated: got .*, expected True or False"):
            Epilogue(activation="silu", gated=flag)
        with pytest.raises(ArgumentError, match=r"interleaved: got .*, expected True or False"):
            Rotary(np.zeros(2, np.int32), np.ones(1, np.float32), 1, 2, interleaved=flag)
    for heads in (2.0, True, "2"):
        with pytest.raises(ArgumentError, match=r"heads: got .*, expected an integer"):
            Epilogue(heads=heads)


@pytest.mark.parametrize("half", [Fraction(1, 2), Decimal("0.5"), np.float16(0.5)])
def test_numbers_of_any_type(half):
    a, w, one = np.ones((2, 4), np.float32), np.ones((4, 4), np.float32), np.ones(4, np.float32)
    assert (gemm(a, w, epilogue=Epilogue(scale=half)) == 2).all()
    turn = Rotary(np.zeros(2, np.int32), one[:2], 1, 4, magnitude=half)
    assert (gemm(a, w, epilogue=Epilogue(rotary=turn)) == 2).all()
    for norm in (gemm_layer_norm, gemm_rms_norm):
        weights = (one, one) if norm is gemm_layer_norm else (one,)
        assert np.array_equal(norm(a, w, *weights, eps=half), norm(a, w, *weights, eps=0.5))
    assert np.array_equal(row_statistics(a, eps=half), row_statistics(a, eps=0.5))


def test_sizes_that_kernels_do_not_count(monkeypatch):
    """Rows, columns and elements of K are counted in 32 bits, these ahead of what is multiplied."""
    monkeypatch.setattr(gemm_args, "backend", lambda **_: "cuda")

    def sizes(m, n, k):
        a, b = (np.broadcast_to(np.float16(0), shape) for shape in ((m, k), (k, n)))
        _, problem = validate(a, b, Epilogue(), None)
        return problem.m, problem.n, problem.k

    most, of_k = 2**31 - 256, 2**31 - 2**14
    for fits in ((most, 2, 3), (2, most, 3), (2, 3, of_k)):
        assert sizes(*fits) == fits
        with pytest.raises(UnsupportedError, match=r"M, N, K\): got .*, and K 2\^31 - 16384"):
            sizes(*(size + 1 if size > 3 else size for size in fits))


def compare(a, b, epilogue, *, view_a="", view_b="", transposed=False, tile=None):
    """Run on the GPU into poisoned memory, and compare with the oracle.

    With the kernel of sm_80 if a tile is given, else with what is chosen.
    """
    import cupy

    def upload(x):
        return None if x is None else cupy.asarray(x)

    on_a, on_b = upload(a), upload(b.T.copy()).T if transposed else upload(b)
    on_a = strided(on_a)[view_a] if view_a else on_a
    on_b = strided(on_b)[view_b] if view_b else on_b
    operands = {name: epilogue.get(name) for name in ("bias", "residual")}
    how = {name: x for name, x in epilogue.items() if name not in operands}
    on_gpu = Epilogue(**how, **{k: upload(x) for k, x in operands.items()})
    columns = b.shape[1] // (2 if epilogue.get("gated") else 1)
    out = poison((*a.shape[:-1], columns), a.dtype, cupy)
    if tile is None:
        got = gemm(on_a, on_b, epilogue=on_gpu, out=out)
    else:
        _, problem = validate(on_a, on_b, on_gpu, out)
        got = module._launch(problem, on_a, on_b, on_gpu, out, gemm_sm80.Config(tile))
    assert got is out
    exact = reference.gemm(a, b, **how, **operands)
    low = reference.gemm(a, b, **how, **operands, precision=a.dtype.name)
    assert_close(got, exact, low)


def draw(g, m, n, k, dtype, *, bias, activation, residual, gated=False):
    a = random_array(g, (m, k), dtype)
    columns = 2 * n if gated else n
    b = random_array(g, (k, columns), dtype, scale=max(k, 1) ** -0.5)
    epilogue = {"activation": activation, "gated": gated}
    if bias:
        epilogue["bias"] = random_array(g, (columns,), dtype)
    if residual:
        epilogue["residual"] = random_array(g, (m, n), dtype)
    return a, b, epilogue


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("bias", "activation", "residual"),
    list(product((False, True), (None, *ACTIVATIONS), (False, True))),
)
def test_epilogues(bias, activation, residual, dtype):
    g = rng(11)
    for m, n, k in ((200, 136, 96), (1, 72, 40), (17, 33, 1000)):
        compare(
            *draw(g, m, n, k, dtype, bias=bias, activation=activation, residual=residual),
            transposed=True,
        )


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gates(activation, dtype):
    g = rng(21)
    how = {"bias": True, "activation": activation, "residual": True, "gated": True}
    # Where sm_90 has a kernel, and where it has not: halves that are not of whole 8 columns.
    for m, n, k in ((300, 192, 96), (17, 72, 40), (130, 33, 100), (1, 5, 64)):
        a, b, epilogue = draw(g, m, n, k, dtype, **how)
        compare(a, b, {**epilogue, "scale": 0.5}, transposed=True)
        compare(a, b, epilogue)


@pytest.mark.gpu
@pytest.mark.parametrize("view", ["", "slice", "reversed", "rows"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("tile", GEMM_TILES, ids=lambda t: f"{t.m}x{t.n}")
def test_the_kernel_of_sm_80(tile, transposed, view):
    g = rng(22)
    for m, n, k in ((1, 72, 40), (300, 520, 200), (2000, 1000, 328), (130, 33, 100)):
        how = {"bias": True, "activation": "silu", "residual": True, "gated": m % 100 == 0}
        a, b, epilogue = draw(g, m, n, k, DTYPES[m % 2], **how)
        compare(a, b, epilogue, transposed=transposed, view_b="" if transposed else view, tile=tile)
        compare(a, b, epilogue, transposed=transposed, view_a=view, tile=tile)


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(60))
def test_random_shapes_and_strides(seed):
    g = rng(seed)
    m, n, k = (int(g.choice([1, 2, 7, 16, 17, 63, 64, 65, 100, 127, 129, 300])) for _ in "mnk")
    if seed % 5 == 0:
        m, n = 2500, 1100  # enough tiles for the large configuration
    names = ["", "rows", "slice", "reversed"]
    a, b, epilogue = draw(
        g,
        m,
        n,
        k,
        DTYPES[seed % 2],
        bias=bool(g.integers(2)),
        activation=None,
        residual=bool(g.integers(2)),
    )
    compare(
        a,
        b,
        epilogue,
        view_a=str(g.choice(names)),
        view_b=str(g.choice(names)) if seed % 3 else "",
        transposed=seed % 3 == 0,
    )


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_many_slices(dtype):
    case = draw(rng(16), 2500, 1100, 1000, dtype, bias=True, activation="gelu", residual=True)
    for tile in (None, *GEMM_TILES):
        compare(*case, transposed=True, tile=tile)


@pytest.mark.gpu
def test_results_in_strided_memory():
    import cupy

    a, b, epilogue = draw(rng(17), 60, 50, 64, "float16", bias=0, activation=None, residual=1)
    wide = strided(cupy.asarray(epilogue["residual"]))["slice"]
    exact = reference.gemm(a, b, residual=epilogue["residual"])
    low = reference.gemm(a, b, residual=epilogue["residual"], precision="float16")
    on_a, on_b = cupy.asarray(a), cupy.asarray(b)
    out = poison((60, 3, 50), "float16", cupy)[:, 1]
    assert gemm(on_a, on_b, epilogue=Epilogue(residual=wide), out=out) is out
    assert_close(out, exact, low)
    # Leading axes that do not collapse into rows: written through a copy.
    out = poison((4, 15, 50), "float16", cupy).transpose(1, 0, 2)
    got = gemm(on_a.reshape(15, 4, 64), on_b, out=out)
    assert got is out
    plain = reference.gemm(a, b).reshape(15, 4, 50)
    assert_close(out, plain, reference.gemm(a, b, precision="float16").reshape(15, 4, 50))


@pytest.mark.gpu
def test_leading_axes_and_an_empty_sum():
    import cupy

    g = rng(12)
    a = random_array(g, (2, 3, 5, 24), "float16")
    w = random_array(g, (24, 10), "float16")
    compare(a, w, {"bias": random_array(g, (10,), "float16")})
    view = cupy.asarray(a).transpose(1, 0, 2, 3)  # leading axes that do not collapse
    got = gemm(view, cupy.asarray(w))
    exact = reference.gemm(a.transpose(1, 0, 2, 3), w)
    assert_close(got, exact, reference.gemm(a.transpose(1, 0, 2, 3), w, precision="float16"))
    bias = cupy.arange(10, dtype=np.float16)
    none = gemm(
        cupy.ones((3, 0), np.float16), cupy.ones((0, 10), np.float16), epilogue=Epilogue(bias=bias)
    )
    assert (none == bias).all()


@pytest.mark.gpu
def test_the_residual_may_be_written_in_place():
    import cupy

    g = rng(13)
    a, b, epilogue = draw(g, 300, 200, 64, "float16", bias=True, activation=None, residual=True)
    residual = cupy.asarray(epilogue["residual"])
    stages = Epilogue(bias=cupy.asarray(epilogue["bias"]), residual=residual)
    apart = gemm(cupy.asarray(a), cupy.asarray(b), epilogue=stages)
    same = gemm(cupy.asarray(a), cupy.asarray(b), epilogue=stages, out=residual)
    assert same is residual and cupy.array_equal(same, apart)


@pytest.mark.gpu
def test_offsets_beyond_two_to_the_31():
    import cupy

    rows, k = 17_000_000, 128
    a = cupy.zeros((rows, k), np.float16)
    g = rng(14)
    tail = random_array(g, (70, k), "float16")
    w = random_array(g, (k, 8), "float16")
    a[-70:] = cupy.asarray(tail)
    got = gemm(a, cupy.asarray(w))[-70:]
    assert_close(got, reference.gemm(tail, w), reference.gemm(tail, w, precision="float16"))


@pytest.mark.gpu
def test_what_the_gpu_refuses():
    import cupy

    x = cupy.zeros((4, 4), np.float32)
    with pytest.raises(UnsupportedError, match="a: got float32 on CUDA"):
        gemm(x, x)
    with pytest.raises(DTypeError, match="b: got numpy array"):
        gemm(x, x.get())


def test_numpy_takes_an_empty_sum_and_a_transposed_weight():
    bias = np.arange(10, dtype=np.float32)
    none = gemm(np.ones((3, 0), np.float32), np.ones((0, 10), np.float32), epilogue=Epilogue(bias))
    assert (none == bias).all()
    g = rng(15)
    a, w = random_array(g, (2, 5, 24)), random_array(g, (10, 24))
    np.testing.assert_allclose(gemm(a, w.T), reference.gemm(a, w.T), atol=1e-5)


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_matrices_are_refused_as_masked_arrays_are():
    a = np.ones((2, 3), np.float32)
    for other, hint in ((np.matrix(a), "numpy.asarray"), (np.ma.array(a), "import_array")):
        with pytest.raises(DTypeError, match=f"a: got .*{hint}"):
            gemm(other, a.T)
    with pytest.raises(DTypeError, match="x: got matrix"):
        row_statistics(np.matrix(a), eps=1e-5)
    sums = np.ones(2, np.float32)
    with pytest.raises(DTypeError, match=r"normed\.statistics: got matrix"):
        # NumPy 2.5 has no third axis of a matrix, and crashed.
        gemm(a, a.T, epilogue=Epilogue(normed=Normed(np.matrix(a[:, :2]), sums)))


def test_complex_numbers_are_no_numbers_of_an_epilogue():
    for number in (2j, np.complex64(2 + 1j), np.complex128(2)):
        with pytest.raises(ArgumentError, match=r"scale: got .*expected a number"):
            Epilogue(scale=number)
        with pytest.raises(ArgumentError, match="eps: got"):
            row_statistics(np.ones((1, 2), np.float32), eps=number)
