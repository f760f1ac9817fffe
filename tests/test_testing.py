from __future__ import annotations

import time

import numpy as np
import pytest

from stof_cupy.errors import ArgumentError
from stof_cupy.testing import (
    assert_close,
    budget,
    poison,
    random_array,
    rng,
    strided,
    time_ms,
)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_random_arrays_follow_seed_type_and_scale(dtype: str) -> None:
    a, b = (random_array(rng(7), (100, 100), dtype, scale=3) for _ in range(2))
    assert a.dtype.name == dtype
    np.testing.assert_array_equal(a, b)
    assert a.astype(float).std() == pytest.approx(3, rel=0.05)
    assert (random_array(rng(8), (100, 100), dtype) != a).any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32", "bool"])
def test_strided_views_are_equal_but_lie_otherwise(dtype: str) -> None:
    a = (random_array(rng(0), (2, 3, 5, 4)) * 9).astype(random_dtype(dtype))
    views = strided(a)
    assert set(views) == {"rows", "slice", "reversed", "transposed"}
    for view in views.values():
        np.testing.assert_array_equal(view, a)
        assert view.dtype == a.dtype
        assert view.strides != a.strides
        assert view.strides[-1] == a.itemsize
    assert set(strided(a[0, 0])) == {"rows", "slice", "reversed"}


def random_dtype(name: str) -> np.dtype:  # type: ignore[type-arg]
    return random_array(rng(0), (1,), name).dtype if "float" in name else np.dtype(name)


def test_poison_lies_between_the_elements_of_views() -> None:
    base = strided(np.zeros((3, 4), np.float32))["rows"].base
    assert np.isnan(base).sum() == 12


def test_poison() -> None:
    assert np.isnan(poison((2, 3), "bfloat16").astype(float)).all()
    assert (poison((2,), np.int32) == 2**31 - 1).all()
    assert poison((2,), bool).all()


def test_budget_is_twice_the_low_precision_error_and_a_floor() -> None:
    exact = np.array([2.0, -4.0, np.nan, -np.inf])
    floor = budget(exact, exact, "float32")
    assert floor == pytest.approx(4 * 33 * 2**-23)
    low = exact + np.array([0.5, 0, 0, 0])
    assert budget(exact, low, "float32") == pytest.approx(1 + floor)
    assert budget(exact, exact, "bfloat16") == pytest.approx(4 * (2**-7 + 2**-18))
    assert budget(exact, exact, "float64") < 1e-13
    assert budget(np.zeros((0, 3)), np.zeros((0, 3)), "float16") == 0


@pytest.mark.parametrize("bad", [1.1, np.nan, np.inf, -np.inf])
def test_assert_close_refuses_one_wrong_element(bad: float) -> None:
    exact = np.ones((3, 4))
    got = np.ones((3, 4), np.float32)
    assert_close(got, exact, exact)
    got[1, 2] = bad
    with pytest.raises(AssertionError, match=r"at \(1, 2\).* 1 of 12 beyond"):
        assert_close(got, exact, exact)


def test_assert_close_refuses_the_result_as_its_own_budget() -> None:
    got = np.zeros(3, np.float32)
    with pytest.raises(ArgumentError, match="lowprec: got the result itself") as caught:
        assert_close(got, np.ones(3), got)
    assert isinstance(caught.value, ValueError)


def test_assert_close_wants_special_values_in_their_place() -> None:
    exact = np.array([np.nan, np.inf, -np.inf, 1])
    assert_close(exact.astype(np.float32), exact, exact)
    for wrong in ([0, np.inf, -np.inf, 1], [np.nan, -np.inf, -np.inf, 1], [np.nan, 3, -np.inf, 1]):
        with pytest.raises(AssertionError):
            assert_close(np.array(wrong, np.float32), exact, exact)


def test_assert_close_wants_the_shape() -> None:
    with pytest.raises(AssertionError, match=r"expected shape \(1, 3\)"):
        assert_close(np.ones(3, np.float32), np.ones((1, 3)), np.ones((1, 3)))


def test_assert_close_takes_infinity_for_what_the_type_cannot_hold() -> None:
    exact = np.array([1e6, 1.0])
    assert_close(np.array([np.inf, 1], np.float16), exact, exact)


def test_time_ms_measures_and_orders() -> None:
    times = time_ms(lambda: time.sleep(0.003), repeat=5, warmup=0)
    assert 3 <= times.p20 <= times.p50 <= times.p80 < 300
    calls: list[int] = []
    time_ms(lambda: calls.append(1), repeat=4, warmup=2)
    assert len(calls) == 6
    with pytest.raises(ArgumentError, match="repeat: got 0"):
        time_ms(lambda: None, repeat=0)


@pytest.mark.gpu
def test_time_ms_measures_the_device() -> None:
    cupy = pytest.importorskip("cupy")
    a = cupy.ones((4096, 4096), cupy.float32)
    small, large = (time_ms(lambda n=n: a[:n] + 1, xp=cupy).p50 for n in (4, 4096))
    assert 0 < small < large


@pytest.mark.gpu
def test_helpers_work_on_cupy_arrays() -> None:
    cupy = pytest.importorskip("cupy")
    for dtype in ("float16", "bfloat16", "float32"):
        a = random_array(rng(0), (2, 3, 4), dtype, xp=cupy)
        host = random_array(rng(0), (2, 3, 4), dtype).astype(float)
        for view in strided(a).values():
            assert isinstance(view, cupy.ndarray)
            assert_close(view, host, host)
        assert np.isnan(poison((3,), dtype, cupy).get().astype(float)).all()
