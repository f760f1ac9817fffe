import sys, os, warnings, tempfile
os.environ["STOF_CACHE_DIR"] = "/tmp/sHost2_fz/cache"
sys.path.insert(0, os.getcwd()); sys.path.insert(0, os.getcwd() + "/scratch")
import numpy as np
warnings.simplefilter("ignore")
import emulated_gpu as eg; eg.install()
import cupy
from stof_cupy import TransformerEngine, models
from stof_cupy.runtime.packing import packed_mask
from tests.runtime import cuda_path
e = TransformerEngine(models.random_weights(cuda_path.BERT, 0), config=cuda_path.BERT, backend="cuda", dtype="bfloat16")
p = e._program.packed()
L = (3, 0, 7); T = 10
ids = np.arange(T, dtype=np.int32)[None]; z = np.zeros((1, T), np.int32); m = packed_mask(None, L)
masks = {n: m for n, d in p.graph.inputs.items() if d.dtype == "mask"}
print({n: d.dtype for n, d in p.graph.inputs.items()})
good = {"ids": ids, "token_types": z, **masks}
cases = {
 "good": good, "unknown": {**good, "nonsense": z}, "unknown cupy": {**good, "nonsense": cupy.asarray(z)}, "missing": {k: v for k, v in good.items() if k != "ids"},
 "no types": {k: v for k, v in good.items() if k != "token_types"}, "types None": {**good, "token_types": None}, "3d": {**good, "ids": np.zeros((1, T, 2), np.int32)},
 "float": {**good, "ids": ids.astype("float32")}, "int64": {**good, "ids": ids.astype("int64")}, "uint8": {**good, "ids": cupy.asarray(ids.astype("uint8"))},
 "complex": {**good, "ids": ids.astype("complex64")}, "positions": {**good, "packed.positions": z}, "positions wrong": {**good, "packed.positions": z.astype("float32")},
 "object": {**good, "ids": ids.astype(object)}, "list": {**good, "ids": ids.tolist()}, "not mapping": [1], "extra None": {**good, "nonsense": None}, "extra str": {**good, "nonsense": "x"},
 "strided": {**good, "ids": cupy.asarray(np.arange(2*T, dtype=np.int32)[None])[:, ::2]},
}
for fresh in (0, 1):
    for name, g in cases.items():
        for k in range(3):
            for lens in (L, None):
                if fresh: p = TransformerEngine(models.random_weights(cuda_path.BERT, 0), config=cuda_path.BERT, backend="cuda", dtype="bfloat16")._program.packed() if k == 0 and lens else p
                try: r = {n: (a.shape, str(a.dtype)) for n, a in p.run(g, lengths=lens).items()}
                except Exception as x: r = f"{type(x).__name__}: {x}"
                print(fresh, name, k, lens, str(r)[:160])
p.close()
try: p.run(good, lengths=L)
except Exception as x: print("closed", type(x).__name__, x)
e.close()
for x in ([cupy.asarray(ids[0])], [cupy.asarray(ids[0] + 100)]):
    try: e.run(x + x)
    except Exception as x: print("closed", type(x).__name__, x)
