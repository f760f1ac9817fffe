"""Chains of products as a token has them, with every switch, recorded: they say what they said."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest

from stof_cupy.ops import gemm_choice, reference, reference_decoder
from stof_cupy.ops.epilogue import Epilogue
from stof_cupy.ops.gemm import gemm
from stof_cupy.ops.normed_gemm import normed_gemm
from stof_cupy.ops.token_switches import SWITCHES, Switches
from stof_cupy.testing import assert_close, random_array, rng

DEPTH = 12
SAME = (
    *({"ahead": ahead, "early": early} for ahead, early in product((0, 1, 2), (False, True))),
    *({"alone": alone, "ahead": 2, "early": True} for alone in (1, 2)),
    *({"near": True, "ahead": ahead, "early": True} for ahead in (0, 2)),
    {"carveout": True, "ahead": 2, "early": True},
    {"once": True, "stay": True, "ahead": 2, "early": True},
)
"""What changes no sum."""


def test_all_are_off() -> None:
    assert Switches() == SWITCHES


def set_(monkeypatch: pytest.MonkeyPatch, **how: Any) -> None:
    for name, value in {**vars(Switches()), **how}.items():
        monkeypatch.setattr(SWITCHES, name, value)
    gemm_choice.choices.cache_clear()


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

    def run(self) -> None:
        """Compute what `x` is in the end."""
        self.x[...] = self.first
        gate = Epilogue(activation="silu", gated=True)
        for norm, up, down in self.layers:
            how = {"epilogue": gate, "out": self.y, "constant": True}
            normed_gemm(self.x, norm, up.T, eps=1e-5, **how)
            gemm(self.y, down.T, epilogue=Epilogue(residual=self.x), out=self.x, constant=True)

    def recorded(self) -> list[Any]:
        """Return what several launches of a recording give."""
        import cupy

        pool = cupy.cuda.MemoryPool()
        with cupy.cuda.Stream(non_blocking=True) as stream:
            self.run()  # kernels are compiled
            with cupy.cuda.using_allocator(pool.malloc):
                stream.begin_capture()
                self.run()
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
def test_chains_say_the_same(
    m: int, width: int, inner: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cupy")
    chain = Chain(m, width, inner)
    set_(monkeypatch)
    want = chain.recorded()[0]
    assert np.isfinite(want).all()
    for how in SAME:
        set_(monkeypatch, **how)
        for got in chain.recorded():
            assert np.array_equal(got, want), how
    gemm_choice.choices.cache_clear()


@pytest.mark.gpu
@pytest.mark.parametrize("m", [1, 4, 16])
def test_rows_that_are_normalised_as_weights_stream(
    m: int, hopper: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for ahead, alone, (n, k) in product((0, 2), (0, 2), ((960, 576), (77, 1000), (2048, 1024))):
        set_(monkeypatch, normed=True, ahead=ahead, early=ahead > 0, alone=alone)
        g = rng(m + n)
        x, norm, w = (random_array(g, s, "float16") for s in ((m, k), (k,), (n, k)))
        exact = reference.gemm(reference_decoder.rms_norm(x, norm, eps=1e-5), w.T)
        low = reference_decoder.rms_norm(x, norm, eps=1e-5, precision="float16")
        compare = partial(assert_close, exact=exact)
        on = [hopper.asarray(each) for each in (x, norm, w)]
        first = normed_gemm(on[0], on[1], on[2].T, eps=1e-5, constant=True)
        compare(first, lowprec=reference.gemm(low, w.T, precision="float16"))
        for _ in range(10):
            again = normed_gemm(on[0], on[1], on[2].T, eps=1e-5, constant=True)
            assert bool((again == first).all())
    gemm_choice.choices.cache_clear()
