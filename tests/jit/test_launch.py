from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stof_cupy import env
from stof_cupy.errors import ArgumentError, UnsupportedError
from stof_cupy.jit import device, launch
from stof_cupy.jit.cache import Store
from stof_cupy.jit.spec import TENSOR_MAP, KernelSpec

FIELDS = {"x": 1 << 47, "y": 3, "n": -5, "alpha": 0.5, "shift": 7}


class FakeCupy:
    """Remembers what is loaded and launched; the current device is an attribute."""

    def __init__(self) -> None:
        self.current = 0
        self.modules: list[tuple[str, int]] = []
        self.launches: list[tuple[Any, ...]] = []
        self.cuda = SimpleNamespace(Device=self._switch)

    def _switch(self, device_id: int) -> nullcontext[None]:
        self.current = device_id
        return nullcontext()

    def RawModule(self, *, path: str) -> SimpleNamespace:  # noqa: N802
        self.modules.append((path, self.current))
        time.sleep(0.01)  # gives other threads the time to load it too
        return SimpleNamespace(get_function=self._function)

    def _function(self, symbol: str) -> SimpleNamespace:
        def run(grid: Any, block: Any, args: Any, shared_mem: int = 0) -> None:
            self.launches.append((symbol, grid, block, args, shared_mem))

        self.raw = SimpleNamespace(kernel=run)
        return self.raw


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> FakeCupy:
    fake = FakeCupy()
    store = SimpleNamespace(
        get=lambda spec, arch: SimpleNamespace(path=Path(f"/store/{spec.name}-{arch}"))
    )
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(launch, "_kernels", {})
    monkeypatch.setattr(launch, "_store", lambda root: store)
    monkeypatch.setattr(device, "current", lambda: fake.current)
    monkeypatch.setattr(
        device,
        "facts",
        lambda _: SimpleNamespace(arch="80", name="A100", smem_per_block_optin=166912),
    )
    return fake


def test_pack_is_a_void_scalar_with_the_spec_s_layout(spec: KernelSpec, cupy: FakeCupy) -> None:
    packed = launch.kernel(spec).pack(**FIELDS)
    assert type(packed) is np.void and packed.dtype == spec.params_dtype()
    expected = np.array([(1 << 47, 3, -5, 0.5, 7)], spec.params_dtype())
    assert packed.tobytes() == expected.tobytes()


def test_pack_puts_tensor_maps_and_numbers_where_numpy_does(
    spec: KernelSpec, cupy: FakeCupy
) -> None:
    params = (("n", "i4"), ("map", TENSOR_MAP), ("x", "u8"), ("k", "i4"), ("other", TENSOR_MAP))
    values = (-5, b"\1" * 128, 1 << 47, 7, bytes(range(128)))
    mapped = replace(spec, params=params)
    names = [name for name, _ in params]
    packed = launch.kernel(mapped).pack(**dict(zip(names, values, strict=True)))
    assert packed.dtype == mapped.params_dtype()
    assert [packed[name].tobytes() for name in ("map", "other")] == [values[1], values[4]]
    assert [packed[name] for name in ("n", "x", "k")] == [values[0], values[2], values[3]]


@pytest.mark.parametrize("code, value", [("(3,)u1", b"\1\2\3"), ("i2", -5)])
def test_pack_of_what_struct_does_not_know(
    spec: KernelSpec, cupy: FakeCupy, code: str, value: Any
) -> None:
    other = replace(spec, params=(("n", "i4"), ("x", code)))
    value = np.frombuffer(value, np.uint8) if isinstance(value, bytes) else value
    packed = launch.kernel(other).pack(n=1, x=value)
    assert packed["n"] == 1 and np.array_equal(packed["x"], value)


@pytest.mark.parametrize("fields", [{}, {**FIELDS, "more": 1}, {**FIELDS, "beta": FIELDS["alpha"]}])
def test_pack_wants_every_field_and_no_other(
    spec: KernelSpec, cupy: FakeCupy, fields: dict[str, Any]
) -> None:
    with pytest.raises(ArgumentError, match=r"params of axpy_f32: got .*, expected \['alpha', 'n'"):
        launch.kernel(spec).pack(**fields)


@pytest.mark.skipif(np.__version__ < "2", reason="CuPy needs NumPy 2; before, it wrapped around")
def test_pack_does_not_wrap_around(spec: KernelSpec, cupy: FakeCupy) -> None:
    with pytest.raises(OverflowError):
        launch.kernel(spec).pack(**{**FIELDS, "shift": 1 << 31})


def test_launch(spec: KernelSpec, cupy: FakeCupy) -> None:
    kernel = launch.kernel(spec)
    params = kernel.pack(**FIELDS)
    kernel((4, 2), params)
    assert cupy.launches == [("stof_axpy_f32", (4, 2), (128, 1, 1), (params,), 1024)]


@pytest.mark.parametrize("grid", [(0,), (3, 0), (1, 1, 0)])
def test_empty_grid_launches_nothing(
    spec: KernelSpec, cupy: FakeCupy, grid: tuple[int, ...]
) -> None:
    kernel = launch.kernel(spec)
    kernel(grid, kernel.pack(**FIELDS))
    assert cupy.launches == []


def test_one_module_per_spec_and_device(spec: KernelSpec, cupy: FakeCupy) -> None:
    first, other = launch.kernel(spec), launch.kernel(spec, device_id=1)
    cupy.current = 0
    assert launch.kernel(replace(spec)) is first and launch.kernel(spec, 0) is first
    assert launch.kernel(spec, 1) is other and other is not first
    second = launch.kernel(replace(spec, name="again"))
    assert second is not first
    path = "/store/axpy_f32-80"
    assert cupy.modules == [(path, 0), (path, 1), ("/store/again-80", 0)]
    assert launch.loaded() == ["again", "axpy_f32"]


def test_threads_load_it_once(spec: KernelSpec, cupy: FakeCupy) -> None:
    together = threading.Barrier(8)

    def get(_: int) -> launch.Kernel:
        together.wait()
        return launch.kernel(spec)

    with ThreadPoolExecutor(8) as pool:
        kernels = list(pool.map(get, range(8)))
    assert len({id(kernel) for kernel in kernels}) == 1 and len(cupy.modules) == 1


@pytest.mark.parametrize("smem_bytes, raised", [(48 << 10, False), ((48 << 10) + 16, True)])
def test_smem_limit_is_raised_where_needed(
    spec: KernelSpec, cupy: FakeCupy, smem_bytes: int, raised: bool
) -> None:
    launch.kernel(replace(spec, smem_bytes=smem_bytes))
    limit = getattr(cupy.raw, "max_dynamic_shared_size_bytes", None)
    assert limit == (smem_bytes if raised else None)


def test_more_smem_than_the_device_has(spec: KernelSpec, cupy: FakeCupy) -> None:
    with pytest.raises(UnsupportedError, match="got 200000, expected at most 166912 on A100"):
        launch.kernel(replace(spec, smem_bytes=200000))
    assert cupy.modules == [] and launch.loaded() == []


@pytest.fixture
def on_device(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Launch from a store in tmp_path, with the toy's device code."""
    store = Store(tmp_path / "kernels", device_code=root)
    monkeypatch.setattr(launch, "_kernels", {})
    monkeypatch.setattr(launch, "_store", lambda _: store)
    return store


@pytest.mark.gpu
@pytest.mark.parametrize("n", [1, 127, 128, 12345])
def test_axpy_on_the_device(spec: KernelSpec, on_device: Store, n: int) -> None:
    import cupy

    rng = np.random.default_rng(n)
    x, y = rng.standard_normal((2, n)).astype(np.float32)
    dx, dy = cupy.asarray(x), cupy.asarray(y)
    kernel = launch.kernel(spec)
    params = kernel.pack(x=dx.data.ptr, y=dy.data.ptr, n=n, alpha=0.5, shift=3)
    kernel((0,), params)
    np.testing.assert_array_equal(cupy.asnumpy(dy), y)
    kernel((-(-n // 128),), params)
    np.testing.assert_allclose(cupy.asnumpy(dy), y + (np.float32(0.5) * x + 3), rtol=1e-6)
    assert launch.loaded() == ["axpy_f32"] and on_device.get(spec, device.facts().arch).hit


@pytest.mark.gpu
def test_launch_is_on_the_current_stream(spec: KernelSpec, on_device: Store) -> None:
    import cupy

    kernel = launch.kernel(spec)
    x, y = cupy.ones(1000, "float32"), cupy.zeros(1000, "float32")
    params = kernel.pack(x=x.data.ptr, y=y.data.ptr, n=1000, alpha=1.0, shift=0)
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        kernel((8,), params)
        graph = stream.end_capture()
        stream.synchronize()
        assert float(y.sum()) == 0
        graph.launch()
        graph.launch()
        stream.synchronize()
    assert float(y.sum()) == 2000


@pytest.mark.gpu
@pytest.mark.parametrize("overlap", ["0", "1"])
def test_kernels_wait_for_those_before(
    spec: KernelSpec, on_device: Store, monkeypatch: pytest.MonkeyPatch, overlap: str
) -> None:
    """Each doubles what the one before has written, elsewhere; blocks change places."""
    import cupy

    monkeypatch.setenv(env.OVERLAP.name, overlap)
    kernel = launch.kernel(spec)
    n, rounds = 1 << 20, 10
    values = cupy.arange(n, dtype="float32") % 8
    x, y = values.copy(), cupy.zeros(n, "float32")

    def step(source: Any, target: Any) -> None:
        params = kernel.pack(x=source.data.ptr, y=target.data.ptr, n=n, alpha=1.0, shift=0)
        kernel((n // 128,), params)  # target += source

    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    for captured in (False, True):
        x[...], y[...] = values, 0
        cupy.cuda.Device().synchronize()
        with stream:
            if captured:
                stream.begin_capture()
            for _ in range(rounds):  # Fibonacci's numbers
                step(x, y)
                step(y, x)
            if captured:
                stream.end_capture().launch()
            stream.synchronize()
        a, b = 1, 0
        for _ in range(rounds):
            b += a
            a += b
        assert bool((x == values * a).all()) and bool((y == values * b).all())


@pytest.mark.gpu
def test_large_smem_on_the_device(root: Path, spec: KernelSpec, on_device: Store) -> None:
    import cupy

    header = root / "axpy.cuh"
    header.write_text(header.read_text().replace("kSmemBytes = 1024", "kSmemBytes = 98304"))
    kernel = launch.kernel(replace(spec, smem_bytes=98304))
    x, y = cupy.ones(200, "float32"), cupy.zeros(200, "float32")
    kernel((2,), kernel.pack(x=x.data.ptr, y=y.data.ptr, n=200, alpha=2.0, shift=1))
    assert float(y.min()) == float(y.max()) == 3


@pytest.mark.gpu
def test_kernels_go_to_the_cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stof_cupy.jit.catalogue import catalogue

    monkeypatch.setenv(env.CACHE_DIR.name, str(tmp_path))
    monkeypatch.setattr(launch, "_kernels", {})
    arch = device.facts().arch
    spec = next(spec for spec in catalogue() if spec.supports(arch))
    launch.kernel(spec)
    assert list((tmp_path / "kernels").glob(f"{spec.name}-sm_{arch}-*/kernel.cubin"))
