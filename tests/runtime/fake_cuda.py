"""CuPy without a GPU: kernels compute nothing, but all that is asked of CUDA is written down.

One kernel does what it should, that which puts sequences together: the host looks at their numbers.

What must not happen while a stream is captured raises. For a process of its own: what the package
keeps of a device would outlive a test.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.runtime.fake_packing import packed

LOG: list[tuple[str, str]] = []
"""What was asked for, in order: a kind and a name."""

DEVICES: set[int] = set()
"""On which devices."""

state = types.SimpleNamespace(capturing=False, allocator=None, device=0)


class CaptureError(Exception):
    """What a capture cannot contain."""


def note(kind: str, name: str = "") -> None:
    LOG.append((kind, name))
    DEVICES.add(state.device)
    if state.capturing and kind in ("sync", "await", "download", "upload", "malloc"):
        raise CaptureError(f"{kind} {name} while a stream is captured")


class ndarray:  # noqa: N801  # its name in CuPy
    """An array that NumPy does not know as one; its elements are seen by a download alone."""

    __array_ufunc__ = None

    def __new__(cls, array: Any, *how: Any) -> Any:
        if isinstance(array, np.ndarray):
            return super().__new__(cls)
        return array_at(array, *how)

    def __init__(self, array: Any, number: Any = None, memptr: Any = None) -> None:
        if not isinstance(array, np.ndarray):
            return  # what CuPy's own constructor takes: see `array_at`
        self.host, self.number = array, state.device if number is None else number
        self.shape, self.strides, self.dtype = array.shape, array.strides, array.dtype
        self.ndim, self.size, self.itemsize = array.ndim, array.size, array.itemsize
        self.nbytes, self.flags = array.nbytes, array.flags
        at = array.__array_interface__["data"][0]

        def copied(source: Any, nbytes: int) -> None:
            note("cupy", "copy")
            ctypes.memmove(at, source.ptr, nbytes)

        def sent(source: int, nbytes: int) -> None:
            note("upload", "from pinned memory")
            ctypes.memmove(at, source, nbytes)

        self.data = types.SimpleNamespace(
            ptr=at, copy_from_device_async=copied, copy_from_host_async=sent
        )

    @property
    def device(self) -> Any:
        return Device(self.number)

    def __len__(self) -> int:
        return int(self.shape[0])

    def get(
        self, stream: Any = None, order: str = "C", out: Any = None, blocking: bool = True
    ) -> Any:
        note("download" if blocking else "async", "get")
        if out is None:
            return self.host.copy()
        out[...] = self.host
        return out

    def copy(self, order: str = "C") -> Any:
        note("cupy", "copy")
        return _own(self.host)

    def astype(self, dtype: Any, order: str = "K", copy: bool = True, **_: Any) -> Any:
        if not copy and np.dtype(dtype) == self.dtype:
            return self
        note("cupy", "astype")
        return _own(self.host.astype(dtype))

    def __getitem__(self, key: Any) -> Any:
        parts = key if isinstance(key, tuple) else (key,)
        picked = any(isinstance(part, ndarray | np.ndarray | list) for part in parts)
        found = self.host[_plain(key)]
        if not picked:
            return ndarray(np.asarray(found), self.number)
        note("cupy", "take")
        return _own(found)

    def __setitem__(self, key: Any, value: Any) -> None:
        note("upload" if isinstance(value, np.ndarray) else "cupy", "copy")
        self.host[_plain(key)] = _plain(value)

    def _looked_at(self, *_: Any) -> Any:
        note("download", "an element")
        return self.host.reshape(-1)[0].item()

    __int__ = __float__ = __bool__ = __index__ = item = _looked_at

    def __eq__(self, other: object) -> Any:
        return _computed("__eq__", self, other)

    __hash__ = None  # type: ignore[assignment]


def _plain(x: Any) -> Any:
    if isinstance(x, tuple):
        return tuple(map(_plain, x))
    return x.host if isinstance(x, ndarray) else x


def _computed(name: str, x: ndarray, *args: Any, **how: Any) -> Any:
    note("cupy", name)
    return _own(np.asarray(getattr(x.host, name)(*map(_plain, args), **how)))


def _views(name: str) -> Any:
    return lambda self, *args, **how: ndarray(getattr(self.host, name)(*args, **how), self.number)


def _changed(name: str) -> Any:
    def change(self: ndarray, other: Any) -> ndarray:
        note("cupy", name)
        self.host = getattr(self.host, name)(_plain(other))
        return self

    return change


for _name in ("transpose", "view", "ravel", "squeeze"):
    setattr(ndarray, _name, _views(_name))
for _name in (
    *("clip", "min", "max", "any", "all", "sum", "argmax", "__lt__", "__le__", "__gt__", "__ge__"),
    *("__ne__", "__add__", "__sub__", "__mul__", "__rmul__", "__and__", "__or__", "__invert__"),
):
    setattr(ndarray, _name, lambda self, *args, n=_name, **how: _computed(n, self, *args, **how))
for _name in ("__imul__", "__iadd__"):
    setattr(ndarray, _name, _changed(_name))
ndarray.T = property(lambda self: ndarray(self.host.T, self.number))  # type: ignore[attr-defined]


def _reshaped(self: ndarray, *shape: Any) -> ndarray:
    made = self.host.reshape(*shape)
    if made.size and not np.may_share_memory(made, self.host):
        note("cupy", "reshape")
        return _own(made)
    return ndarray(made, self.number)


ndarray.reshape = _reshaped  # type: ignore[attr-defined]


def _own(x: Any) -> Any:
    made = empty(x.shape, x.dtype)
    np.copyto(made.host, x)
    return made


class MemoryPool:
    """Counts; memory that is given back serves again, as in CuPy's."""

    def __init__(self) -> None:
        self.total, self.free = 0, [0]

    def malloc(self, size: int) -> Any:
        return self

    def total_bytes(self) -> int:
        return self.total

    def free_all_blocks(self) -> None:
        pass


_DEFAULT = MemoryPool()


def empty(shape: Any, dtype: Any = float, order: str = "C") -> Any:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    allocator = state.allocator
    if allocator == "cuda":
        note("malloc", f"{size} bytes from CUDA itself")
    elif state.capturing and allocator is None:
        raise CaptureError(f"{size} bytes out of everyone's pool while a stream is captured")
    elif allocator is not None:
        allocator.__self__.total += size
    room = np.full(size + 512, 0xCC, np.uint8)
    start = -room.ctypes.data % 256
    return ndarray(np.ndarray(shape, dtype, room, start))


class MemoryPointer:
    def __init__(self, room: Any, start: int) -> None:
        self.room, self.start = room, start
        self.ptr = room.host.ctypes.data + start

    def __add__(self, size: int) -> Any:
        return MemoryPointer(self.room, self.start + size)

    def memset_async(self, value: int, size: int) -> None:
        note("cupy", "memset")

    def copy_from_host_async(self, source: Any, size: int) -> None:
        note("upload", "copy_from_host_async")


def alloc(size: int) -> MemoryPointer:
    return MemoryPointer(empty(size, np.uint8), 0)


def array_at(shape: Any, dtype: Any, memptr: MemoryPointer) -> ndarray:
    return ndarray(np.ndarray(shape, dtype, memptr.room.host, memptr.start), memptr.room.number)


def asarray(x: Any, dtype: Any = None, order: Any = None) -> Any:
    if isinstance(x, ndarray):
        return x if dtype is None or x.dtype == dtype else x.astype(dtype)
    note("upload", "asarray")
    return _own(np.asarray(x, dtype))


def ascontiguousarray(x: Any, dtype: Any = None) -> Any:
    x = asarray(x, dtype)
    if x.flags.c_contiguous:
        return x
    note("cupy", "ascontiguousarray")
    return _own(x.host)


def _made_of(name: str) -> Callable[..., Any]:
    def make(*args: Any, **how: Any) -> Any:
        note("cupy", name)
        plain = [[_plain(each) for each in x] if isinstance(x, list) else _plain(x) for x in args]
        return _own(np.asarray(getattr(np, name)(*plain, **how)))

    return make


class Device:
    def __init__(self, number: Any = None) -> None:
        self.id = state.device if number is None else int(number)
        self._before: list[int] = []

    def __enter__(self) -> Any:
        self._before.append(state.device)
        state.device = self.id
        return self

    def __exit__(self, *_: object) -> None:
        state.device = self._before.pop()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and other.id == self.id

    def synchronize(self) -> None:
        note("sync", "device")


class Event:
    done = True

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        note("event", "record")

    def synchronize(self) -> None:
        note("await", "event")


def elapsed(first: Event, second: Event) -> float:
    note("elapsed")
    return 1.0


class Graph:
    def launch(self, stream: Any = None) -> None:
        note("graph", "launch")

    def upload(self, stream: Any = None) -> None:
        note("graph", "upload")


class Stream:
    def __init__(self, non_blocking: bool = False) -> None:
        self.ptr = id(self)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def is_capturing(self) -> bool:
        return bool(state.capturing)

    def begin_capture(self, mode: Any = None) -> None:
        state.capturing = True
        note("capture", "begin")

    def end_capture(self) -> Graph:
        state.capturing = False
        note("capture", "end")
        return Graph()

    def synchronize(self) -> None:
        note("sync", "stream")

    def record(self, event: Any = None) -> Event:
        note("event", "record")
        return Event()

    def wait_event(self, event: Any) -> None:
        note("event", "wait")


_NULL = Stream()


@contextlib.contextmanager
def using_allocator(allocator: Any) -> Iterator[None]:
    before = state.allocator
    state.allocator = "cuda" if allocator is None else allocator
    try:
        yield
    finally:
        state.allocator = before


def module() -> Any:
    """Return what `import cupy` is to give."""
    runtime = types.ModuleType("cupy.cuda.runtime")
    runtime.__dict__.update(
        CUDARuntimeError=type("CUDARuntimeError", (Exception,), {}),
        getDevice=lambda: state.device,
        getDeviceCount=lambda: 2,
        streamCaptureModeRelaxed=2,
    )
    cuda = types.ModuleType("cupy.cuda")
    cuda.__dict__.update(
        Device=Device, Event=Event, MemoryPool=MemoryPool, Stream=Stream, runtime=runtime,
        alloc=alloc, alloc_pinned_memory=bytearray,
        get_current_stream=lambda: _NULL, is_available=lambda: True,
        get_elapsed_time=elapsed, using_allocator=using_allocator,
        nvtx=types.SimpleNamespace(RangePush=lambda name: None, RangePop=lambda: None),
    )  # fmt: skip
    cupy = types.ModuleType("cupy")
    cupy.__dict__.update(
        cuda=cuda, ndarray=ndarray, empty=empty, asarray=asarray, array=asarray,
        ascontiguousarray=ascontiguousarray,
        may_share_memory=lambda x, y: np.may_share_memory(x.host, y.host),
        broadcast_to=lambda x, shape: ndarray(np.broadcast_to(x.host, shape), x.number),
        get_default_memory_pool=lambda: _DEFAULT, bool=np.bool_,
    )  # fmt: skip
    for name in ("arange", "zeros", "ones", "full", "zeros_like", "concatenate", "clip", "where"):
        cupy.__dict__[name] = _made_of(name)
    for name in ("float16", "float32", "float64", "int32", "int64", "uint8", "uint16", "uint32"):
        cupy.__dict__[name] = getattr(np, name)
    return cupy


def install(facts: Any) -> None:
    """Put it in the place of CuPy, and a GPU of `facts` behind it, for good."""
    cupy = module()
    sys.modules |= {
        "cupy": cupy, "cupy.cuda": cupy.cuda, "cupy.cuda.runtime": cupy.cuda.runtime,
    }  # fmt: skip
    from stof_cupy.jit import ahead, device, launch, tensormap

    def load(spec: Any, device_id: int) -> Any:
        def launched(grid: Any, _: Any, params: Any, **__: Any) -> None:
            if state.device != device_id:
                raise RuntimeError(f"{spec.name} of device {device_id} on device {state.device}")
            note("launch", spec.name)
            if spec.name == "packing":
                packed(grid, *params)

        return launch.Kernel(spec, launched)

    def started(*_: Any) -> Any:
        raise OSError("a kernel that computes nothing is not compiled")

    device._facts = lambda device_id: facts  # type: ignore[assignment]
    launch._load = load
    ahead._start = started
    tensormap._encoder = lambda: lambda *_: 0  # type: ignore[assignment]
