"""Tensor maps: which there are, what the driver is asked for, and how kernels take them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stof_cupy.errors import ArgumentError, DeviceError
from stof_cupy.jit import nvrtc, tensormap
from stof_cupy.jit.compile import compile_cubin
from stof_cupy.jit.spec import TENSOR_MAP, KernelSpec

GOOD: dict[str, Any] = {
    "address": 1 << 40,
    "dtype": "bfloat16",
    "dims": (40, 1000, 3, 2),
    "strides": (80, 80_000, 240_000),
    "box": (64, 128, 1, 1),
}


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Any, ...]]]:
    """Return what a driver that fills maps with 7s has been asked."""
    asked: list[tuple[Any, ...]] = []

    def encode(to: Any, dtype: Any, rank: Any, address: Any, *rest: Any) -> int:
        assert to.value % 128 == 0
        ctypes.memset(to, 7, 128)
        values = [list(x) if isinstance(x, ctypes.Array) else x.value for x in rest]
        asked.append((dtype.value, rank.value, address.value, *values))
        return 0 if rest[2][1] != 13 else 1

    monkeypatch.setattr(tensormap, "_encoder", lambda: encode)
    tensormap.tensor_map.cache_clear()
    yield asked
    tensormap.tensor_map.cache_clear()


def test_the_driver_is_asked_once(driver: list[tuple[Any, ...]]) -> None:
    for _ in range(2):
        assert tensormap.tensor_map(**GOOD) == b"\7" * 128
    dims, strides, box = (list(GOOD[name]) for name in ("dims", "strides", "box"))
    # Element type, rank, address; then no interleaving, 128-byte swizzle and L2 lines, zeros.
    assert driver == [(9, 4, 1 << 40, dims, strides, box, [1] * 4, 0, 3, 2, 0)]
    tensormap.tensor_map(**{**GOOD, "address": 16})
    assert len(driver) == 2


def test_a_refusal_of_the_driver_says_what_was_asked(driver: list[tuple[Any, ...]]) -> None:
    with pytest.raises(DeviceError, match=r"status 1 for .*box=\(64, 13, 1, 1\)"):
        tensormap.tensor_map(**{**GOOD, "box": (64, 13, 1, 1)})


@pytest.mark.parametrize(
    "change, named",
    [
        ({"address": 8}, "address: got 8"),
        ({"address": 0}, "address"),
        ({"dtype": "float64"}, "float64"),
        ({"dims": (0, 1000, 3, 2)}, "dims"),
        ({"dims": (2**32 + 1, 1000, 3, 2)}, "dims"),
        ({"dims": (40, 1000, 3)}, "3 dims and 3 strides"),
        ({"strides": (72, 80_000, 240_000)}, "strides"),
        ({"strides": (-80, 80_000, 240_000)}, "strides"),
        ({"strides": (80, 0, 240_000)}, "strides"),
        ({"strides": (80, 80_000, 2**40)}, "strides"),
        ({"box": (64, 257, 1, 1)}, "box"),
        ({"box": (64, 128, 1)}, "box"),
        ({"box": (65, 128, 1, 1)}, "130 bytes wide"),
        ({"box": (72, 128, 1, 1)}, "144 bytes wide, expected a multiple of 16 up to 128"),
        ({"swizzle": 100}, "swizzle"),
    ],
)
def test_what_there_is_no_map_of(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ArgumentError, match=named):
        tensormap.tensor_map(**{**GOOD, **change})


def test_a_wide_box_without_swizzle() -> None:
    assert tensormap.fault(**{**GOOD, "box": (128, 128, 1, 1)}) is not None
    assert tensormap.fault(**{**GOOD, "box": (128, 128, 1, 1)}, swizzle=0) is None


@pytest.mark.parametrize("shape", [(2, 3, 5, 8), (1, 3, 5, 8), (2, 1, 1, 8), (1, 1, 1, 8)])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3)])
def test_layouts_find_every_element(shape: tuple[int, ...], order: tuple[int, ...]) -> None:
    lying = np.arange(np.prod(shape), dtype=np.float16).reshape([shape[axis] for axis in order])
    x = lying.transpose(np.argsort(order))
    dims, strides = tensormap.layout(x.shape, x.strides)
    assert dims == x.shape[::-1] and all(step % 16 == 0 and step > 0 for step in strides)
    for place in np.ndindex(shape):
        offset = place[3] + sum(i * s // 2 for i, s in zip(place[2::-1], strides, strict=True))
        assert lying.ravel()[offset] == x[place]


def test_a_machine_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Callable[..., int]:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    tensormap._encoder.cache_clear()
    with pytest.raises(DeviceError, match=r"libcuda\.so\.1"):
        tensormap.tensor_map(**{**GOOD, "address": 32})
    tensormap._encoder.cache_clear()


KERNEL = """\
#pragma once
struct alignas(64) Map { unsigned char opaque[128]; };
struct Toy {
    struct Params { int first; Map map; short small; Map other; int last; };
    static constexpr int kThreads = 32, kSmemBytes = 0, kMinBlocks = 1;
    static __device__ void run(const Params&, char*) {}
};
"""


def test_maps_in_params_are_where_the_compiler_puts_them(
    tmp_path: Path, library: nvrtc.Library
) -> None:
    (tmp_path / "toy.cuh").write_text(KERNEL)
    params = (("first", "i4"), ("map", TENSOR_MAP), ("small", "i2"), ("other", TENSOR_MAP))
    spec = KernelSpec("toy", "toy.cuh", "Toy", (*params, ("last", "i4")), 32, 0)
    dtype = spec.params_dtype()
    fields = dtype.fields or {}
    assert [fields[name][1] for name in dtype.names or ()] == [0, 64, 192, 256, 384]
    assert dtype.itemsize == 448
    compile_cubin(spec, "80", library, root=tmp_path)  # it compares all of that
    map_ = bytes(range(128))
    packed = np.array([(1, map_, 2, map_[::-1], 3)], dtype)
    assert packed.tobytes()[64:192] == map_ and packed.tobytes()[256:384] == map_[::-1]


def test_other_params_are_as_before(spec: KernelSpec) -> None:
    assert replace(spec).params_dtype().isalignedstruct


@pytest.mark.gpu
def test_the_real_driver_encodes() -> None:
    import cupy

    x = cupy.zeros((2, 3, 1000, 40), np.float16)
    where = tensormap.layout(x.shape, x.strides)
    made = tensormap.tensor_map(x.data.ptr, "float16", *where, (64, 128, 1, 1))
    assert len(made) == 128 and any(made)
