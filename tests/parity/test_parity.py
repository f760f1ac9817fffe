"""all-MiniLM-L6-v2 on 64 real texts of 4 to 300 tokens agrees with Hugging Face transformers.

The goldens come from texts run alone; here they run in padded batches, which tests padding too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from stof_cupy import TransformerEngine
from stof_cupy.dtypes import as_dtype
from stof_cupy.errors import StofWarning
from stof_cupy.models import packaged
from stof_cupy.models.tokenizer import pad
from stof_cupy.testing import assert_close
from tests.models.rounded import Rounded

pytestmark = pytest.mark.checkpoint

HERE = Path(__file__).parent
BATCH = 16

LONGEST = 300
"""Tokens; the goldens are of whole texts, where the checkpoint's own limit for sentences is 256."""

SPECS = {"full": None, "sliding": "sliding:w=16", "longformer": "longformer:w=8,g=2"}
"""The masks of make_goldens.py as a user of the package writes them."""


@dataclass(frozen=True)
class Golden:
    """What transformers gave, by mask name; see make_goldens.py for which values are kept."""

    texts: tuple[str, ...]
    arrays: dict[str, np.ndarray]

    @property
    def lengths(self) -> np.ndarray:
        return self.arrays["lengths"]

    @property
    def rows(self) -> list[list[int]]:
        """Token ids of each text."""
        ends = np.cumsum(self.lengths)[:-1]
        return [ids.tolist() for ids in np.split(self.arrays["ids"], ends)]

    def kept(self, hidden: list[np.ndarray]) -> np.ndarray:
        """Pick out of hidden states, (length, 384) for each text, what the goldens keep."""
        whole = np.stack([hidden[i][p] for i, p in self.arrays["places"]])
        thin = np.concatenate([h[:, self.arrays["columns"]] for h in hidden])
        return np.concatenate([whole.ravel(), thin.ravel()])

    def expected(self, mask: str) -> np.ndarray:
        """Return the goldens of a mask in the order of :meth:`kept`."""
        parts = (self.arrays[f"{mask}_{part}"] for part in ("rows", "columns"))
        return np.concatenate([part.ravel() for part in parts])


@pytest.fixture(scope="session")
def golden() -> Golden:
    texts = (HERE / "texts.txt").read_text(encoding="utf-8").splitlines()
    with np.load(HERE / "minilm.npz") as file:
        return Golden(tuple(texts), dict(file))


@pytest.fixture(scope="session")
def minilm() -> Path:
    return packaged.minilm()


Run = Callable[[np.ndarray, np.ndarray], np.ndarray]


@pytest.fixture(scope="module")
def engine(minilm: Path) -> TransformerEngine:
    return TransformerEngine(minilm, backend="numpy")


def hidden_states(golden: Golden, run: Run) -> list[np.ndarray]:
    """Run all texts in padded batches of like length; check that padding comes back as 0."""
    rows = golden.rows
    order = np.argsort(golden.lengths, kind="stable")
    found: dict[int, np.ndarray] = {}
    for batch in np.split(order, range(BATCH, len(order), BATCH)):
        ids, lengths = pad([rows[i] for i in batch], value=1)
        hidden = run(ids, lengths)
        assert not hidden[np.arange(ids.shape[1]) >= lengths[:, None]].any()
        found |= {int(i): h[:n] for i, h, n in zip(batch, hidden, lengths, strict=True)}
    return [found[i].astype(np.float32) for i in range(len(rows))]


def test_texts_differ_widely_in_length(golden):
    assert len(golden.texts) == 64
    assert golden.lengths.min() == 4 and golden.lengths.max() == LONGEST
    assert len(set(golden.lengths.tolist())) > 40


def test_tokens_are_those_of_transformers(engine, golden):
    assert engine.tokenize(golden.texts, max_length=LONGEST) == golden.rows
    with pytest.warns(StofWarning, match="longer than 256 tokens"):
        cut = engine.tokenize(golden.texts)
    assert cut == [row if len(row) <= 256 else [*row[:255], row[-1]] for row in golden.rows]


@pytest.mark.parametrize("mask", SPECS)
def test_hidden_states_in_float32(engine, golden, mask):
    hidden = hidden_states(
        golden, lambda ids, lengths: engine.run(ids, lengths=lengths, mask=SPECS[mask])
    )
    error = np.abs(golden.kept(hidden) - golden.expected(mask))
    assert error.max() < 2e-5
    vectors = np.stack([h.mean(axis=0) for h in hidden])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    assert np.abs(vectors - golden.arrays[f"{mask}_vectors"]).max() < 1e-6


def test_masks_matter(golden):
    """The goldens of the masks are far enough apart that mixing them up would show."""
    for mask in ("sliding", "longformer"):
        assert np.abs(golden.expected(mask) - golden.expected("full")).max() > 0.5


@pytest.mark.parametrize("mask", SPECS)
def test_sentence_vectors(engine, golden, mask):
    some = range(0, 64, 5)
    texts = [golden.texts[i] for i in some]
    vectors = engine.encode(texts, mask=SPECS[mask], max_length=LONGEST, batch_size=5)
    assert vectors.dtype == np.float32
    assert np.abs(vectors - golden.arrays[f"{mask}_vectors"][some]).max() < 1e-6


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_low_precision_on_numpy_is_float32_rounded_once(engine, minilm, golden, dtype):
    ids, lengths = pad(sorted(golden.rows, key=len)[:6])
    low = TransformerEngine(minilm, backend="numpy", dtype=dtype).run(ids, lengths=lengths)
    assert low.dtype == as_dtype(dtype)
    assert np.array_equal(low, engine.run(ids, lengths=lengths).astype(low.dtype))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("mask", SPECS)
def test_hidden_states_on_the_gpu(minilm, golden, mask, dtype):
    """The error is at most twice that of a plain one, plus the rounding of the result."""

    def kept(engine: TransformerEngine) -> np.ndarray:
        how = {"mask": SPECS[mask]}
        states = hidden_states(golden, lambda ids, n: engine.run(ids, lengths=n, **how))
        return golden.kept(states)

    got = kept(TransformerEngine(minilm, backend="cuda", dtype=dtype))
    lowprec = kept(Rounded(minilm, low=dtype))
    exact = golden.expected(mask)
    assert_close(got.astype(as_dtype(dtype)), exact, lowprec)
    # The largest error alone would let a systematic one hide: the mean is held to the same factor.
    assert np.abs(got - exact).mean() <= 2 * np.abs(lowprec - exact).mean()


@pytest.mark.gpu
def test_sentence_vectors_on_the_gpu(minilm, golden):
    engine = TransformerEngine(minilm, backend="cuda")
    vectors = engine.encode(golden.texts, max_length=LONGEST)
    cosines = (vectors * golden.arrays["full_vectors"]).sum(axis=1)
    assert cosines.min() > 0.9999
