"""Random problems of attention, each drawn from a seed for one instance of a kernel."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stof_cupy import RelativeBias
from stof_cupy.dtypes import as_dtype
from stof_cupy.testing import random_array, rng
from tests.ops.forced import Block, Hopper, Instance, Row

SIZES = (1, 2, 3, 15, 16, 17, 63, 64, 65, 127, 128, 129, 192, 193, 255, 256, 257)


@dataclass
class Case:
    """One problem, of NumPy arrays.

    Attributes
    ----------
    q, k, v : array
        Contiguous; packed ones, of sequences, have no batch axis.
    dense : bool array or None
        The mask.
    form : str
        What attention gets of it.
    how : dict
        Scores and lengths.
    lens : dict
        Of sequences that are packed; empty otherwise.
    views : dict
        How q, k, v, out and a bias lie in memory.
    """

    seed: int
    instance: Instance
    q: Any
    k: Any
    v: Any
    dense: Any = None
    form: str = "dense"
    how: dict[str, Any] = field(default_factory=dict)
    lens: dict[str, Any] = field(default_factory=dict)
    views: dict[str, str] = field(default_factory=dict)

    def batched(self) -> tuple[Any, Any, Any]:
        """Return q, k and v with their axes as `attention` takes them, in the same memory."""
        if not self.lens:
            return self.q, self.k, self.v
        q, k, v = (x.swapaxes(0, 1)[None] for x in (self.q, self.k, self.v))
        return q, k, v

    def keep(self) -> Any:
        """Return who sees whom, of four axes, by mask, sequences, lengths and bias."""
        q, k, _ = self.batched()
        keep = np.ones((1, 1, q.shape[2], k.shape[2]), bool)
        if self.dense is not None:
            keep = keep & self.dense
        if self.lens:
            keep = keep & sequences(**self.lens)[0]
        if (lengths := self.how.get("kv_lengths")) is not None:
            keep = keep & (np.arange(k.shape[2]) < lengths[:, None, None, None])
        if isinstance(bias := self.how.get("bias"), np.ndarray):
            lowest = np.nextafter(np.array(-np.inf, bias.dtype), np.zeros((), bias.dtype))
            keep = keep & (bias > lowest)
        return keep

    def __str__(self) -> str:
        mask = (
            "no mask"
            if self.dense is None
            else f"{self.form} {self.dense.sum() / max(1, self.dense.size):.3f}"
        )
        names = [n for n in (*self.how, *self.lens) if n != "return_lse"]
        views = [f"{n}:{v}" for n, v in self.views.items() if v]
        shapes = " ".join(str(x.shape).replace(" ", "") for x in (self.q, self.k, self.v))
        return f"{self.q.dtype.name} {shapes} {mask} {' '.join([*names, *views])}"


def sequences(
    q_lens: list[int], kv_lens: list[int], causal: bool = False, window: Any = None, align: str = ""
) -> tuple[Any, Any]:
    """Return who sees whom in packed sequences, and how far keys are from the end of queries."""
    keep = np.zeros((sum(q_lens), sum(kv_lens)), bool)
    ahead = np.zeros(keep.shape, np.int64)
    row = col = 0
    for m, n in zip(q_lens, kv_lens, strict=True):
        here = slice(row, row + m), slice(col, col + n)
        from_start = np.arange(n) - np.arange(m)[:, None]
        ahead[here] = from_start - (n - m)
        away = ahead[here] if align == "bottom-right" else from_start
        keep[here] = True
        if causal:
            keep[here] &= away <= 0
        if window is not None:
            keep[here] &= (-window[0] <= away) & (away <= window[1])
        row, col = row + m, col + n
    return keep, ahead


# ---------------------------------------------------------------- drawing


def draw(seed: int, chosen: list[Instance], *, heavy: float = 0.03, largest: float = 6e6) -> Case:
    """Return a case for one of the instances.

    Parameters
    ----------
    heavy : float
        Share of large ones.
    largest : float
        Scores, over all heads, of the largest.
    """
    g = rng(seed)
    instance = chosen[int(g.integers(len(chosen)))]
    packed = isinstance(instance, Block) and instance.packed
    plain = isinstance(instance, Hopper)
    dims = _dims(g, instance)
    batch, kv_heads = int(g.choice([1, 1, 2, 3])), int(g.choice([1, 1, 2, 3]))
    group = int(g.choice([2, 3, 4, 8] if packed else [1, 1, 2, 3, 4]))
    few = isinstance(instance, Block) and instance.shape.rows == 16
    sq, sk = _lengths(g, few, packed, group, g.random() < heavy)
    most = largest if g.random() < heavy else 10 ** g.uniform(3.5, np.log10(largest))
    while batch * kv_heads * group * sq * sk > most:  # scores, which the oracle holds
        if batch > 1 or kv_heads > 1:
            batch, kv_heads = max(1, batch - 1), max(1, kv_heads - 1)
        elif group > 1 + packed:
            group -= 1
        elif sk > 64 and sk >= sq:
            sk = sk * 2 // 3
        elif sq > 1:
            sq = sq * 2 // 3
        else:
            break
    heads = kv_heads * group
    spread = float(g.choice([1, 1, 1, 1, 3, 0.1]))
    shapes = [(batch, heads, sq, dims[0]), (batch, kv_heads, sk, dims[0])]
    arrays = [random_array(g, s, instance.dtype, spread) for s in shapes]
    arrays.append(random_array(g, (batch, kv_heads, sk, dims[1]), instance.dtype))
    case = Case(seed, instance, *arrays)
    if g.random() < 0.12 and not packed and batch == 1:
        _packed(g, case)
    _draw_mask(g, case, packed, plain)
    _draw_scores(g, case)
    if not case.lens and g.random() < 0.25 and not (plain and instance.shape.packed):
        lengths = (
            g.integers(-2, sk + 3, batch) if g.random() < 0.1 else g.integers(0, sk + 1, batch)
        )
        case.how["kv_lengths"] = lengths.astype(g.choice(["int32", "int64"]))
    case.views = _views(g, case)
    _plant(g, case, calm=spread <= 1)
    return case


def _dims(g: np.random.Generator, instance: Instance) -> list[int]:
    """Return head dims of q and of v that an instance takes, one of them near its largest."""
    if isinstance(instance, Hopper):
        tops = [instance.shape.dim_qk, instance.shape.dim_v]
    else:
        tops = [instance.head_dim] * 2
    step = 1
    if isinstance(instance, Row):
        step = 8 if instance.wide else 1
    elif g.random() < 0.6:
        step = 8
    dims = [max(step, int(g.integers(t * 3 // 4, t + 1)) // step * step) for t in tops]
    if g.random() < 0.4:
        dims = list(tops)
    if g.random() < 0.25:
        dims[int(g.integers(2))] = step * int(g.integers(1, min(tops) // step + 1))
    if isinstance(instance, Row) and not instance.wide and g.random() < 0.5:
        dims[0] = max(1, dims[0] // 8 * 8 - int(g.integers(1, 8)))
    return dims


def _lengths(
    g: np.random.Generator, few: bool, packed: bool, group: int, long: bool
) -> tuple[int, int]:
    def one() -> int:
        kind = g.random()
        if kind < 0.35:
            return int(g.choice(SIZES))
        return int(
            g.integers(*((1, 40) if kind < 0.5 else (40, 500) if kind < 0.85 else (500, 1500)))
        )

    sq, sk = one(), one()
    if few and g.random() < 0.8:
        sq = int(g.integers(1, max(2, 16 // (group if packed else 1) + 1)))
        sk = int(g.integers(1, 2500)) if g.random() < 0.5 else sk
    if packed:
        sq = min(sq, 64)
    if long:
        sq, sk = (sq, int(g.integers(2000, 20000))) if sq <= 64 else (sq * 3, sk * 5)
    if g.random() < 0.01:
        sq, sk = (0, sk) if g.random() < 0.5 else (sq, 0)
    return sq, sk


def _packed(g: np.random.Generator, case: Case) -> None:
    """Turn a batch of one into packed sequences."""
    sq, sk = case.q.shape[2], case.k.shape[2]
    count = int(g.integers(1, 7))

    def cut(total: int) -> list[int]:
        ends = np.sort(g.integers(0, total + 1, count - 1))
        return np.diff([0, *ends, total]).tolist()

    case.q, case.k, case.v = (x[0].swapaxes(0, 1).copy() for x in (case.q, case.k, case.v))
    lens: dict[str, Any] = {"q_lens": cut(sq), "kv_lens": cut(sk)}
    if g.random() < 0.6:
        lens["causal"] = bool(g.random() < 0.7)
        lens["align"] = str(g.choice(["top-left", "bottom-right"]))
        if g.random() < 0.4:
            lens["window"] = (int(g.integers(0, 90)), int(g.integers(0, 90)))
    case.lens = lens


def _rule(g: np.random.Generator, sq: int, sk: int) -> Any:
    """Return a mask of two axes: every kind of row and tile."""
    i, j = np.arange(sq)[:, None], np.arange(sk)
    tiles = np.kron(g.random((-(-sq // 64), -(-sk // 64))), np.ones((64, 64)))[:sq, :sk]
    kind = int(g.integers(10))
    if kind == 0:
        return g.random((sq, sk)) < g.choice([0.002, 0.01, 0.05, 0.5, 0.99])
    if kind == 1:
        return j <= i + int(g.choice([0, sk - sq, g.integers(-sk, sk + 1)]))
    if kind == 2:  # rows and columns of tiles that are empty, full, or mixed
        return (tiles < 0.3) | ((tiles < 0.6) & (g.random((sq, sk)) < 0.5))
    if kind == 3:
        return np.repeat(g.random((sq, 1)) < 0.5, sk, 1)
    if kind == 4:
        return abs(i - j) <= int(g.integers(1, 300))
    if kind == 5:
        tokens = int(g.integers(1, 20))
        return (abs(i - j) <= int(g.integers(1, 70))) | (i < tokens) | (j < tokens)
    if kind == 6:
        return np.repeat(g.random((1, sk)) < g.choice([0.02, 0.3]), sq, 0)
    if kind == 7:
        return np.sort(g.integers(0, 5, sq))[:, None] == np.sort(g.integers(0, 5, sk))
    if kind == 8:
        return (tiles < g.choice([0.1, 0.4])) | (i == j)
    return np.zeros((sq, sk), bool)


def _draw_mask(g: np.random.Generator, case: Case, packed: bool, plain: bool) -> None:
    sq, sk = (case.q.shape[0], case.k.shape[0]) if case.lens else (case.q.shape[2], case.k.shape[2])
    batch, heads = (1, case.q.shape[1]) if case.lens else case.q.shape[:2]
    needs = isinstance(case.instance, Row) and case.instance.lists == "keys"
    needs |= plain and case.instance.shape.packed
    if not needs and g.random() < 0.2:
        return
    leads: list[tuple[int, ...]] = [(), (), (), (batch, 1), (heads,), (batch, heads)]
    if case.lens:
        leads = [(), (), (heads,)]
    lead = leads[int(g.integers(len(leads) if not packed else 4))]
    pool = np.stack([_rule(g, sq, sk) for _ in range(3 if lead else 1)])
    case.dense = pool[g.integers(0, len(pool), lead)] if lead else pool[0]
    forms = ["dense", "stack", "on the GPU", "uploaded"]
    if not lead:
        forms += ["bsr", "bsr", "scipy"]
    if needs:
        forms.remove("on the GPU")
    if case.lens or (plain and (needs or case.instance.shape.m == 192)):
        forms = [form for form in forms if form not in ("on the GPU", "uploaded")]
    case.form = str(g.choice(forms))


def _draw_scores(g: np.random.Generator, case: Case) -> None:
    heads, how = case.q.shape[1], case.how
    positive = isinstance(case.instance, Hopper) and not case.instance.stages
    pick = g.random()
    if pick < 0.3:
        how["scale"] = abs(float(g.normal())) if positive else float(g.normal())
    elif pick < 0.33:
        how["scale"] = 0.0
    if g.random() < 0.25:
        how["sinks"] = np.where(g.random(heads) < 0.2, -np.inf, g.normal(size=heads))
        how["sinks"] = how["sinks"].astype(np.float32)
    names = _terms(case.instance)
    if "softcap" in names:
        how["softcap"] = float(10 ** g.uniform(-0.3, 12))
    if "alibi" in names:
        reach = max(case.q.shape[-2], case.k.shape[-2], case.q.shape[0], case.k.shape[0])
        slopes = np.exp2(-g.uniform(1, 8, heads)) * g.choice([1, 1, 1, -1], heads)
        how["alibi"] = np.clip(slopes, -200 / reach, 200 / reach).astype(np.float32)
    if "distances" in names:
        table = random_array(g, (int(g.choice([4, 8, 32])), heads))
        both = bool(g.random() < 0.5)
        most = int(g.choice([len(table) // (4 if both else 2) + 1, 40, 128, 5000]))
        how["bias"] = RelativeBias(table, bidirectional=both, max_distance=most)
    for dtype in ("float16", "bfloat16", "float32"):
        if dtype in names:
            how["bias"] = _bias(g, case, dtype)


def _terms(instance: Instance) -> set[str]:
    """Return what modifies the scores of an instance."""
    if isinstance(instance, Block):
        kind = instance.kind
        flags = ("softcap", "alibi", "distances")
        return {name for name in flags if getattr(kind, name)} | ({kind.bias} - {None})
    known = {"Softcap": "softcap", "Alibi": "alibi", "Relative": "distances"}
    types = {"stof::f16": "float16", "stof::bf16": "bfloat16", "float": "float32"}
    stages = instance.stages if isinstance(instance, Row | Hopper) else ()
    return {known.get(s) or types[s.removeprefix("Additive<").removesuffix(">")] for s in stages}


def _bias(g: np.random.Generator, case: Case, dtype: str) -> Any:
    if case.lens:
        full: tuple[int, ...] = (case.q.shape[1], case.q.shape[0], case.k.shape[0])
    else:
        full = (*case.q.shape[:3], case.k.shape[2])
    shape = tuple(n if g.random() < 0.7 else 1 for n in full)[int(g.integers(len(full) - 1)) :]
    bias = random_array(g, shape, dtype)
    kind = as_dtype(dtype)
    lowest = np.nextafter(np.array(-np.inf, kind), np.zeros((), kind))
    where = g.random(shape)
    bias[where < g.choice([0, 0.1, 0.5])] = -np.inf
    bias[where > 0.95] = lowest
    return bias


def _views(g: np.random.Generator, case: Case) -> dict[str, str]:
    """Return how arrays lie: as the instance can read them, mostly."""
    usual = ["", "rows", "slice", "transposed"]
    odd = ["reversed", "offset", "padded", "fortran"]
    views = {}
    for name, x in (("q", case.q), ("k", case.k), ("v", case.v), ("out", case.v)):
        if isinstance(case.instance, Hopper):  # rows whole multiples of 16 bytes apart
            names = [*usual, "padded"] if x.shape[-1] % 8 == 0 else ["padded"]
        elif isinstance(case.instance, Row) and case.instance.wide:
            names = [*usual, "reversed"]
        else:
            names = usual + odd
        views[name] = str(g.choice([n for n in names if (name, n) != ("out", "fortran")]))
    if isinstance(case.instance, Row) and not case.instance.wide:
        views[str(g.choice(["q", "k", "v"]))] = "offset"
    views["bias"] = str(g.choice(usual + odd))
    return views


def _plant(g: np.random.Generator, case: Case, calm: bool) -> None:
    """Put what must not leak into keys that no row sees, and NaN into a value that some see.

    The latter where scores are `calm`: of a weight that vanishes, a kernel may take no value.
    """
    if g.random() < 0.4:
        return
    if case.dense is not None and g.random() < 0.5:
        case.dense[..., g.random(case.dense.shape[-1]) < 0.1] = False
    q, k, v = case.batched()
    seen = np.broadcast_to(case.keep(), (*q.shape[:3], k.shape[2]))
    group = q.shape[1] // k.shape[1]
    seen = seen.reshape(*k.shape[:2], group, *seen.shape[2:]).any((2, 3))
    unseen, values = np.nonzero(~seen), np.array([np.nan, np.inf, -np.inf, 6e4])
    for x in (k, v):  # the case's own memory
        x[unseen] = values[g.integers(0, 4, len(unseen[0]))].astype(x.dtype)[:, None]
    calm = calm and case.how.keys().isdisjoint(("scale", "alibi", "bias"))
    if calm and g.random() < 0.4 and seen.any():
        places = np.argwhere(seen)
        at = places[int(g.integers(len(places)))]
        v[(*at, int(g.integers(v.shape[3])))] = np.nan
