"""What tests of fusion share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from stof_cupy.fusion import products
from stof_cupy.graph import turned
from stof_cupy.ops import gemm_choice, gemm_model, gemm_pair

CACHED = (
    *(gemm_model.choose, gemm_model.choose_norm, gemm_choice.choices, gemm_choice.norm),
    *(gemm_pair.choose, products._estimates, turned.in_one),
)


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bool], None]]:
    """Return what decides whether all of Hopper's products are chosen; choices are cached."""

    def choose(every: bool) -> None:
        monkeypatch.setattr(gemm_model, "ALL_OF_HOPPER", every)
        for cached in CACHED:
            cached.cache_clear()

    yield choose
    for cached in CACHED:
        cached.cache_clear()
