"""Two products in one kernel beside two kernels, bfloat16: PYTHONPATH=$PWD python3 scratch/gemm_pair.py; 15 s on an H100 by estimate, kernels of 2 s each not counted.

Every tile that fits is compared with float32 products in CuPy (what is between rounded as the kernels do), then timed by the replay of a CUDA graph of 20 calls;
inputs of the smaller shapes stay in L2. Beside each time stands what gemm_pair.predict said, and for two kernels gemm_pair.apart.
"""
import os, sys

sys.path[:0] = [os.getcwd()]
from stof_cupy.jit.epilogues import EpilogueKind

KINDS = EpilogueKind(bias=True, activation="gelu_tanh"), EpilogueKind(bias=True, residual=True)
SHAPES = [(m, k, h, k) for k, h in ((64, 256), (128, 512), (192, 768), (256, 1024)) for m in (16, 512, 4096, 32768)]  # M, K, H, N
SHAPES += [(100_000, 64, 128, 64), (1_000_000, 32, 128, 32), (32768, 96, 384, 96)]


def main():
    import cupy
    import numpy as np
    from stof_cupy import Epilogue
    from stof_cupy.jit import device
    from stof_cupy.ops import gemm_gemm, gemm_pair
    from stof_cupy.ops.attention_timing import graph_us
    from stof_cupy.ops.gemm import gemm
    from stof_cupy.ops.gemm_args import Problem
    from stof_cupy.ops.gemm_timing import normal

    facts, wrong = device.facts(), 0
    print(facts.name)
    for m, k, h, n in SHAPES:
        x, b, d = normal((m, k), "bfloat16", 0), normal((h, k), "bfloat16", 1, k**-0.5), normal((n, h), "bfloat16", 2, h**-0.5)
        between = Epilogue(normal((h,), "bfloat16", 3), KINDS[0].activation)
        after = Epilogue(normal((n,), "bfloat16", 4), residual=normal((m, n), "bfloat16", 5))
        pair = gemm_pair.Pair(Problem("bfloat16", m, h, k, KINDS[0]), Problem("bfloat16", m, n, h, KINDS[1]))
        out, inside, want = cupy.empty((m, n), x.dtype), cupy.empty((m, h), x.dtype), cupy.empty((m, n), x.dtype)

        def two():
            gemm(x, b.T, epilogue=between, out=inside)
            gemm(inside, d.T, epilogue=after, out=want)

        shown, gave = [f"two {graph_us(two):7.1f} us ({gemm_pair.apart(pair, facts):6.1f})"], wide(want)
        for tile in gemm_pair.candidates(pair, facts):
            def one():
                gemm_gemm.launch(tile, pair, x, b.T, d.T, between, after, out)

            out.view(np.uint16).fill(0x7FC0)
            one()
            off = float(abs(wide(out) - gave).max() / abs(gave).max())
            wrong += not off < 2**-6
            us = graph_us(one)
            shown.append(f"{tile.m}x{tile.hidden} {us:7.1f} ({gemm_pair.predict(tile, pair, facts):6.1f}){'' if off < 2**-6 else f' WRONG by {off:.1e}'}")
        print(f"{m:8} {k:4} -> {h:4} -> {n:4}: {' | '.join(shown)}", flush=True)
    print("pairs:", wrong or "none", "wrong")


def wide(x):
    """bfloat16 as float32."""
    import numpy as np
    return (x.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


if __name__ == "__main__":
    main()
