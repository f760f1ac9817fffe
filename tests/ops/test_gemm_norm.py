"""Products with normalised rows: on NumPy, and the kernels on a GPU."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from stof_cupy.errors import ArgumentError, DTypeError, ShapeError
from stof_cupy.jit.gemm_sm90 import Sm90Gemm
from stof_cupy.ops import gemm_norm as module
from stof_cupy.ops import reference, reference_decoder
from stof_cupy.ops.epilogue import Epilogue
from stof_cupy.ops.gemm_args import validate
from stof_cupy.ops.gemm_norm import gemm_layer_norm, gemm_rms_norm
from stof_cupy.ops.gemm_sm90 import Norm, Plan
from stof_cupy.testing import assert_close, poison, random_array, rng

EPS = 1e-6


def draw(g: Any, m: int, n: int, k: int, dtype: str) -> dict[str, Any]:
    return {
        "a": random_array(g, (m, k), dtype),
        "w": random_array(g, (n, k), dtype, scale=k**-0.5),
        "weight": random_array(g, (n,), dtype),
        "shift": random_array(g, (n,), dtype),
        "bias": random_array(g, (n,), dtype),
        "residual": random_array(g, (m, n), dtype),
    }


def oracle(x: dict[str, Any], dtype: str, *, centred: bool = True) -> tuple[Any, Any]:
    def one(**how: str) -> Any:
        added = {name: x[name] for name in ("bias", "residual")}
        product = reference.gemm(x["a"], x["w"].T, **added, **how)
        if not centred:
            return reference_decoder.rms_norm(product, x["weight"], eps=EPS, **how)
        return reference.layer_norm(product, x["weight"], x["shift"], eps=EPS, **how)

    return one(), one(precision=dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_on_numpy(dtype: str) -> None:
    x = draw(rng(1), 5, 40, 24, dtype)
    epilogue = Epilogue(bias=x["bias"], residual=x["residual"])
    got = gemm_layer_norm(
        x["a"], x["w"].T, x["weight"], x["shift"], eps=EPS, epilogue=epilogue, out=x["residual"]
    )
    assert got is x["residual"]
    x = draw(rng(1), 5, 40, 24, dtype)
    assert_close(got, *oracle(x, dtype))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_rms_norm_on_numpy(dtype: str) -> None:
    x = draw(rng(2), 5, 40, 24, dtype)
    epilogue = Epilogue(bias=x["bias"], residual=x["residual"])
    got = gemm_rms_norm(x["a"], x["w"].T, x["weight"], eps=EPS, epilogue=epilogue)
    assert_close(got, *oracle(x, dtype, centred=False))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("centred", [False, True])
def test_a_residual_that_the_norm_adds(monkeypatch: Any, dtype: str, centred: bool) -> None:
    seen = []
    every = module.gemm
    monkeypatch.setattr(module, "gemm", lambda *a, **how: seen.append(how) or every(*a, **how))
    x = draw(rng(4), 5, 40, 24, dtype)
    norm = Norm(x["weight"], x["shift"] if centred else None, EPS)
    rows = np.concatenate([x["residual"]] * 2)
    for out in (None, poison(x["residual"].shape, rows.dtype), rows[:5], rows[1:6]):
        residual = rows[:5].copy() if out is None or out.base is None else rows[:5]
        epilogue = Epilogue(bias=x["bias"], residual=residual)
        late = module.may_be_late(epilogue, out)
        assert late == (out is None or out.base is None)
        if out is None or out.base is None or out.ctypes.data == rows.ctypes.data:
            got = module.apart(x["a"], x["w"].T, epilogue, norm, out, late=late)
            assert out is None or got is out
            assert_close(got, *oracle(x, dtype, centred=centred))
            assert (seen.pop()["epilogue"].residual is None) == late
    assert not module.may_be_late(Epilogue(), None)


def test_bad_arguments() -> None:
    a, b, w = np.ones((2, 3), np.float32), np.ones((3, 4), np.float32), np.ones(4, np.float32)
    with pytest.raises(ShapeError, match="weight: got"):
        gemm_layer_norm(a, b, w[:3], w, eps=EPS)
    with pytest.raises(DTypeError, match="bias: got float64"):
        gemm_layer_norm(a, b, w, w.astype(np.float64), eps=EPS)
    for eps in (0.0, "1e-5", None, np.ones(2)):
        with pytest.raises(ArgumentError, match=r"eps: got .*, expected a positive number"):
            gemm_layer_norm(a, b, w, w, eps=eps)
    with pytest.raises(ShapeError, match="weight: got"):
        gemm_rms_norm(a, b, w[:3], eps=EPS)
    with pytest.raises(ShapeError, match="at least one column"):
        gemm_layer_norm(a, b[:, :0], w[:0], w[:0], eps=EPS)


def upload(cupy: Any, x: dict[str, Any]) -> dict[str, Any]:
    return {name: cupy.asarray(value) for name, value in x.items()}


@pytest.mark.gpu
def test_weights_of_the_norm_lie_where_the_product_does(monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    monkeypatch.setattr(module, "_choose", lambda *_: Plan(Sm90Gemm(128, 64, across=1)))
    a, b, w = cupy.ones((64, 32), "f2"), cupy.ones((32, 64), "f2"), cupy.ones(64, "f2")
    for weight, bias, name in ((w.get(), w, "weight"), (w, w.get(), "bias")):
        with pytest.raises(DTypeError, match=f"{name}: got numpy array"):
            gemm_layer_norm(a, b, weight, bias, eps=EPS)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        *((1, 64, 64), (300, 43, 72), (127, 768, 768), (3000, 1024, 200), (700, 1728, 136)),
        *((2500, 2048, 264), (500, 576, 72), (260, 2047, 72), (17, 512, 1000)),
    ],
)
def test_every_width(hopper: Any, m: int, n: int, k: int, dtype: str) -> None:
    """All tiles that have the columns, whether or not they would be chosen."""
    x = draw(rng(m), m, n, k, dtype)
    on = upload(hopper, x)
    epilogue = Epilogue(bias=on["bias"], residual=on["residual"])
    _, problem = validate(on["a"], on["w"].T, epilogue, None)
    centred = n != 768  # the others are divided by the root of their mean square
    norm = Norm(on["weight"], on["shift"] if centred else None, EPS)
    exact, low = oracle(x, dtype, centred=centred)
    for tile, turns in product((64, 128, 192, 256), (False, True)):
        config = Sm90Gemm(128, tile, pingpong=turns, across=-(-n // tile))
        if config.fault(problem.epilogue) is not None:
            continue
        plan = Plan(config)
        out = poison((m, n), on["a"].dtype, hopper)
        module.launch(plan, problem, on["a"], on["w"].T, epilogue, norm, out)
        assert_close(out, exact, low)
        again = poison((m, n), on["a"].dtype, hopper)
        module.launch(plan, problem, on["a"], on["w"].T, epilogue, norm, again)
        assert hopper.array_equal(again.view("u2"), out.view("u2"))


@pytest.mark.gpu
@pytest.mark.parametrize("m", [5, 5000])
def test_what_is_chosen(m: int) -> None:
    import cupy

    x = draw(rng(m), m, 768, 200, "bfloat16")
    on = upload(cupy, x)
    epilogue = Epilogue(bias=on["bias"], residual=on["residual"])
    got = gemm_layer_norm(
        on["a"],
        on["w"].T,
        on["weight"],
        on["shift"],
        eps=EPS,
        epilogue=epilogue,
        out=on["residual"],
    )
    assert got is on["residual"]
    assert_close(got, *oracle(x, "bfloat16"))
