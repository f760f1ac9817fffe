"""The yardstick of GPU tests passes what is like it and nothing else; none of it needs one."""

from __future__ import annotations

import numpy as np
import pytest

from stof_cupy.dtypes import as_dtype
from stof_cupy.testing import assert_close, budget
from tests.models.rounded import check_logits

FLOAT16 = as_dtype("float16")


@pytest.fixture
def logits() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Exact ones, the same rounded, and the best tokens; the last two positions are close calls."""
    rng = np.random.default_rng(0)
    exact = rng.standard_normal((2, 9, 40)).astype(np.float32)
    exact[..., 3] = 6
    exact[0, -2:, 5] = 6 - np.float32([1e-4, 0.04])
    low = exact + rng.uniform(-0.01, 0.01, exact.shape).astype(np.float32)
    return exact, low, exact.argmax(axis=-1)


def test_what_is_rounded_likewise_passes(logits):
    exact, low, tokens = logits
    sure = check_logits(low.astype(FLOAT16), exact, low, tokens)
    assert not sure[0, -2] and sure.sum() == sure.size - 1


def test_a_best_token_that_is_another_is_seen_beyond_the_budget_of_logits(logits):
    """Though each logit is within it: two errors of opposite sign are what it would take."""
    exact, low, tokens = logits
    allowed = budget(exact, low.astype(FLOAT16), FLOAT16)
    gap = exact[0, -1, 3] - exact[0, -1, 5]
    assert allowed < gap < 2 * allowed
    got = low.copy()
    got[0, -1, [3, 5]] += np.float32([-0.9, 0.9]) * allowed - (low - exact)[0, -1, [3, 5]]
    got = got.astype(FLOAT16)
    assert_close(got, exact, low.astype(FLOAT16))
    with pytest.raises(AssertionError):
        check_logits(got, exact, low, tokens)


def test_an_error_of_all_that_is_small_is_seen(logits):
    exact, low, tokens = logits
    with pytest.raises(AssertionError):
        check_logits((low + 0.013).astype(FLOAT16), exact, low, tokens)
