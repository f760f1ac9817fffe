"""Random problems for the Hopper attention, and its code run on the CPU beside the oracle."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from stof_cupy import RelativeBias, masks
from stof_cupy.jit.attention_sm90 import Sm90Config
from stof_cupy.masks import MaskStack
from stof_cupy.ops import reference
from stof_cupy.ops.attention_args import Scores, validate
from stof_cupy.ops.attention_fields import Args, kind_of
from stof_cupy.ops.attention_rowwise import stages
from stof_cupy.ops.attention_sm90 import Config
from stof_cupy.testing import assert_close, poison, random_array, rng
from tests.ops.on_hopper import attend

DTYPES = ("float16", "bfloat16")
SMALL = Sm90Config(64, 64, n=64, warpgroups=1, blocks=3)
BIG = Sm90Config(128, 128, n=128, warpgroups=2)
ODD = Sm90Config(128, 64, n=112, warpgroups=2, queries=1)
HALF_SLAB = Sm90Config(96, 96, n=80, warpgroups=2, stages=3, queries=1)
THREE = Sm90Config(64, 64, n=128, warpgroups=3)
PACKED = Sm90Config(64, 64, n=64, warpgroups=2, packed=True)
HALVES = Sm90Config(64, 64, n=128, warpgroups=2, halves=True)
THREE_HALVES = replace(THREE, halves=True)
IN_SEQUENCE = Sm90Config(64, 64, n=64, warpgroups=2, blocks=2)
WIDE = Sm90Config(64, 192, n=64, warpgroups=2, queries=1)


@dataclass
class Case:
    """One random problem."""

    q: Any
    k: Any
    v: Any
    mask: Any = None
    scale: float | None = None
    kv_lengths: Any = None
    terms: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def draw(cls, seed: int, config: Sm90Config, dtype: str, sizes: tuple[int, ...]) -> Case:
        """Draw heads, lengths from `sizes`, head dims that `config` takes, and what is masked."""
        g = rng(seed)
        batch, kv_heads, group = (int(g.integers(1, 3)) for _ in range(3))
        dims = [8 * int(g.integers(1, top // 8 + 1)) for top in (config.dim_qk, config.dim_v)]
        if g.random() < 0.5:
            dims = [config.dim_qk, config.dim_v]
        seq_q, seq_k = (int(g.choice(sizes)) for _ in "qk")
        heads = kv_heads * group
        q = random_array(g, (batch, heads, seq_q, dims[0]), dtype)
        k = random_array(g, (batch, kv_heads, seq_k, dims[0]), dtype)
        v = random_array(g, (batch, kv_heads, seq_k, dims[1]), dtype)
        lengths = g.integers(0, seq_k + 1, batch).astype(np.int32) if g.random() < 0.4 else None
        scale = None if g.random() < 0.7 else float(g.random())
        return cls(q, k, v, _mask(g, (batch, heads, seq_q, seq_k)), scale, lengths)

    def args(self, out: Any, xp: Any = np) -> Args:
        """Return the arguments as the kernel takes them, of NumPy or CuPy."""
        terms = {name: _of(xp, x) for name, x in self.terms.items()}
        lengths = None if self.kv_lengths is None else xp.asarray(self.kv_lengths)
        given = (*map(xp.asarray, (self.q, self.k, self.v)), self.mask)
        _, problem, mask, scores = validate(*given, Scores(self.scale, **terms), lengths, out)
        return Args(problem, *given[:3], out, None, mask, scores, lengths)

    def oracle(self) -> tuple[Any, Any, Any]:
        """Return exact output and LSE, and the output in low precision."""
        how = {"scale": self.scale, "kv_lengths": self.kv_lengths, "return_lse": True, **self.terms}
        if "positions" in how:
            rows, cols = how.pop("positions")
            how["bias"] = -how.pop("alibi")[:, None, None] * np.abs(cols - rows[:, None])
        inputs = self.q, self.k, self.v, self.mask
        exact, lse = reference.attention(*inputs, **how)
        low, _ = reference.attention(*inputs, **how, precision=self.q.dtype.name)
        return exact, lse, low


def _of(xp: Any, x: Any) -> Any:
    """Return what makes scores, its arrays in NumPy or CuPy."""
    if isinstance(x, RelativeBias):
        far, both = x.max_distance, x.bidirectional
        return RelativeBias(xp.asarray(x.table), bidirectional=both, max_distance=far)
    return xp.asarray(x) if isinstance(x, np.ndarray) else x


def _mask(g: np.random.Generator, shape: tuple[int, int, int, int]) -> Any:
    sq, sk = shape[2:]
    kind = g.integers(8)
    if kind == 0:
        return None
    if kind == 1:
        return masks.BsrMask(g.random((sq, sk)) < g.choice([0.002, 0.05, 0.5, 0.99]))
    if kind == 2:
        return masks.causal(sq, sk, align=str(g.choice(["top-left", "bottom-right"])))
    if kind == 3:  # tiles that are all empty, all full, or mixed
        coarse = np.kron(g.random((-(-sq // 64), -(-sk // 64))), np.ones((64, 64)))[:sq, :sk]
        return masks.BsrMask((coarse < 0.3) | ((coarse < 0.6) & (g.random((sq, sk)) < 0.5)))
    if kind == 4:  # rows and columns without an end
        return masks.BsrMask((g.random(sq) < 0.5)[:, None] | (g.random(sk) < 0.1))
    if kind == 5:
        away = np.abs(np.arange(sq)[:, None] - np.arange(sk)[None])
        return masks.BsrMask(away <= int(g.integers(1, 100)))
    if kind == 6:
        return masks.BsrMask(np.zeros((sq, sk), bool))
    lead = tuple(size if g.random() < 0.6 else 1 for size in shape[:2])
    return MaskStack.from_dense(g.random((3, sq, sk))[g.integers(0, 3, lead)] < 0.3)


def compare(case: Case, out: Any, lse: Any) -> None:
    exact, exact_lse, low = case.oracle()
    assert_close(out, exact, low)
    empty = np.isneginf(exact_lse)
    assert np.array_equal(np.isneginf(lse), empty)
    np.testing.assert_allclose(lse[~empty], exact_lse[~empty], rtol=2e-6, atol=2e-5)
    assert not np.any(out.astype(np.float32)[empty])


def run_on_cpu(
    shape: Sm90Config, case: Case, long_slots: int = 0, splits: int = 1, **how: Any
) -> tuple[Any, Any]:
    out = poison((*case.q.shape[:3], case.v.shape[3]), case.q.dtype)
    args = replace(case.args(out), lse=poison(case.q.shape[:3], np.float32))
    config = Config(shape, splits=splits)
    attend(replace(config, long_slots=min(long_slots, config.slots(args.problem))), args, **how)
    return out, args.lse


TERMS = (
    *("softcap", "high softcap", "alibi", "positions", "distances", "bias", "rows of bias"),
    *("odd bias", "bias by steps", "sinks", "all"),
)


def _terms(
    g: np.random.Generator, shape: tuple[int, int, int], name: str, dtype: str
) -> dict[str, Any]:
    heads, queries, keys = shape
    slopes = np.exp2(-g.uniform(1, 6, heads)).astype(np.float32)
    bias = random_array(g, (heads, 1, keys), "float16")
    bias[..., g.random(keys) < 0.2] = -np.inf
    whole = random_array(g, (heads, queries, 2 * keys + 9), dtype)
    return {
        "softcap": {"softcap": 3.0},
        "high softcap": {"softcap": 90.0},
        "alibi": {"alibi": slopes},
        "positions": {
            "alibi": slopes,
            "positions": tuple(g.integers(0, 60, n).astype(np.int32) for n in (queries, keys)),
        },
        "rows of bias": {"bias": np.ascontiguousarray(whole[..., :keys])},
        "odd bias": {"bias": whole[..., 1 : keys + 1]},
        "bias by steps": {"bias": whole[..., 2 * keys : 0 : -2]},
        "distances": {
            "bias": RelativeBias(random_array(g, (8, heads)), bidirectional=True, max_distance=40)
        },
        "bias": {"bias": bias},
        "sinks": {"sinks": g.normal(size=heads).astype(np.float32)},
        "all": {"softcap": 2.0, "alibi": slopes, "bias": bias.astype(np.float32)},
    }[name]


def with_terms(shape: Sm90Config, name: str, seed: int, dtype: str = "bfloat16") -> Any:
    """Return a case whose scores are modified, and the configuration that does it."""
    sizes = (200,) if name == "rows of bias" else (15, 100, 200)  # loads of pairs need many
    case = Case.draw(seed, shape, dtype, sizes)
    case.terms = _terms(rng(seed), (*case.q.shape[1:3], case.k.shape[2]), name, dtype)
    kind = kind_of(case.args(None).scores)
    shape = shape if name == "sinks" else shape.roomy(stages(kind))
    if seed % 2 and name != "sinks":
        case.scale = -0.2
    return case, shape
