"""Arrays of every library in and out. torch, JAX and CuPy parts run where they are installed."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stof_cupy.dlpack import Bits
from stof_cupy.dtypes import as_dtype
from stof_cupy.errors import DTypeError, MissingDependencyError
from stof_cupy.interop import (
    Origin,
    cupy_origins,
    export_array,
    import_array,
    to_device,
)

DTYPES = ["bool", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64"]


class Producer:
    """A library that nobody knows: DLPack and nothing else."""

    def __init__(self, array: Any, stream: Any = None) -> None:
        self.array, self.stream = array, stream

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __dlpack__(self, **how: Any) -> Any:
        if self.stream is None:
            return self.array.__dlpack__(**how)
        with self.stream:
            return self.array.__dlpack__(**how)


class Elsewhere(Producer):
    """An array on a device of the given type."""

    def __init__(self, device_type: int) -> None:
        self.device = (device_type, 0)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


def numbers(dtype: str) -> Any:
    """Three by four numbers whose rows lie apart in memory."""
    numpy_dtype = as_dtype(dtype) if dtype == "bfloat16" else np.dtype(dtype)
    return (np.arange(24).reshape(3, 8) % 5).astype(numpy_dtype)[:, :4]


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_arrays_pass_through(dtype: str) -> None:
    x = numbers(dtype)
    array, origin = import_array(x)
    assert np.shares_memory(array, x)
    assert (array.dtype, array.strides) == (x.dtype, x.strides)
    assert origin == Origin("numpy", (1, 0))
    assert not origin.on_cuda
    assert export_array(array, origin) is array


def test_numpy_subclasses_come_in_as_plain_arrays() -> None:
    array, _ = import_array(np.array([1, 2]).view(type("Sub", (np.ndarray,), {})))
    assert type(array) is np.ndarray


@pytest.mark.parametrize(
    ("x", "expected"),
    [([[1, 2], [3, 4]], np.int64), ((1.5, 2), np.float64), ([True], np.bool_), (3, np.int64)],
)
def test_array_likes_become_numpy(x: Any, expected: Any) -> None:
    array, origin = import_array(x)
    np.testing.assert_array_equal(array, x)
    assert array.dtype == expected
    assert origin.kind == "numpy"


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ([[1, 2], [3]], "ids: got list, expected an array; its rows differ in shape"),
        ("text", "ids: got str"),
        (["a", "b"], "ids: got list"),
        (None, "ids: got NoneType"),
        ({1: 2}, "ids: got dict"),
        (object(), "ids: got object"),
        (np.array([object()]), "object"),
        (np.ones(2, np.complex64), "complex64"),
        (np.ones(2, np.dtype(">f4")), ">f4.* native byte order"),
        (np.ones(2, np.longdouble), "longdouble|float128|float64"),
        (np.array(["2020-01-01"], "M8[D]"), "datetime64"),
        (np.ma.array([1, 2], mask=[0, 1]), r"masked array.* x.filled\(\)"),
    ],
)
def test_what_is_no_array_of_numbers_is_a_type_error(x: Any, message: str) -> None:
    if isinstance(x, np.ndarray) and x.dtype == np.float64:
        pytest.skip("longdouble is float64 on this platform")
    with pytest.raises(DTypeError, match=message) as caught:
        import_array(x, "ids")
    assert isinstance(caught.value, TypeError)


def test_device_arrays_without_dlpack_are_not_copied_to_the_host() -> None:
    x = type("DeviceArray", (), {"__cuda_array_interface__": {}, "__array__": lambda *_: 1 / 0})()
    with pytest.raises(DTypeError, match=r"DeviceArray.*cupy.asarray"):
        import_array(x)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != "bfloat16"])
def test_any_producer_is_taken_without_a_copy(dtype: str) -> None:
    x = numbers(dtype)
    array, origin = import_array(Producer(x))
    assert np.shares_memory(array, x)
    assert (array.dtype, array.strides) == (x.dtype, x.strides)
    assert origin == Origin("dlpack", (1, 0))
    assert export_array(array, origin) is array


def test_bfloat16_goes_both_ways_as_bits() -> None:
    x = numbers("bfloat16")
    foreign = Bits(x.view(np.uint16), is_bfloat16=True)
    with pytest.raises((RuntimeError, BufferError)):
        np.from_dlpack(foreign)  # it is labelled bfloat16, which NumPy does not take
    array, _ = import_array(foreign)
    assert array.dtype == x.dtype
    assert np.shares_memory(array, x)


def test_imported_arrays_keep_their_producer_alive_and_let_it_go() -> None:
    x = np.arange(5)
    alive = weakref.ref(x)
    producer = Producer(x)
    array, _ = import_array(producer)
    del x, producer
    gc.collect()
    assert alive() is not None
    assert array.tolist() == [0, 1, 2, 3, 4]
    del array
    gc.collect()
    assert alive() is None


def test_other_devices_are_refused() -> None:
    with pytest.raises(DTypeError, match="x: got memory of DLPack device type 8, expected CPU or"):
        import_array(Elsewhere(8))


def test_cuda_memory_without_cupy_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(MissingDependencyError, match=r"stof-cupy\[cuda12\]"):
        import_array(Elsewhere(2))


def test_a_producer_that_fails_is_a_type_error_with_its_reason() -> None:
    x = np.ones(2)
    x.flags.writeable = False

    class Old(Producer):
        def __dlpack__(self) -> Any:  # type: ignore[override]  # before DLPack 1.0
            return self.array.__dlpack__()

    with pytest.raises(DTypeError, match=r"Old.*readonly") as caught:
        import_array(Old(x))
    assert isinstance(caught.value.__cause__, BufferError)


def test_importing_brings_in_no_other_library() -> None:
    code = (
        "import sys; from stof_cupy.interop import *; export_array(*import_array([1]))\n"
        "assert not {'cupy', 'torch', 'jax', 'ml_dtypes', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


class TestTorch:
    @pytest.fixture
    def torch(self) -> Any:
        return pytest.importorskip("torch")

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_t28_zero_copy_both_ways(self, torch: Any, dtype: str) -> None:
        x = torch.arange(24).reshape(3, 8).remainder(5).to(getattr(torch, dtype))[:, :4]
        array, origin = import_array(x)
        assert isinstance(array, np.ndarray)
        assert array.dtype.name == dtype
        assert array.ctypes.data == x.data_ptr()
        np.testing.assert_array_equal(array, numbers(dtype))
        back = export_array(array, origin)
        assert back.dtype == x.dtype
        assert back.data_ptr() == x.data_ptr()
        assert torch.equal(back, x)

    def test_t28_what_cannot_be_taken(self, torch: Any) -> None:
        for x in (
            torch.ones(2, dtype=torch.complex64),
            torch.ones(2).to(torch.float8_e4m3fn),
            torch.eye(2).to_sparse(),
            torch.ones(2, device="meta"),
        ):
            with pytest.raises(DTypeError, match=r"x: got torch.Tensor"):
                import_array(x)

    def test_parameters_are_taken(self, torch: Any) -> None:
        x = torch.nn.Parameter(torch.ones(3))
        assert import_array(x)[0].ctypes.data == x.data_ptr()

    def test_memory_torch_must_not_have_is_copied(self, torch: Any) -> None:
        origin = import_array(torch.ones(1))[1]
        a = np.arange(12.0).reshape(3, 4)
        reverse = export_array(a[::-1], origin)  # as it is, torch would end the process
        np.testing.assert_array_equal(reverse.numpy(), a[::-1])
        assert export_array(a.T, origin).data_ptr() == a.ctypes.data
        a.flags.writeable = False
        copy = export_array(a, origin)
        copy.zero_()
        assert a[2, 3] == 11

    def test_results_outlive_the_array(self, torch: Any) -> None:
        origin = import_array(torch.ones(1))[1]
        result = export_array(np.arange(1000), origin)
        gc.collect()
        assert result.sum() == 499500

    def test_empty_and_zero_dimensional(self, torch: Any) -> None:
        for shape in ((), (0, 3)):
            array, origin = import_array(torch.zeros(shape))
            assert array.shape == shape
            assert tuple(export_array(array, origin).shape) == shape


class TestJax:
    @pytest.fixture
    def jnp(self) -> Any:
        pytest.importorskip("jax")
        return pytest.importorskip("jax.numpy")

    @pytest.mark.parametrize("dtype", [d for d in DTYPES if "64" not in d])
    def test_t28_both_ways(self, jnp: Any, dtype: str) -> None:
        x = jnp.asarray(np.ascontiguousarray(numbers(dtype)))
        array, origin = import_array(x)
        assert array.dtype.name == dtype
        assert array.ctypes.data == x.unsafe_buffer_pointer()
        assert not array.flags.writeable  # JAX arrays do not change
        np.testing.assert_array_equal(array, numbers(dtype))
        result = np.ascontiguousarray(numbers(dtype))
        back = export_array(result, origin)
        assert back.dtype == x.dtype
        np.testing.assert_array_equal(np.asarray(back), result)

    def test_results_are_shared(self, jnp: Any) -> None:
        origin = import_array(jnp.ones(1))[1]
        # JAX on the CPU shares memory that is aligned to 64 bytes.
        memory = np.zeros(64 + 32, np.uint16)
        start = -memory.ctypes.data % 64 // 2
        for result in (
            memory[start : start + 64].view(as_dtype("bfloat16")),
            memory[start : start + 64].view(np.float32),
        ):
            assert export_array(result, origin).unsafe_buffer_pointer() == result.ctypes.data

    def test_other_layouts(self, jnp: Any) -> None:
        origin = import_array(jnp.ones(1))[1]
        a = np.arange(12, dtype=np.float32).reshape(3, 4)
        for view in (a[::-1], a.T, a[:, ::2]):
            np.testing.assert_array_equal(np.asarray(export_array(view, origin)), view)

    def test_t28_what_cannot_be_taken(self, jnp: Any) -> None:
        for x in (jnp.ones(2, jnp.complex64), jnp.ones(2, jnp.float8_e4m3fn)):
            with pytest.raises(DTypeError, match="x: got jaxlib"):
                import_array(x)

    def test_traced_arrays_have_no_values_to_take(self, jnp: Any) -> None:
        import jax

        with pytest.raises(DTypeError, match="Tracer"):
            jax.jit(lambda x: import_array(x)[0])(jnp.ones(2))


@pytest.fixture
def cupy() -> Any:
    return pytest.importorskip("cupy")


@pytest.fixture
def fifty_ms(cupy: Any) -> int:
    """Return clock cycles that take 50 ms or more."""
    return 50 * int(cupy.cuda.Device().attributes["ClockRate"])


@pytest.fixture
def slow_sevens(cupy: Any, fifty_ms: int) -> Callable[..., Any]:
    """Return a function that makes zeros which turn to sevens in 50 ms, on a stream."""
    spin = cupy.ElementwiseKernel(
        "int64 cycles",
        "int64 end",
        "long long start = clock64(); do end = clock64(); while (end - start < cycles);",
        "keep_busy",
    )

    def make(stream: Any, dtype: Any = np.float32) -> Any:
        end = cupy.zeros(1, cupy.int64)
        spin(cupy.int64(1), end)  # compiled before anybody waits for it
        a = cupy.ones(1000, dtype)
        a.fill(1)  # compiled, too
        a.fill(0)
        cupy.cuda.Device().synchronize()
        with stream:
            spin(cupy.int64(fifty_ms), end)
            a.fill(7)
        with cupy.cuda.Stream(non_blocking=True):
            assert (a.get().astype(float) == 0).all(), "too fast to test anything"
        return a

    return make


@pytest.mark.gpu
class TestCuda:
    """Streams here do not wait for the default stream: only DLPack's protocol orders them."""

    def test_cupy_arrays_pass_through(self, cupy: Any) -> None:
        for dtype in DTYPES:
            x = cupy.asarray(numbers(dtype))[::-1]
            array, origin = import_array(x)
            assert array is x
            assert origin == Origin("cupy", (2, 0))
            assert origin.on_cuda
            assert export_array(array, origin) is x

    @pytest.mark.parametrize("dtype", ["bool", "int64", "float16", "float32"])
    def test_any_producer_is_taken_without_a_copy(self, cupy: Any, dtype: str) -> None:
        x = cupy.asarray(numbers(dtype))
        array, origin = import_array(Producer(x))
        assert (array.data.ptr, array.dtype, array.strides) == (x.data.ptr, x.dtype, x.strides)
        assert origin == Origin("dlpack", (2, 0))

    def test_bfloat16_goes_both_ways_as_bits(self, cupy: Any) -> None:
        x = cupy.asarray(numbers("bfloat16"))
        array, _ = import_array(Bits(x.view(np.uint16), is_bfloat16=True))
        assert (array.data.ptr, array.dtype) == (x.data.ptr, x.dtype)

    def test_results_move_to_where_the_input_was(self, cupy: Any) -> None:
        for dtype in DTYPES:
            host, device = numbers(dtype), cupy.asarray(numbers(dtype))
            back = export_array(device, Origin("numpy"))
            assert isinstance(back, np.ndarray)
            np.testing.assert_array_equal(back, host)
            there = export_array(host, Origin("cupy", (2, 0)))
            assert isinstance(there, cupy.ndarray)
            np.testing.assert_array_equal(there.get(), host)

    @pytest.mark.parametrize("consumer", ["default", "side"])
    def test_import_waits_for_the_producer(
        self, cupy: Any, slow_sevens: Any, consumer: str
    ) -> None:
        producing = cupy.cuda.Stream(non_blocking=True)
        x = Producer(slow_sevens(producing), producing)
        side = cupy.cuda.Stream(non_blocking=True)
        with side if consumer == "side" else cupy.cuda.Stream.null:
            array, _ = import_array(x)
            assert (array.copy().get() == 7).all()

    def test_export_to_numpy_waits_for_the_current_stream(
        self, cupy: Any, slow_sevens: Any
    ) -> None:
        stream = cupy.cuda.Stream(non_blocking=True)
        a = slow_sevens(stream)
        with stream:
            assert (export_array(a, Origin("numpy")) == 7).all()

    @pytest.mark.parametrize("stream", [None, 1, 2, -1])
    def test_t28_streams_by_number(self, cupy: Any, stream: int | None) -> None:
        x = cupy.arange(5)
        cupy.cuda.Device().synchronize()
        capsule = Bits(x).__dlpack__(stream=stream)
        assert cupy.from_dlpack(capsule).get().tolist() == [0, 1, 2, 3, 4]

    def test_t29_results_go_to_the_inputs_device(self, cupy: Any) -> None:
        if cupy.cuda.runtime.getDeviceCount() < 2:
            pytest.skip("needs two GPUs")
        with cupy.cuda.Device(1):
            x = cupy.arange(5)
        for given in (x, Producer(x)):
            array, origin = import_array(given)
            assert (array.device.id, origin.device[1]) == (1, 1)
            back = export_array(cupy.zeros(3), origin)
            assert back.device.id == 1

    @pytest.mark.parametrize("step", [1, -2])
    def test_copies_between_devices_are_ordered_with_both_streams(
        self, cupy: Any, slow_sevens: Any, step: int
    ) -> None:
        if cupy.cuda.runtime.getDeviceCount() < 2:
            pytest.skip("needs two GPUs")
        here = cupy.cuda.Stream(non_blocking=True)
        with here:  # so that CuPy has opened the way between the devices, and copied its own way
            to_device(to_device(cupy.ones(1000, np.float32), 1)[::step], 0)
        with cupy.cuda.Device(1):
            there = cupy.cuda.Stream(non_blocking=True)
            a = slow_sevens(there)
            with there, cupy.cuda.Device(0), here:
                copy = to_device(a[::step], 0)
                with cupy.cuda.Device(1):
                    a.fill(0)  # on `there`: after the copy
                assert (copy.device.id, copy.shape) == (0, a[::step].shape)
                assert (copy.get() == 7).all()

    def test_arrays_that_are_there_are_not_copied(self, cupy: Any) -> None:
        a = cupy.arange(5)[::-1]
        assert to_device(a, 0) is a
        assert to_device(np.float32(3)[...], 0).shape == ()


@pytest.mark.gpu
class TestTorchCuda:
    @pytest.fixture
    def torch(self, cupy: Any) -> Any:
        torch = pytest.importorskip("torch")
        if not torch.cuda.is_available():
            pytest.skip("torch without CUDA")
        return torch

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_t28_zero_copy_both_ways(self, cupy: Any, torch: Any, dtype: str) -> None:
        host = torch.arange(24).reshape(3, 8).remainder(5).to(getattr(torch, dtype))
        x = host.cuda()[:, :4]
        array, origin = import_array(x)
        assert isinstance(array, cupy.ndarray)
        assert (array.dtype.name, array.data.ptr) == (dtype, x.data_ptr())
        np.testing.assert_array_equal(array.get(), numbers(dtype))
        assert origin == Origin("torch", (2, 0))
        back = export_array(array, origin)
        assert (back.dtype, back.data_ptr()) == (x.dtype, x.data_ptr())

    def test_t28_what_cannot_be_taken(self, torch: Any) -> None:
        for dtype in (torch.complex64, torch.float8_e4m3fn):
            with pytest.raises(DTypeError, match=r"x: got torch.Tensor"):
                import_array(torch.ones(2, device="cuda").to(dtype))

    def test_results_move_to_where_the_tensor_was(self, cupy: Any, torch: Any) -> None:
        for dtype in ("float32", "bfloat16"):
            on_gpu = import_array(torch.ones(1).cuda())[1]
            back = export_array(numbers(dtype), on_gpu)
            assert back.is_cuda
            np.testing.assert_array_equal(back.float().cpu(), numbers(dtype).astype(float))
            on_cpu = import_array(torch.ones(1))[1]
            back = export_array(cupy.asarray(numbers(dtype)), on_cpu)
            assert not back.is_cuda
            np.testing.assert_array_equal(back.float(), numbers(dtype).astype(float))

    def test_reversed_results_are_copied(self, cupy: Any, torch: Any) -> None:
        origin = import_array(torch.ones(1).cuda())[1]
        back = export_array(cupy.arange(5)[::-1], origin)
        assert back.tolist() == [4, 3, 2, 1, 0]

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    @pytest.mark.parametrize("consumer", ["default", "side"])
    def test_t28_import_waits_for_torch(
        self, cupy: Any, torch: Any, fifty_ms: int, dtype: str, consumer: str
    ) -> None:
        x = torch.zeros(1000, dtype=getattr(torch, dtype), device="cuda")
        torch.cuda._sleep(1)
        x.fill_(1).zero_()  # both kernels are loaded before anybody waits for them
        early = import_array(x)[0]
        torch.cuda.synchronize()
        side = cupy.cuda.Stream(non_blocking=True)
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda._sleep(fifty_ms)
            x.fill_(7)
            with cupy.cuda.Stream(non_blocking=True):
                assert (early.get().astype(float) == 0).all(), "the producer was too fast"
            with side if consumer == "side" else cupy.cuda.Stream.null:
                array, _ = import_array(x)
                assert (array.copy().get().astype(float) == 7).all()

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    @pytest.mark.parametrize("consumer", ["default", "side"])
    def test_t28_export_makes_torch_wait(
        self, cupy: Any, torch: Any, slow_sevens: Any, dtype: str, consumer: str
    ) -> None:
        origin = import_array(torch.ones(1).cuda())[1]
        producing = cupy.cuda.Stream(non_blocking=True)
        a = slow_sevens(producing, as_dtype(dtype))
        other = torch.cuda.Stream() if consumer == "side" else torch.cuda.default_stream()
        with torch.cuda.stream(other), producing:
            x = export_array(a, origin)
            assert (x.clone().float().cpu() == 7).all()


@pytest.mark.gpu
class TestJaxCuda:
    def test_t28_both_ways(self) -> None:
        cupy, jax = pytest.importorskip("cupy"), pytest.importorskip("jax")
        if jax.default_backend() != "gpu":
            pytest.skip("JAX without CUDA")
        for dtype in ("bool", "int32", "float16", "bfloat16", "float32"):
            x = jax.numpy.asarray(np.ascontiguousarray(numbers(dtype)))
            array, origin = import_array(x)
            assert isinstance(array, cupy.ndarray)
            assert array.data.ptr == x.unsafe_buffer_pointer()
            back = export_array(array.copy(), origin)
            assert back.dtype == x.dtype
            np.testing.assert_array_equal(np.asarray(back), np.asarray(x))


def test_arrays_of_cupy_are_told_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """As each alone: where there are others among them, or what is refused, they are not."""

    class Array:
        def __init__(self, dtype: str, device: int = 0) -> None:
            self.dtype, self.device = np.dtype(dtype), SimpleNamespace(id=device)

    class Other(Array):
        pass

    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(ndarray=Array))
    arrays = [Array("int32"), Array("int64", 1), Array("float16"), Array("bool")]
    assert cupy_origins(arrays) == [import_array(each)[1] for each in arrays]
    for other in (Other("int32"), Array(">i4"), Array("complex64"), np.zeros(2), [1]):
        assert cupy_origins([*arrays, other]) is None
    assert cupy_origins([]) is None
    monkeypatch.delitem(sys.modules, "cupy")
    assert cupy_origins(arrays) is None
