"""Tests and programs for a GPU on a machine without one: CuPy on NumPy, kernels left out or run on the CPU.

    PYTHONPATH=$PWD python scratch/emulated_gpu.py pytest tests/ops/test_gemm_gemm.py -q          host code alone: shapes, names, fields of kernels
    PYTHONPATH=$PWD EMULATE=run python scratch/emulated_gpu.py pytest ... -k ...                  small launches run by tests/masks/on_host.py, on_hopper.py
    PYTHONPATH=$PWD python scratch/emulated_gpu.py scratch/gemm_ladder.py OUT.json                any program
    PATH=$PWD/scratch/emulated_bin:$PATH EMULATE_TORCH=/tmp/venvA/lib/python3.11/site-packages bash scratch/sm90_all.sh table_a      a shell program; processes that it starts are emulated too

EMULATE_CARD: H200 (default) or H100. EMULATE_PEERS=1: torch's and the peers' attention check their arguments and return zeros.
EMULATE_SMALL=1: fewer heads in bench_attention_hopper.py, fewer columns in bench_gemm.py, no flush.
EMULATE_COMPILE: `Store.get` compiles nothing but every so many-th kernel (default: all are compiled).
Where a launch was left out, comparisons of results pass. What CuPy refuses is refused: mixing with NumPy, conversions, names that it has not.
"""
import contextlib, ctypes, importlib.util, os, runpy, sys, threading, time, types
from collections import Counter

import numpy as np

# Name, L2, memory, its clock and bus; an H200's as PyTorch, nvidia-smi and NVIDIA's data sheet tell them.
CARDS = {"H100": ("NVIDIA H100 80GB HBM3", 50 << 20, 80 << 30, 2619000, 5120), "H200": ("NVIDIA H200", 60 << 20, 139 << 30, 3201000, 6144)}
CARD = CARDS[os.environ.get("EMULATE_CARD", "H200")]
HERE = os.path.dirname(os.path.abspath(__file__))
REAL = None  # the CuPy that is installed, for its names
RUN = os.environ.get("EMULATE") == "run"
MOST = float(os.environ.get("EMULATE_MOST", 3e6))  # threads times steps of K of a launch that is run
STATE = types.SimpleNamespace(capturing=None, stream=None, left_out=0, ran=0, device=0)
LOW = Counter()  # what is asked of CuPy in bfloat16
TIMES = Counter()
ONE_AT_A_TIME = threading.Lock()
KEPT = []


def real_has(what, name):
    if name.startswith("__"):
        return True
    return hasattr(what, name)


def plain(x):
    if isinstance(x, ndarray):
        return x.host
    if isinstance(x, tuple):
        return tuple(map(plain, x))
    if isinstance(x, list):
        return list(map(plain, x))
    return x


def strict(name, args):
    for x in args:
        if isinstance(x, np.ndarray):
            raise TypeError(f"{name}: Unsupported type {type(x)}")
        if isinstance(x, ndarray) and x.dtype.name == "bfloat16":
            LOW[name] += 1


def own(x):
    return ndarray(np.array(x, copy=True, order="K"))


def wrap(x):
    if isinstance(x, np.ndarray):
        return ndarray(x)
    if isinstance(x, np.generic):
        return ndarray(np.array(x))
    if isinstance(x, tuple):
        return tuple(map(wrap, x))
    if isinstance(x, list):
        return [wrap(y) for y in x]
    return x


class Pointer:
    def __init__(self, ptr, owner):
        self.ptr, self.owner, self.mem, self.device_id = ptr, owner, owner, 0

    def __add__(self, n):
        return Pointer(self.ptr + n, self.owner)

    def memset_async(self, value, size, stream=None):
        ctypes.memset(self.ptr, value, size)

    memset = memset_async

    def copy_from_host_async(self, source, size, stream=None):
        ctypes.memmove(self.ptr, source if isinstance(source, int) else source.value, size)

    def copy_from_device_async(self, source, size, stream=None):
        ctypes.memmove(self.ptr, source.ptr, size)

    copy_from_device = copy_from_device_async


class ndarray:
    __array_ufunc__ = None
    __array_priority__ = 100

    def __init__(self, shape, dtype=float, memptr=None, strides=None, order="C"):
        if isinstance(shape, np.ndarray):
            self.host = shape
            if capturing():  # a graph's memory stays
                KEPT.append(shape)
            return
        if memptr is None:
            self.host = np.full(shape, 0, dtype, order)
        else:
            dtype = np.dtype(dtype)
            shape = (shape,) if isinstance(shape, int) else tuple(shape)
            if strides is None:
                steps, at = [], dtype.itemsize
                for n in reversed(shape):
                    steps.insert(0, at)
                    at *= n
                strides = steps
            lo = sum(min(0, (n - 1) * s) for n, s in zip(shape, strides)) if all(shape) else 0
            hi = sum(max(0, (n - 1) * s) for n, s in zip(shape, strides)) + dtype.itemsize if all(shape) else 0
            raw = (ctypes.c_char * max(hi - lo, 1)).from_address(memptr.ptr + lo)
            raw._owner = memptr.owner
            self.host = np.ndarray(shape, dtype, raw, -lo, tuple(strides)) if all(shape) else np.empty(shape, dtype)
            self._keep = raw

    @property
    def base(self):
        return None if self.host.base is None else ndarray(self.host.base) if isinstance(self.host.base, np.ndarray) else None

    shape = property(lambda s: s.host.shape)
    strides = property(lambda s: s.host.strides)
    dtype = property(lambda s: s.host.dtype)
    ndim = property(lambda s: s.host.ndim)
    size = property(lambda s: s.host.size)
    itemsize = property(lambda s: s.host.itemsize)
    nbytes = property(lambda s: s.host.nbytes)
    flags = property(lambda s: s.host.flags)
    T = property(lambda s: ndarray(s.host.T))
    data = property(lambda s: Pointer(s.host.__array_interface__["data"][0], s.host))
    device = property(lambda s: Device(0))

    def get(self, stream=None, order="C", out=None, blocking=True):
        no_capture("get")
        if out is None:
            return np.array(self.host, copy=True, order=order if order != "A" else "K")
        out[...] = self.host
        return out

    def set(self, x, stream=None):
        no_capture("set")
        assert isinstance(x, np.ndarray) and x.shape == self.shape and x.dtype == self.dtype
        self.host[...] = x

    def __array__(self, *a, **k):
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct a NumPy array explicitly.")

    def __array_function__(self, function, kinds, args, how):
        return getattr(sys.modules["cupy"], function.__name__)(*args, **how)

    def __len__(self):
        return len(self.host)

    def __iter__(self):
        return (ndarray(np.asarray(x)) for x in self.host)

    def __getitem__(self, key):
        parts = key if isinstance(key, tuple) else (key,)
        self._indices(parts)
        found = self.host[plain(key)]
        return ndarray(np.asarray(found) if isinstance(found, np.ndarray) else np.array(found))

    def _indices(self, parts):
        for part in parts:
            if isinstance(part, np.ndarray) and part.dtype == bool and False:
                raise TypeError
        if self.dtype.name == "bfloat16" and any(isinstance(p, (np.ndarray, ndarray, list)) for p in parts):
            LOW["take"] += 1

    def __setitem__(self, key, value):
        if isinstance(value, np.ndarray) and value.ndim:
            if value.dtype != self.dtype:
                raise TypeError(f"setitem of NumPy {value.dtype} into {self.dtype}")
            no_capture("upload")
        elif isinstance(value, ndarray) and self.dtype.name == "bfloat16":
            LOW["setitem"] += 1
        elif self.dtype.name == "bfloat16":
            LOW["setitem scalar"] += 1
        if isinstance(value, ndarray) and value.dtype.kind == "V" != self.dtype.kind:
            LOW[f"cast V"] += 1
        self.host[plain(key)] = plain(value)

    def copy(self, order="C"):
        return ndarray(np.array(self.host, copy=True, order=order))

    def astype(self, dtype, order="K", casting=None, subok=None, copy=True):
        dtype = np.dtype(dtype)
        if not copy and dtype == self.dtype:
            return self
        if "bfloat16" in (dtype.name, self.dtype.name):
            LOW["astype"] += 1
        return ndarray(self.host.astype(dtype))

    def reshape(self, *shape, order="C"):
        return ndarray(self.host.reshape(*shape))

    def view(self, dtype=None, *a, **k):
        return ndarray(self.host.view(dtype) if dtype is not None else self.host.view())

    def fill(self, value):
        LOW["fill"] += self.dtype.name == "bfloat16"
        self.host.fill(plain(value))

    def item(self, *a):
        no_capture("item")
        return self.host.item(*a)

    def __bool__(self):
        no_capture("bool")
        return bool(self.host)

    def __int__(self):
        no_capture("int")
        return int(self.host)

    def __float__(self):
        no_capture("float")
        return float(self.host)

    __index__ = lambda self: int(self)
    __hash__ = None

    def __format__(self, spec):
        return format(self.host[()] if not self.ndim else self.host, spec)

    def __repr__(self):
        return repr(self.host)

    def tolist(self):
        return self.host.tolist()

    def __dlpack__(self, **how):
        return self.host.__dlpack__()

    def __dlpack_device__(self):
        return self.host.__dlpack_device__()

    def __getattr__(self, name):
        if name.startswith("__") or name in ("ctypes", "host"):
            raise AttributeError(name)
        if not real_has(REAL.ndarray, name):
            raise AttributeError(f"cupy.ndarray has no {name}")
        found = getattr(self.host, name)
        if not callable(found):
            return wrap(found)

        def call(*args, **how):
            strict(name, (self, *args))
            return wrap(found(*map(plain, args), **{k: plain(v) for k, v in how.items()}))
        return call


def _op(name):
    def run(self, *args):
        for x in args:
            if isinstance(x, np.ndarray):
                raise TypeError(f"{name}: Unsupported type {type(x)}")
        strict(name, (self, *args))
        found = getattr(self.host, name)(*map(plain, args))
        if found is NotImplemented:
            return found
        if name.startswith("__i") and name != "__invert__":
            return self
        return wrap(found)
    return run


for _n in "add sub mul truediv floordiv mod pow matmul radd rsub rmul rtruediv and or xor lshift rshift invert neg abs eq ne lt le gt ge iadd isub imul itruediv ior iand ifloordiv".split():
    setattr(ndarray, f"__{_n}__", _op(f"__{_n}__"))
ndarray.__module__ = "cupy._core.core"


def capturing():
    """Whether the current stream is captured: others go on, as CuPy's captures are relaxed ones."""
    return STATE.capturing is not None and CURRENT[0] is STATE.stream


def no_capture(what):
    if capturing():
        raise RuntimeError(f"{what}: operation not permitted when stream is capturing")


class Device:
    def __init__(self, number=None):
        self.id = 0 if number is None else int(number)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def __eq__(self, other):
        return isinstance(other, Device) and other.id == self.id

    def __int__(self):
        return self.id

    def use(self):
        pass

    def synchronize(self):
        no_capture("synchronize")

    compute_capability = "90"
    mem_info = (CARD[2] - (10 << 30), CARD[2])
    attributes = {"MultiProcessorCount": 132}


class Event:
    def __init__(self, block=False, disable_timing=False, interprocess=False):
        self.at = None

    def record(self, stream=None):
        self.at = time.perf_counter()

    def synchronize(self):
        no_capture("event")

    done = True


class Graph:
    def __init__(self, launches):
        self.launches = launches

    def launch(self, stream=None):
        for each in self.launches:
            each()

    def upload(self, stream=None):
        pass


class Stream:
    def __init__(self, null=False, non_blocking=False, ptds=False, priority=None):
        self.ptr = 0 if null else id(self)
        self._before = []

    def __enter__(self):
        self._before.append(CURRENT[0])
        CURRENT[0] = self
        return self

    def __exit__(self, *_):
        CURRENT[0] = self._before.pop()

    def use(self):
        CURRENT[0] = self
        return self

    def is_capturing(self):
        return STATE.capturing is not None and STATE.stream is self

    def begin_capture(self, mode=None):
        if self.ptr == 0:
            raise RuntimeError("cannot capture the null stream")
        STATE.capturing, STATE.stream = [], self

    def end_capture(self):
        made, STATE.capturing, STATE.stream = Graph(STATE.capturing), None, None
        return made

    def synchronize(self):
        if self.is_capturing():
            raise RuntimeError("synchronize: operation not permitted when stream is capturing")

    def record(self, event=None):
        event = event or Event()
        event.record()
        return event

    def wait_event(self, event):
        pass

    def launch_host_func(self, f, arg):
        f(arg)

    done = True


NULL = Stream(null=True)
CURRENT = [NULL]
Stream.null = NULL


class ExternalStream(Stream):
    def __init__(self, ptr, device_id=-1):
        super().__init__()
        self.ptr = ptr


class MemoryPool:
    def __init__(self, allocator=None):
        self._total = 0

    def malloc(self, size):
        self._total += size
        return Pointer(0, None)

    def total_bytes(self):
        return self._total

    def used_bytes(self):
        return self._total

    def n_free_blocks(self):
        return 0

    def free_bytes(self):
        return 0

    def set_limit(self, size=None, fraction=None):
        pass

    def get_limit(self):
        return 0

    def free_all_blocks(self, stream=None):
        pass


POOL = MemoryPool()


def empty(shape, dtype=float, order="C"):
    shape = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    dtype = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    room = (np.empty if RUN else np.zeros)(size + 512, np.uint8)  # what is left out is the same each time
    start = -room.ctypes.data % 256
    made = ndarray(np.ndarray(shape, dtype, room, start, order=order))
    made._keep = room
    return made


def asarray(x, dtype=None, order=None, *, blocking=False):
    if isinstance(x, ndarray):
        return x if dtype is None or x.dtype == np.dtype(dtype) else x.astype(dtype)
    if isinstance(x, (list, tuple)) and any(isinstance(y, ndarray) for y in x):
        x = [plain(y) for y in x]
    no_capture("upload")
    x = np.asarray(x, dtype)
    made = empty(x.shape, x.dtype, order="F" if (order == "F" or order != "C" and x.flags.f_contiguous and not x.flags.c_contiguous) else "C")
    made.host[...] = x
    return made


def array(x, dtype=None, copy=True, order="K", subok=False, ndmin=0, *, blocking=False):
    made = asarray(plain(x) if isinstance(x, ndarray) else x, dtype)
    return made


def ascontiguousarray(x, dtype=None):
    x = asarray(x, dtype)
    if x.flags.c_contiguous:
        return x
    made = empty(x.shape, x.dtype)
    made.host[...] = x.host
    return made


def fresh(name):
    of = getattr(np, name)

    def make(*args, **how):
        strict(name, args)
        how = {k: plain(v) for k, v in how.items()}
        out = of(*map(plain, args), **how)
        if name in ("full", "zeros", "ones", "zeros_like", "ones_like", "full_like") and out.dtype.name == "bfloat16":
            LOW[name] += 1
        made = empty(out.shape, out.dtype)
        made.host[...] = out
        return made
    return make


class Module(types.ModuleType):
    def __init__(self, name, real, **known):
        super().__init__(name)
        self.__dict__["_real"] = real
        self.__dict__.update(known)
        self.__dict__["__path__"] = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        real = self.__dict__["_real"]
        if not hasattr(real, name):
            raise AttributeError(f"{self.__name__} has no {name}")
        if self.__name__ == "cupy" and hasattr(np, name):
            found = getattr(np, name)
            if callable(found) and not isinstance(found, type):
                def call(*args, **how):
                    strict(name, args)
                    how = {k: plain(v) for k, v in how.items()}
                    return wrap(found(*map(plain, args), **how))
                return call
            return found
        raise AttributeError(f"emulated {self.__name__} lacks {name}")


class Generator:
    def __init__(self, seed=None):
        self.g = np.random.default_rng(seed)

    def __getattr__(self, name):
        if name not in ("standard_normal", "random", "integers", "uniform"):
            raise AttributeError(f"cupy.random.Generator has no {name}")
        return lambda *a, **k: asarray(getattr(self.g, name)(*a, **k))


class Pinned:
    def __init__(self, size):
        self.room = bytearray(size)
        self.ptr = ctypes.addressof((ctypes.c_char * size).from_buffer(self.room))

    def __buffer__(self, flags):
        return memoryview(self.room)


def alloc_pinned_memory(size):
    room = np.zeros(size, np.uint8)

    class P(np.ndarray):
        ptr = property(lambda s: s.ctypes.data)
    return room.view(P)


@contextlib.contextmanager
def using_allocator(allocator=None):
    yield


def memcpyAsync(dst, src, size, kind, stream):
    ctypes.memmove(dst, src, size)


def elementwise(name):
    def make(*a, **k):
        raise NotImplementedError(name)
    return make


def install():
    global REAL
    import cupy as REAL_
    REAL = REAL_
    import cupy.cuda.runtime as rt
    import cupy.testing as really
    for name in [n for n in sys.modules if n.split(".")[0] in ("cupy", "cupyx", "cupy_backends")]:
        del sys.modules[name]
    runtime = Module("cupy.cuda.runtime", rt, getDevice=lambda: 0, getDeviceCount=lambda: int(os.environ.get("EMULATE_DEVICES", 1)), memcpyAsync=memcpyAsync, driverGetVersion=lambda: 13000, runtimeGetVersion=lambda: 13000,
                     memcpyDeviceToDevice=3, memcpyDeviceToHost=2, memcpyHostToDevice=1, CUDARuntimeError=rt.CUDARuntimeError, deviceSynchronize=lambda: None, profilerStart=lambda: None, profilerStop=lambda: None, streamCaptureModeRelaxed=2, streamCaptureModeThreadLocal=1, streamCaptureModeGlobal=0,
                     getDeviceProperties=lambda n: {"name": CARD[0].encode()}, memGetInfo=lambda: (CARD[2] - (10 << 30), CARD[2]), setDevice=lambda n: None)
    nvtx = types.SimpleNamespace(RangePush=lambda *a: None, RangePop=lambda: None, Mark=lambda *a: None)
    memory = Module("cupy.cuda.memory", REAL.cuda.memory, OutOfMemoryError=REAL.cuda.memory.OutOfMemoryError, MemoryPointer=Pointer)
    cuda = Module("cupy.cuda", REAL.cuda, Device=Device, Event=Event, Stream=Stream, ExternalStream=ExternalStream, MemoryPool=MemoryPool, MemoryPointer=Pointer, runtime=runtime, get_current_stream=lambda *a: CURRENT[0],
                  is_available=lambda: True, get_elapsed_time=lambda a, b: max(1e3 * (b.at - a.at), 1e-3), using_allocator=using_allocator, nvtx=nvtx, alloc_pinned_memory=alloc_pinned_memory, memory=memory, alloc=lambda n: empty(n, np.uint8).data,
                  get_allocator=lambda: POOL.malloc, set_allocator=lambda *a: None, graph=types.SimpleNamespace(Graph=Graph))
    random = Module("cupy.random", REAL.random, default_rng=Generator, seed=lambda s: np.random.seed(s), standard_normal=lambda size=None, dtype=float: asarray(np.random.standard_normal(size).astype(dtype)),
                    rand=lambda *s: asarray(np.random.rand(*s)), randn=lambda *s: asarray(np.random.randn(*s)), randint=lambda *a, **k: asarray(np.random.randint(*a, **k)), RandomState=None)
    known = dict(cuda=cuda, random=random, ndarray=ndarray, empty=empty, asarray=asarray, array=array, ascontiguousarray=ascontiguousarray, get_default_memory_pool=lambda: POOL, asnumpy=lambda x, **k: x.get() if isinstance(x, ndarray) else np.asarray(x),
                 asfortranarray=lambda x: ndarray(np.asfortranarray(x.host)), may_share_memory=lambda a, b: np.may_share_memory(a.host, b.host), shares_memory=lambda a, b: np.shares_memory(a.host, b.host),
                 broadcast_to=lambda x, shape: ndarray(np.broadcast_to(x.host, shape)), empty_like=lambda x, dtype=None, **k: empty(x.shape, dtype or x.dtype), RawModule=RawModule, get_array_module=lambda *a: sys.modules["cupy"],
                 get_default_pinned_memory_pool=lambda: POOL, from_dlpack=lambda x: ndarray(np.from_dlpack(x)), __version__=REAL.__version__)
    close = lambda got, want, *args, **how: np.testing.assert_allclose(*(x.get() if isinstance(x, ndarray) else x for x in (got, want)), *args, **how)
    known["testing"] = Module("cupy.testing", really, assert_allclose=close)
    made = Module("cupy", REAL, **known)
    for name in ("arange", "zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "concatenate", "stack", "eye", "linspace"):
        made.__dict__[name] = fresh(name)
    def copyto(dst, src, casting="same_kind", where=None):
        np.copyto(dst.host, plain(src), casting="unsafe" if "V" in (dst.dtype.kind,) else casting)
    made.__dict__["copyto"] = copyto
    sys.modules |= {"cupy": made, "cupy.cuda": cuda, "cupy.cuda.runtime": runtime, "cupy.random": random, "cupy.cuda.memory": memory, "cupy.cuda.nvtx": nvtx, "cupy._core": Module("cupy._core", REAL._core), "cupy._core.core": Module("cupy._core.core", REAL._core.core)}
    behind()


class RawModule:
    """A cubin's functions, which check how they are launched and do nothing."""

    def __init__(self, *, path):
        pass

    def get_function(self, name):
        def launched(grid, block, args, shared_mem=0, *_):
            assert len(grid) <= 3 and len(block) == 3 and shared_mem <= 232448
            STATE.left_out += 1
        launched.ptr = 1
        return types.SimpleNamespace(kernel=launched, name=name)


def behind():
    """A GPU behind the package: kernels that are left out, or run on the CPU."""
    from stof_cupy.jit import clusters, dependent, device, launch, tensormap
    from tests.ops import on_hopper
    from tests.masks import on_host
    from tests.runtime.cuda_path import H100
    import dataclasses
    facts = dataclasses.replace(H100, driver=13000, **dict(zip(("name", "l2_bytes", "memory_bytes", "memory_clock_khz", "memory_bus_bits"), CARD)))
    device._facts = lambda device_id: facts

    checked = tensormap.tensor_map
    tensormap._encoder = lambda: lambda *_: 0

    def tensor_map(address, dtype, dims, strides, box, *, swizzle=128):
        checked(address, dtype, dims, strides, box, swizzle=swizzle)
        return on_hopper.encode(address, dtype, dims, strides, box) if len(dims) == 4 else bytes(128)
    tensormap.tensor_map = tensor_map

    def load(spec, device_id):
        assert spec.supports("90a"), spec.name
        if log := os.environ.get("EMULATE_LOG"):
            with open(log, "ab") as file:
                import pickle
                pickle.dump(spec, file)
        assert spec.smem_bytes <= facts.smem_per_block_optin

        def launched(grid, block, args, shared_mem):
            (params,) = args
            assert block == (spec.threads, 1, 1) and shared_mem == spec.smem_bytes
            assert grid[0] < 2**31 and all(g < 65536 for g in grid[1:]) and grid[0] % spec.cluster == 0, grid
            assert all(isinstance(g, (int, np.integer)) for g in grid), grid
            packed = np.array([params], spec.params_dtype())

            def run():
                if spec.name == "packing":
                    from tests.runtime import fake_packing
                    return fake_packing.packed(grid, packed[0])
                k = next((int(packed[0][n]) for n in ("k", "cols") if n in packed.dtype.names and packed.dtype[n] == "i4"), 64)  # of attention it is an address
                work = spec.threads * int(np.prod(grid)) * (k / 64 + 4)
                if not RUN or work > MOST or os.environ.get("EMULATE_ONLY", "") not in spec.name:
                    STATE.left_out += 1
                    return
                start = time.time()
                STATE.ran += 1
                if spec.arch == "90a":
                    status = on_hopper._compiled(spec)(packed.ctypes.data, int(np.prod(grid)), 0)
                    assert status == 0, status
                else:
                    with ONE_AT_A_TIME:  # its params are static
                        if os.environ.get("EMULATE_SAY"):
                            print(spec.name, grid, flush=True)
                        products = on_host._compiled(spec)(packed.ctypes.data, grid[0], grid[1] if len(grid) > 1 else 1, 0, 1)
                    assert products >= 0
                TIMES[spec.name] += time.time() - start
            if capturing():
                STATE.capturing.append(run)
            else:
                run()
        launched.ptr = 1
        return launch.Kernel(spec, launched)
    launch._load = load

    import stof_cupy.testing as testing
    close = testing.assert_close

    def assert_close(got, exact, lowprec):
        if STATE.left_out:
            testing.budget(exact, lowprec, got.dtype)
            assert got.shape == np.asarray(exact).shape, (got.shape, np.asarray(exact).shape)
            return
        close(got, exact, lowprec)
    testing.assert_close = assert_close


def torch_too(folder):
    """torch of a folder of packages, whose tensors are on the CPU and whose graphs replay nothing."""
    sys.path.append(folder)
    import torch
    real_empty = torch.empty

    def on_cpu(of):
        def call(*args, device=None, **how):
            return of(*args, **how)
        return call
    for name in ("empty", "zeros", "ones", "randn", "tensor", "full", "arange", "rand", "randint"):
        setattr(torch, name, on_cpu(getattr(torch, name)))
    to = torch.Tensor.to
    torch.Tensor.to = lambda self, *a, **k: to(self, *[x for x in a if not (isinstance(x, str) and x.startswith("cuda"))], **{n: v for n, v in k.items() if n != "device"}) if [x for x in a if not (isinstance(x, str) and x.startswith("cuda"))] or [n for n in k if n != "device"] else self
    torch.Tensor.cuda = lambda self, *a, **k: self

    class TorchEvent:
        def __init__(self, enable_timing=False, **_):
            self.at = 0.0

        def record(self, stream=None):
            self.at = time.perf_counter()

        def synchronize(self):
            pass

        def elapsed_time(self, other):
            return max(1e3 * (other.at - self.at), 1e-3)

    class TorchStream:
        cuda_stream = 1

        def wait_stream(self, other):
            pass

        def synchronize(self):
            pass

        def wait_event(self, e):
            pass

    class TorchGraph:
        def replay(self):
            pass

    @contextlib.contextmanager
    def inside(*_, **__):
        yield
    c = torch.cuda
    c.Event, c.Stream, c.CUDAGraph, c.graph, c.stream = TorchEvent, TorchStream, TorchGraph, inside, inside
    c.current_stream = lambda *a: TorchStream()
    c.synchronize = c.empty_cache = c.set_device = lambda *a: None
    c.is_available = lambda: True
    c.device_count = lambda: 1
    c.get_device_name = lambda *a: CARD[0]
    c.max_memory_allocated = c.memory_allocated = lambda *a: 0
    c.reset_peak_memory_stats = lambda *a: None
    torch.compile = lambda f=None, **how: f if f is not None else (lambda g: g)


class Plugin:
    def pytest_runtest_call(self, item):
        STATE.ran = 0
        STATE.left_out *= not RUN  # of a benchmark's cell what is compared was left out in another of its tests
        STATE.capturing = STATE.stream = None

    def pytest_terminal_summary(self, terminalreporter):
        print("\nin bfloat16:", dict(LOW))
        print("slowest kernels:", TIMES.most_common(5))


def compare_what_ran():
    """Comparisons of NumPy and torch are of shapes alone where a launch was left out."""
    close = np.testing.assert_allclose

    def assert_allclose(got, want, *args, **how):
        if not STATE.left_out:
            return close(got, want, *args, **how)
        assert np.shape(got) == np.shape(want), (np.shape(got), np.shape(want))
    np.testing.assert_allclose = assert_allclose
    from tests.ops import hopper_case
    compare = hopper_case.compare

    def compared(case, out, lse):
        if not STATE.left_out:
            return compare(case, out, lse)
        exact, exact_lse, _ = case.oracle()
        assert out.shape == exact.shape and lse.shape == exact_lse.shape
    hopper_case.compare = compared
    if torch := sys.modules.get("torch"):
        same = torch.testing.assert_close

        def assert_close(got, want, **how):
            if not STATE.left_out:
                return same(got, want, **how)
            assert got.shape == want.shape and got.dtype == want.dtype, (got.shape, want.shape, got.dtype, want.dtype)
        torch.testing.assert_close = assert_close


def peers():
    """torch's attention checks its arguments and returns zeros."""
    import torch
    from torch.nn.attention import flex_attention as flex
    sys.path.append(os.path.join(HERE, "emulated_peers"))

    def sdpa(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
        assert q.dtype == k.dtype == v.dtype and (enable_gqa or q.shape[1] == k.shape[1])
        return torch.zeros_like(q)

    def flex_attention(q, k, v, score_mod=None, block_mask=None, scale=None, enable_gqa=False, return_lse=False, kernel_options=None):
        assert block_mask is None or block_mask.seq_lengths == (q.shape[2], k.shape[2])
        return torch.zeros_like(q)
    torch.nn.functional.scaled_dot_product_attention, flex.flex_attention = sdpa, flex_attention


def seldom(every):
    """Compile every so many-th kernel only; of the others an entry is made up."""
    from stof_cupy.jit import cache
    get, count = cache.Store.get, [0]

    def some(self, spec, arch, *args, **how):
        count[0] += 1
        if count[0] % every == 0:
            return get(self, spec, arch, *args, **how)
        return types.SimpleNamespace(cubin=types.SimpleNamespace(spill_bytes=0, log=""), path="none")
    cache.Store.get = some


def small():
    """Fewer heads, the same names of sizes; little that is flushed, few rounds."""
    import device_time
    import shapes
    device_time.FLUSH_BYTES, device_time.SPENT_MS = 2**12, 0.0
    shapes.HOPPER_ATTENTION, shapes.HEAVY_ATTENTION = ((1, 2, 8192, 128), (2, 2, 2048, 64)), ((1, 1, 32_768, 128),)
    shapes.HOPPER_DIMS = tuple((1, 1, 8192, dim) for dim in (64, 128, 192, 256))
    shapes.HOPPER_SMALL = ((2, 2, 512, 64), (1, 2, 128, 64))
    shapes.GEMM_WEIGHTS, shapes.GEMM_CUBES = tuple((n // 12 // 8 * 8, k) for n, k in shapes.GEMM_WEIGHTS), (256,)
    shapes.HOPPER_SCATTERED = tuple(((b, 1, s, d), name) for (b, _, s, d), name in shapes.HOPPER_SCATTERED)


def main(arguments):
    sys.path.insert(0, os.getcwd())
    sys.modules["emulated_gpu"] = sys.modules["__main__"]
    folder = os.environ.get("EMULATE_TORCH")
    shim = os.path.join(HERE, "emulated_bin", "python3")
    if os.environ.get("EMULATE_BIN"):  # processes that are started are emulated too
        import multiprocessing
        sys.executable = shim
        multiprocessing.set_executable(shim)
    if folder and importlib.util.find_spec("torch") is None:
        sys.path.append(folder)
    if folder:
        import torch
        import torch._dynamo
        import torch.nn.attention.flex_attention
    install()
    if folder:
        torch_too(folder)
    if folder and os.environ.get("EMULATE_PEERS"):
        peers()
    compare_what_ran()
    if os.environ.get("EMULATE_SMALL") and importlib.util.find_spec("shapes"):
        small()
    if every := os.environ.get("EMULATE_COMPILE"):
        seldom(int(every))
    if arguments[0] == "pytest" or arguments[:2] == ["-m", "pytest"]:
        import pytest
        marks = ["-m", "gpu", "-p", "no:cacheprovider"] if arguments[0] == "pytest" else []
        rest = arguments[1:] if arguments[0] == "pytest" else arguments[2:]
        sys.exit(pytest.main([*marks, *rest], plugins=[Plugin()]))
    if arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        exec(compile(arguments[1], "<string>", "exec"), sys.modules["__main__"].__dict__)
    elif arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
