import sys, os, pickle, warnings, tempfile
mode, out, count, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
os.environ["STOF_CACHE_DIR"] = os.environ.get("FZ_CACHE") or tempfile.mkdtemp()
sys.path.insert(0, os.getcwd()); sys.path.insert(0, os.getcwd() + "/scratch")
import numpy as np
warnings.simplefilter("ignore")
LOG = []
if mode == "cuda":
    import emulated_gpu as eg
    eg.install()
    from stof_cupy.jit import cache as _c
    import cupy
else:
    cupy = None
from stof_cupy import TransformerEngine, models
from stof_cupy.graph import Executor
from tests.runtime import cuda_path
real = Executor.run
def run(self, inputs, *a, **k):
    def snap(extra=None):
        LOG.append({n: (x.host if hasattr(x, "host") else x).copy() for n, x in inputs.items() if hasattr(x, "dtype") and hasattr(x, "copy") and not hasattr(x, "tiles")})
        for n, x in inputs.items():
            if hasattr(x, "toarray") and mode != "cuda": LOG[-1][n] = np.asarray(x.toarray())
    if mode == "cuda" and eg.capturing(): eg.STATE.capturing.append(snap)
    else: snap()
    return real(self, inputs, *a, **k)
Executor.run = run
how = dict(backend="cuda", dtype="bfloat16") if mode == "cuda" else dict(backend="numpy")
engines = []
for cfg, more in ((cuda_path.BERT, {}), (cuda_path.BERT, {"cuda_graphs": False}), (cuda_path.GPT2, {})):
    if mode != "cuda" and more: continue
    engines.append(TransformerEngine(models.random_weights(cfg, 0), config=cfg, **how, **(more if mode == "cuda" else {})))
rng = np.random.default_rng(seed)
pick = lambda *xs: xs[int(rng.integers(len(xs)))]
def row(n, most, where, flaw):
    dt = pick("int32", "int32", "int64", "int8", "uint8", "uint32", "uint64", "int16")
    a = rng.integers(0, most, n).astype(dt)
    if flaw == "neg" and n and dt[0] == "i": a[rng.integers(n)] = -3
    if flaw == "big" and n: a[rng.integers(n)] = min(pick(50, 100, 2**31, 2**32, 2**63), np.iinfo(a.dtype).max)
    if flaw == "float": a = a.astype("float32")
    if flaw == "bool": a = a.astype(bool)
    if flaw == "complex": a = a.astype("complex64")
    if flaw == "2d": a = a[None]
    if flaw == "2dT": a = a[:, None]
    if flaw == "0d": a = np.array(1)
    if flaw == "swap": a = a.astype(">i4")
    s = pick(1, 1, 1, 2, -1)
    if a.ndim == 1 and s == 2: b = np.zeros(2 * len(a), a.dtype); b[::2] = a; a = b
    if flaw == "none": return None
    if where == "list": return a.tolist()
    if where == "tuple" and a.ndim: return tuple(a.tolist())
    if where == "cupy":
        if a.dtype.kind == "c" or not a.dtype.isnative: return a
        a = cupy.asarray(a)
    if a.ndim == 1 and s == 2: a = a[::2]
    elif a.ndim == 1 and s == -1: a = a[::-1]
    return a
def flaw(): return pick("neg", "big", "float", "bool", "complex", "2d", "2dT", "0d", "swap", "none") if rng.random() < .12 else ""
def sequences(lengths, most, allow):
    same = pick(*allow)
    return [row(n, most, same if rng.random() < .8 else pick(*allow), flaw()) for n in lengths]
kinds = ["cupy", "cupy", "numpy", "list", "tuple"] if mode == "cuda" else ["numpy", "list", "tuple"]
def types_of(lengths):
    r = rng.random()
    if r < .5: return None
    L = list(lengths)
    if rng.random() < .1: L[rng.integers(len(L))] += 1
    if rng.random() < .1: L.pop()
    if rng.random() < .03: L = []
    t = sequences(L, 2, kinds)
    q = rng.random()
    if q < .05: return tuple(t)
    if q < .08: return (x for x in t)
    if q < .11: return np.zeros((len(L), 3), np.int32)
    if q < .13 and cupy: return cupy.asarray(np.zeros((len(L), 3), np.int32))
    if q < .14: return 3
    if q < .15: return "ab"
    return t
def mask_of(): return pick(None, None, None, "causal", "full", "sliding:w=2", "nonsense", ["full", "full"], np.ones((4, 4), bool), lambda n: np.tril(np.ones((n, n), bool)), lambda n: "full")
def tell(x):
    if isinstance(x, list): return [tell(y) for y in x]
    k = type(x).__module__.split(".")[0]
    h = x.host if hasattr(x, "host") else x
    return (k, h.shape, str(h.dtype), None if mode == "cuda" else h.copy())
results = []
for i in range(count):
    e = int(rng.integers(len(engines)))
    L = [0 if rng.random() < .12 else int(rng.integers(1, 24)) for _ in range(int(rng.integers(1, 6)))]
    if rng.random() < .02: L = [0] * len(L)
    if rng.random() < .02: L[0] = 600
    x = sequences(L, 50, kinds)
    types = types_of(L); mask = mask_of(); more = {"lengths": L} if rng.random() < .02 else {}
    desc = (e, L, [(type(r).__module__.split(".")[0], type(r).__name__, str(getattr(r, "dtype", "")), getattr(r, "shape", None)) for r in x], type(types).__name__, mask if isinstance(mask, str) else type(mask).__name__, [str(getattr(r,"dtype",type(r))) for r in types] if isinstance(types, (list, tuple)) else None)
    LOG.clear()
    try:
        made = tell(engines[e].run(x, token_types=types, mask=mask, **more)); err = None
        T = sum(L)
        last = LOG[-1] if LOG else {}
        read = {n: a[:, :T] if a.ndim == 2 and n != "mask" else a for n, a in last.items() if "mask" not in n}
        results.append((desc, "ok", made, read))
    except Exception as error:
        results.append((desc, type(error).__name__, str(error), None))
pickle.dump(results, open(out, "wb"))
from collections import Counter
print(Counter(r[1] for r in results))
