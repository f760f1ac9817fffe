"""Chains of products as a token has them, recorded: early reads change nothing of what they say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stof_cupy.ops.epilogue import Epilogue
from stof_cupy.ops.gemm import gemm
from stof_cupy.ops.normed_gemm import normed_gemm
from stof_cupy.testing import random_array, rng

DEPTH = 12


class Chain:
    """Layers of two products on the GPU: of normalised rows, gated, and back, with a residual."""

    def __init__(self, m: int, width: int, inner: int) -> None:
        import cupy

        g = rng(m)
        every = [
            (
                (1 + 0.1 * random_array(g, (width,))).astype(np.float16),
                random_array(g, (2 * inner, width), "float16", width**-0.5),
                random_array(g, (width, inner), "float16", inner**-0.5),
            )
            for _ in range(DEPTH)
        ]
        self.layers = [tuple(map(cupy.asarray, each)) for each in every]
        self.first = cupy.asarray(random_array(g, (m, width), "float16"))
        self.x = cupy.empty_like(self.first)
        self.y = cupy.empty((m, inner), np.float16)

    def run(self, constant: bool) -> None:
        """Compute what `x` is in the end."""
        self.x[...] = self.first
        gate = Epilogue(activation="silu", gated=True)
        for norm, up, down in self.layers:
            how = {"epilogue": gate, "out": self.y, "constant": constant}
            normed_gemm(self.x, norm, up.T, eps=1e-5, **how)
            how = {"epilogue": Epilogue(residual=self.x), "out": self.x, "constant": constant}
            gemm(self.y, down.T, **how)

    def recorded(self, constant: bool) -> list[Any]:
        """Return what several launches of a recording give."""
        import cupy

        pool = cupy.cuda.MemoryPool()
        with cupy.cuda.Stream(non_blocking=True) as stream:
            self.run(constant)  # kernels are compiled
            with cupy.cuda.using_allocator(pool.malloc):
                stream.begin_capture()
                self.run(constant)
                graph = stream.end_capture()
            made = []
            for _ in range(20):
                self.x.fill(np.nan)
                graph.launch(stream)
                made.append(self.x.get(stream=stream))
            stream.synchronize()
        return made


@pytest.mark.gpu
@pytest.mark.parametrize("m", [1, 3, 9])
@pytest.mark.parametrize(("width", "inner"), [(576, 1536), (2048, 2056)])
def test_chains_say_the_same(m: int, width: int, inner: int) -> None:
    pytest.importorskip("cupy")
    chain = Chain(m, width, inner)
    want = chain.recorded(constant=False)[0]
    assert np.isfinite(want).all()
    for constant in (False, True):
        for got in chain.recorded(constant):
            assert np.array_equal(got, want)
