import sys, os, warnings, threading, weakref, gc
os.environ["STOF_CACHE_DIR"] = "/tmp/sHost2_fz/cache"
sys.path.insert(0, os.getcwd()); sys.path.insert(0, os.getcwd() + "/scratch")
import numpy as np
warnings.simplefilter("ignore")
import emulated_gpu as eg
HOST = ["t0"]; CLK = {}; ACC = []; RACES = []; TICK = [0]
STATS = {"ops": 0, "pairs": 0, "frees": 0}
def clk(n): return CLK.setdefault(n, {})
def join(a, b):
    for k, v in b.items():
        if a.get(k, 0) < v: a[k] = v
def ident(s): return "null" if s.ptr == 0 else id(s)
def op(kind, ranges_r, ranges_w, stream=None):
    s = ident(stream or eg.CURRENT[0]); c = clk(s); join(c, clk("g")); c[s] = c.get(s, 0) + 1
    STATS["ops"] += 1
    for w, rs in ((0, ranges_r), (1, ranges_w)):
        for lo, hi in rs:
            for (l2, h2, w2, s2, t2, k2) in ACC:
                if lo < h2 and l2 < hi and (w or w2) and s2 != s:
                    STATS["pairs"] += 1
                    if c.get(s2, 0) < t2: RACES.append((k2, kind, HOST[0]))
            ACC.append((lo, hi, w, s, c[s], kind))
def span(a):
    h = a.host if hasattr(a, "host") else a
    lo, hi = np.lib.array_utils.byte_bounds(h) if hasattr(np.lib, "array_utils") else np.byte_bounds(h)
    return (lo, hi)
def freed(lo, hi, s, what):
    STATS["frees"] += 1
    now = dict(clk(s)) if s else {}; join(now, clk("g"))
    keep = []
    for a in ACC:
        if a[0] >= lo and a[1] <= hi:
            if a[3] != s and now.get(a[3], 0) < a[4]: RACES.append(("freed while", a[5], what))
        else: keep.append(a)
    ACC[:] = keep
real_empty = eg.empty
class Room(np.ndarray): pass
def empty(shape, dtype=float, order="C"):
    made = real_empty(shape, dtype, order)
    root = made.host
    while isinstance(root.base, np.ndarray): root = root.base
    if not eg.capturing():
        lo, hi = root.__array_interface__["data"][0], root.__array_interface__["data"][0] + root.nbytes
        weakref.finalize(root, freed, lo, hi, ident(eg.CURRENT[0]), "room")
    return made
eg.empty = empty
def pinned(size):
    room = np.zeros(size, np.uint8)
    class P(np.ndarray): ptr = property(lambda s: s.ctypes.data)
    lo = room.__array_interface__["data"][0]
    weakref.finalize(room, freed, lo, lo + size, None, "pinned")
    return room.view(P)
eg.alloc_pinned_memory = pinned
eg.Event.record_ = None
def record(self, event=None):
    event = event or eg.Event(); event.at = 0; join(clk(ident(self)), clk("g")); event.clk = dict(clk(ident(self))); return event
eg.Stream.record = record
eg.Event.record = lambda self, stream=None: setattr(self, "clk", dict(clk(ident(stream or eg.CURRENT[0])))) or setattr(self, "at", 0)
eg.Stream.wait_event = lambda self, e: join(clk(ident(self)), getattr(e, "clk", {}))
eg.Event.synchronize = lambda self: join(clk("g"), getattr(self, "clk", {}))
eg.Stream.synchronize = lambda self: join(clk("g"), clk(ident(self)))
real_get = eg.ndarray.get
def get(self, stream=None, order="C", out=None, blocking=True):
    op("get", [span(self)], [span(out)] if out is not None and out.size else [])
    if blocking: join(clk("g"), clk(ident(eg.CURRENT[0])))
    return real_get(self, stream, order, out, blocking)
eg.ndarray.get = get
def amax(self, *a, **k):
    op("max", [span(self)], []); made = eg.empty((), self.dtype); made.host[...] = self.host.max(); op("max out", [], [span(made)]); return made
eg.ndarray.max = amax
real_copy = eg.ndarray.copy
def copy(self, order="C"):
    made = eg.empty(self.shape, self.dtype); made.host[...] = self.host
    if not eg.capturing(): op("copy", [span(self)], [span(made)])
    return made
eg.ndarray.copy = copy
real_set = eg.ndarray.__setitem__
def setitem(self, key, value):
    if not eg.capturing(): op("copy in", [span(value)] if hasattr(value, "host") else [], [span(self)])
    real_set(self, key, value)
eg.ndarray.__setitem__ = setitem
eg.install()
from tests.runtime import fake_packing
real_packed = fake_packing.packed
def packed(grid, params):
    table, size, count = (int(params[n]) for n in ("table", "size", "sequences"))
    words = fake_packing._memory(table, 8 * (count + grid[1] * (3 + 2 * count))).view(np.int64)
    r, w = [], []
    lens = np.diff(words[:count], prepend=0)
    for col in words[count:].reshape(grid[1], 3 + 2 * count):
        w.append((int(col[0]), int(col[0]) + size * max(1, int(col[2])) * 4))
        if col[1] not in (fake_packing.POSITION, fake_packing.SEQUENCE):
            for n, first, step in zip(lens, *col[3:].reshape(2, count)):
                if first > 0 and n: r.append((min(int(first), int(first + (n - 1) * step)), max(int(first), int(first + (n - 1) * step)) + 1))
    op("packing", r, w)
    return real_packed(grid, params)
fake_packing.packed = packed
import cupy
from stof_cupy import TransformerEngine, models
from stof_cupy.graph import Executor
from tests.runtime import cuda_path
PROG = [None]; READ = []
real = Executor.run
def run(self, inputs, *a, **k):
    arrays = [x for n, x in inputs.items() if hasattr(x, "host")]
    ids = [d.ids for d in PROG[0]._masks.values() if d._lock.locked()] if PROG[0] is not None else []
    spans = [span(x) for x in [*arrays, *ids]]
    mem = dict(ids=inputs["ids"].host, types=inputs["token_types"].host)
    def go():
        op("run", spans, [])
        READ.append({k: v[0].copy() for k, v in mem.items()})
    if eg.capturing(): eg.STATE.capturing.append(go)
    else: go()
    return real(self, inputs, *a, **k)
Executor.run = run
how = dict(backend="cuda", dtype="bfloat16")
if len(sys.argv) > 1: 
    from stof_cupy.runtime.program import Options
e = TransformerEngine(models.random_weights(cuda_path.BERT, 0), config=cuda_path.BERT, **how)
PROG[0] = e._program.packed()
A = {t: (eg.Stream(non_blocking=True), threading.local()) for t in ("t0", "t1", "t2")}
rng = np.random.default_rng(int(os.environ.get("SEED", 0)))
bad_seen = good_seen = 0
for i in range(160):
    HOST[0] = t = str(rng.choice(list(A))); stream, local = A[t]
    if hasattr(PROG[0], "_beside"): PROG[0]._beside = local
    eg.CURRENT[0] = stream
    L = [int(rng.integers(0, 30)) for _ in range(4)]; L[0] += 1
    dt = str(rng.choice(["int32", "int64", "int16"]))
    mk = lambda most: [cupy.asarray(rng.integers(0, most, n).astype(dt)) for n in L]
    x, types = mk(50), mk(2) if rng.random() < .6 else None
    bx, bt = rng.random() < .15, types is not None and rng.random() < .15
    if bx: x[0].host[0] = 99
    if bt: types[0].host[0] = 9
    want = np.concatenate([r.host for r in x]), np.concatenate([r.host for r in types]) if types else np.zeros(sum(L))
    READ.clear()
    try:
        out = e.run(x, token_types=types, mask=[None, "causal"][int(rng.random() < .3)])
        assert not bx and not bt, i
        for o in out: op("use", [span(o)], [])
        del out
    except Exception as error:
        assert bx or bt, error
        assert str(error).startswith("x[0][0, 0]: got 99" if bx else "token_types[0][0, 0]: got 9"), error
        bad_seen += 1; del error
    for r in [r for r in READ if r["ids"].any()] or READ[-1:]:
        if os.environ.get("SHOW") and not (r["ids"][:sum(L)] == want[0]).all(): print(i, r, want); sys.exit()
        assert bx or bt or (r["ids"][:sum(L)] == want[0]).all() and not r["ids"][sum(L):].any() and (r["types"][:sum(L)] == want[1]).all(), i
    good_seen += len(READ)
    del x, types
    if rng.random() < .03: PROG[0]._recordings.clear()
from collections import Counter
print(STATS, "refused", bad_seen, "reads checked", good_seen, "replayed", PROG[0]._recordings.replayed, "races", Counter(RACES).most_common(8))
