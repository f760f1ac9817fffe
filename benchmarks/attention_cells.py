"""What bench_attention.py times: inputs on the GPU, masks, and ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import attention_ways
import numpy as np
import paper_masks
from paper_masks import Form
from shapes import BLOCK

from stof_cupy import masks
from stof_cupy.dtypes import as_dtype
from stof_cupy.masks import BsrMask
from stof_cupy.ops import reference

DTYPE = "bfloat16"
CHUNK = 1024  # rows of a mask at a time
LINES = 64  # columns of a vertical-slash mask, and diagonals


@dataclass(frozen=True, eq=False)
class Mask:
    """A mask in every form that somebody needs.

    Attributes
    ----------
    name : str
        Its kind, by which peers know whether they have such attention.
    ours : BsrMask or None
    dense : bool cupy.ndarray (queries, keys) or None
        By a definition of its own.
    reach : int
        Window of "sliding" and "causal-sliding".
    tokens : int
        Global ones.
    arrays : dict of cupy.ndarray
        What FlexAttention's rules look up.
    """

    name: str
    ours: BsrMask | None
    dense: Any
    reach: int
    tokens: int
    arrays: dict[str, Any]
    density: float


@dataclass(frozen=True, eq=False)
class Cell:
    """A problem: q, k, v and out on the GPU, and a mask.

    Attributes
    ----------
    shape : tuple of int
        (batch, heads, kv_heads, queries, keys, head_dim).
    """

    shape: tuple[int, int, int, int, int, int]
    q: Any
    k: Any
    v: Any
    out: Any
    mask: Mask

    @property
    def flop(self) -> float:
        """Operations on kept elements."""
        batch, heads, _, queries, keys, dim = self.shape
        return 4.0 * batch * heads * queries * keys * dim * self.mask.density

    @property
    def small(self) -> bool:
        """Whether the inputs stay in L2 from one call to the next."""
        return sum(int(x.nbytes) for x in (self.q, self.k, self.v)) < 32 * 2**20


@lru_cache(maxsize=1)
def cell(shape: tuple[int, int, int, int, int, int], name: str, dtype: str = DTYPE) -> Cell:
    """Return a problem, its output computed by ours and found right in some rows."""
    import cupy

    cupy.get_default_memory_pool().free_all_blocks()  # torch has a pool of its own
    mask = _mask(name, *shape[3:5])
    q, k, v = _inputs(shape, dtype)
    made = Cell(shape, q, k, v, cupy.empty_like(q), mask)
    ours(made)
    return made


def ours(cell: Cell, way: str = "ours") -> Callable[[], None]:
    """Return a call of ours, which writes to ``cell.out``: what is timed, and nowhere else.

    It has run, and its result was found right in some rows.
    """
    call = attention_ways.call(cell, way)
    cell.out.fill(np.nan)
    call()
    check_rows(cell)
    return call


@lru_cache(maxsize=1)
def _inputs(shape: tuple[int, int, int, int, int, int], dtype: str = DTYPE) -> tuple[Any, Any, Any]:
    import cupy

    batch, heads, kv_heads, queries, keys, dim = shape
    g = cupy.random.default_rng(0)
    sizes = [(batch, heads, queries, dim), *[(batch, kv_heads, keys, dim)] * 2]
    drawn = (g.standard_normal(size, dtype=np.float32) for size in sizes)
    q, k, v = (_halved(x) if dtype == "bfloat16" else x.astype(dtype) for x in drawn)
    return q, k, v


def _halved(x: Any) -> Any:
    """Return float32 as bfloat16: the upper halves of its bits."""
    return (x.view(np.uint32) >> np.uint32(16)).astype(np.uint16).view(as_dtype("bfloat16"))


def check_rows(cell: Cell) -> None:
    """Compare some rows of two heads with the float64 oracle."""
    batch, heads, kv_heads, queries, _, _ = cell.shape
    rows = np.unique(np.linspace(0, queries - 1, 16).astype(np.int64))
    for b, h in {(0, 0), (batch - 1, heads - 1)}:
        kv = h // (heads // kv_heads)
        arrays = [x.get()[None, None] for x in (cell.q[b, h, rows], cell.k[b, kv], cell.v[b, kv])]
        dense = None if cell.mask.dense is None else cell.mask.dense[rows].get()
        exact = reference.attention(*arrays, dense)[0, 0]
        got = cell.out[b, h, rows].get().astype(np.float64)
        np.testing.assert_allclose(got, exact, atol=1e-2, rtol=2e-2)


# ---------------------------------------------------------------- masks


@lru_cache(maxsize=1)
def _mask(name: str, queries: int, keys: int) -> Mask:
    """Return a mask, its two definitions compared element by element."""
    import cupy

    if name == "full":
        return Mask(name, None, None, 0, 0, {}, 1.0)
    if name.startswith("elements"):
        g = cupy.random.default_rng(0)
        share = float(name.removeprefix("elements"))
        dense = g.random((queries, keys), dtype=np.float32) < np.float32(share)
        lowered = BsrMask(dense.get())
        kept = lowered.nnz / dense.size
        return Mask(name, lowered, dense, 0, 0, {"dense": dense}, kept)
    form, pattern, looked_up = _described(name, queries)
    arrays = {key: cupy.asarray(value) for key, value in looked_up.items()}
    lowered = pattern.tobsr()
    dense = _dense(form, queries, arrays)
    for first in range(0, queries, CHUNK):
        here = slice(first, first + CHUNK)
        if not np.array_equal(lowered[here, :].toarray(), dense[here].get()):
            raise AssertionError(f"{name}: our mask and its definition differ")
    kept = lowered.nnz / dense.size
    return Mask(form.kind, lowered, dense, form.reach, form.tokens, arrays, kept)


def _described(name: str, s: int) -> tuple[Form, Any, dict[str, Any]]:
    """Return a mask's kind and sizes, our pattern, and what it looks up, as NumPy's arrays."""
    if name in paper_masks.FORMS:
        form = paper_masks.FORMS[name]
        looked_up = paper_masks.draws(form.kind, s)
        return form, paper_masks.pattern(form, s, looked_up), looked_up
    if name.startswith("blocks"):
        share = float(name.removeprefix("blocks"))
        return Form("blocks"), random_blocks(s, share), {"listed": _listed(s, share)}
    if name == "vertical-slash":
        lines = _lines(s)
        at = {key: flags.nonzero()[0] for key, flags in lines.items()}
        return Form(name), masks.vertical_slash(s, **at), lines
    form = Form(name, *((256, 64) if s >= 1024 else (64, 16)))
    looked_up = _draws(s)
    return form, _pattern(form, s, looked_up), looked_up


def random_blocks(s: int, share: float) -> Any:
    """Return the pattern of a share of all blocks."""
    return masks.blocks((s, s), *_listed(s, share).nonzero())


def _listed(s: int, share: float) -> Any:
    """Return which blocks a random mask keeps, the diagonal among them."""
    blocks = -(-s // BLOCK)
    drawn = np.random.default_rng(3).random((blocks, blocks)) < share
    return drawn | np.eye(blocks, dtype=bool)


def _lines(s: int) -> dict[str, Any]:
    """Return which columns and which distances back a vertical-slash mask keeps, 0 among these."""
    g, lines = np.random.default_rng(4), {}
    for key, first in (("vertical", []), ("slash", [0])):
        lines[key] = np.zeros(s, bool)
        lines[key][[*first, *(1 + g.permutation(s - 1)[: LINES - len(first)])]] = True
    return lines


def _draws(s: int) -> dict[str, Any]:
    """Return what is random in the anchors' masks, drawn in their order."""
    g, blocks = np.random.default_rng(0), -(-s // BLOCK)
    scattered = g.random((blocks, blocks)) < min(1.0, 3.0 / blocks)
    documents = np.sort(g.integers(0, max(2, s // 512), s))
    tenth = (g.random((blocks, blocks)) < 0.1) | np.eye(blocks, dtype=bool)
    return {"scattered": scattered, "documents": documents, "tenth": tenth}


def _pattern(form: Form, s: int, arrays: dict[str, Any]) -> Any:
    def listed(key: str) -> Any:
        return masks.blocks((s, s), *arrays[key].nonzero())

    named: dict[str, Callable[[], Any]] = {
        "bigbird": lambda: masks.bigbird(s, random_blocks=0) | listed("scattered"),
        "document": lambda: masks.document_ids(arrays["documents"], causal=True),
        "block10": lambda: listed("tenth"),
    }
    return named[form.kind]() if form.kind in named else paper_masks.pattern(form, s, arrays)


def _dense(form: Form, s: int, arrays: dict[str, Any]) -> Any:
    import cupy

    dense, k = cupy.empty((s, s), bool), cupy.arange(s, dtype=np.int32)
    for first in range(0, s, CHUNK):
        q = k[first : first + CHUNK, None]
        dense[first : first + CHUNK] = rule(form.kind, form.reach, form.tokens, arrays)(q, k)
    return dense


def rule(name: str, reach: int, tokens: int, arrays: dict[str, Any]) -> Callable[[Any, Any], Any]:
    """Return who sees whom, of positions; for CuPy's arrays and for FlexAttention's tensors."""
    names = "scattered", "documents", "tenth", "listed", "vertical", "slash"
    found: list[Any] = [arrays.get(name) for name in names]
    scattered, documents, tenth, listed, vertical, slash = found
    rules: dict[str, Callable[[Any, Any], Any]] = {
        "bigbird": lambda q, k: (
            (abs(q // BLOCK - k // BLOCK) <= 1)
            | (q < 2 * BLOCK)
            | (k < 2 * BLOCK)
            | scattered[q // BLOCK, k // BLOCK]
        ),
        "document": lambda q, k: (documents[q] == documents[k]) & (q >= k),
        "block10": lambda q, k: tenth[q // BLOCK, k // BLOCK],
        "blocks": lambda q, k: listed[q // BLOCK, k // BLOCK],
        "vertical-slash": lambda q, k: (q >= k) & (vertical[k] | slash[abs(q - k)]),
    }
    return rules.get(name) or paper_masks.rule(name, reach, tokens, arrays)
