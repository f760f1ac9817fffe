"""The Hopper attention against the oracle: its code on the CPU, and the kernel on a GPU."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from stof_cupy import RelativeBias, attention, masks
from stof_cupy.errors import UnsupportedError
from stof_cupy.jit.attention_sm90 import SM90_CONFIGS, SM90_DIMS, Sm90Config, sm90_dim
from stof_cupy.masks import MaskStack
from stof_cupy.ops import attention_candidates, attention_cuda, attention_sm90, reference
from stof_cupy.ops.attention_args import Problem, Scores, validate
from stof_cupy.ops.attention_candidates import candidates
from stof_cupy.ops.attention_demand import Given
from stof_cupy.ops.attention_fields import Args, kind_of
from stof_cupy.ops.attention_model import choose, explain, predict
from stof_cupy.ops.attention_rowwise import stages
from stof_cupy.ops.attention_sm90 import Config, legal, shapes
from stof_cupy.ops.attention_sm90_launches import _order
from stof_cupy.testing import assert_close, poison, random_array, rng, strided
from tests.ops import forced, fuzz_case, fuzz_check, gpus
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


# ---------------------------------------------------------------- the code, on the CPU


def run_on_cpu(
    shape: Sm90Config, case: Case, long_slots: int = 0, splits: int = 1, **how: Any
) -> tuple[Any, Any]:
    out = poison((*case.q.shape[:3], case.v.shape[3]), case.q.dtype)
    args = replace(case.args(out), lse=poison(case.q.shape[:3], np.float32))
    config = Config(shape, splits=splits)
    attend(replace(config, long_slots=min(long_slots, config.slots(args.problem))), args, **how)
    return out, args.lse


@pytest.mark.parametrize(
    "config",
    [
        *(SMALL, ODD, HALF_SLAB, THREE, IN_SEQUENCE, WIDE, replace(WIDE, queries=2)),
        *(HALVES, THREE_HALVES, Sm90Config(128, 128, n=128, warpgroups=2, halves=True)),
    ],
    ids=lambda c: c.name,
)
@pytest.mark.parametrize("seed", range(8))
def test_the_code_computes_attention(config: Sm90Config, seed: int) -> None:
    case = Case.draw(seed, config, "bfloat16", (1, 15, 64, 100, 128, 200))
    how = {"ctas": 1 + seed % 4, "section": seed % 4, "long_slots": seed % 5}
    compare(case, *run_on_cpu(config, case, **how, seed=seed))


@pytest.mark.parametrize("seed", range(8))
def test_the_code_with_packed_keys(seed: int) -> None:
    case = Case.draw(seed, PACKED, "bfloat16", (1, 15, 64, 100, 200, 300))
    case.kv_lengths = None
    if seed % 3 == 0:  # whole columns: packed tiles without a bitmap, and values that do not count
        keep = np.repeat(rng(seed).random(-(-case.k.shape[2] // 8)) < 0.5, 8)[: case.k.shape[2]]
        case.mask = masks.BsrMask(keep | np.zeros((case.q.shape[2], 1), bool))
        case.v[:, :, ~keep] = np.nan
    compare(case, *run_on_cpu(PACKED, case, ctas=1 + seed % 4, seed=seed))


@pytest.mark.parametrize(
    "config", [SMALL, ODD, THREE, IN_SEQUENCE, WIDE, PACKED, HALVES], ids=lambda c: c.name
)
@pytest.mark.parametrize("step", [3.0, 60.0])
def test_scores_that_rise_from_tile_to_tile(config: Sm90Config, step: float) -> None:
    """By less than a float's range, and by more, so that they have to be computed again."""
    g = rng(11)
    shape = (1, 2, 200, config.dim_qk)
    q, k = (random_array(g, shape, "bfloat16") for _ in range(2))
    v = random_array(g, (*shape[:3], config.dim_v), "bfloat16")
    k *= (step * (1 + np.arange(200) // 40))[:, None].astype(k.dtype)
    for mask in (None, masks.causal(200), masks.BsrMask(g.random((200, 200)) < 0.3)):
        if mask is not None or not config.packed:
            case = Case(q, k, v, mask)
            compare(case, *run_on_cpu(config, case))


@pytest.mark.parametrize("config", [SMALL, PACKED, HALVES], ids=lambda c: c.name)
def test_lists_of_more_tiles_than_come_with_a_row(config: Sm90Config) -> None:
    g = rng(5)
    keys = 64 * 70 - 11
    q, k, v = (random_array(g, (1, 1, s, 64), "bfloat16") for s in (60, keys, keys))
    whole = np.repeat(g.random(70) < 0.5, 64)[:keys]
    mixed = (g.random((60, keys)) < 0.1) & (np.arange(keys) < 3000 if config.n == 64 else True)
    mixed &= np.repeat(g.random(70) < 0.7, 64)[:keys]
    case = Case(q, k, v, masks.BsrMask(whole | mixed))
    compare(case, *run_on_cpu(config, case))


@pytest.mark.parametrize("config", [HALVES, THREE_HALVES], ids=lambda c: c.name)
@pytest.mark.parametrize(
    "kind", ["band", "causal band", "blocks", "documents", "first keys", "built"]
)
def test_halves_of_tiles(config: Sm90Config, kind: str) -> None:
    """Of every kind, at a row's begin, middle and end."""
    g = rng(len(kind))
    seq = 700
    q, k, v = (random_array(g, (1, 2, seq, 64), "bfloat16") for _ in range(3))
    at = np.arange(seq)
    away = at - at[:, None]
    mask = {
        "band": abs(away) <= 190,
        "causal band": (away <= 0) & (away > -100),
        "blocks": np.kron(g.random((11, 11)) < 0.3, np.ones((64, 64), bool))[:seq, :seq],
        "documents": (away <= 0) & (at // 150 == at[:, None] // 150),
        "first keys": (at < 20) | (away == 0),
        "built": abs(away) <= 100,
    }[kind]
    case = Case(q, k, v, masks.BsrMask(mask))
    lists = case.mask.schedule((config.m, config.n), layout="accumulator")
    halves = lists.halves >> 24
    assert halves.any() and np.array_equal(lists.halves & 0xFFFFFF, lists.cols)
    if kind == "built":  # of these nothing is known
        lists.__dict__["halves"] = None
    for how in ({"ctas": 1}, {"ctas": 5, "long_slots": 2, "splits": 3, "seed": 1}):
        compare(case, *run_on_cpu(config, case, **how))


def test_the_code_in_float16() -> None:
    case = Case.draw(1, SMALL, "float16", (100, 200))
    compare(case, *run_on_cpu(SMALL, case))


@pytest.mark.parametrize("layout", ["rows", "slice", "transposed"])
def test_the_code_on_views(layout: str) -> None:
    g = rng(3)
    case = Case(*(random_array(g, (2, 2, 70, 40), "bfloat16") for _ in range(3)), masks.causal(70))
    exact, _, low = case.oracle()
    case.q, case.k, case.v = (strided(x)[layout] for x in (case.q, case.k, case.v))
    out = strided(poison((2, 2, 70, 40), case.q.dtype))[layout]
    attend(Config(SMALL), case.args(out))
    assert_close(out, exact, low)
    assert np.isnan(out.base.astype(np.float32)).sum() == out.base.size - out.size


@pytest.mark.parametrize("config", [SMALL, ODD, IN_SEQUENCE, HALVES], ids=lambda c: c.name)
def test_what_the_code_does_with_values_that_do_not_count(config: Sm90Config) -> None:
    """Rows that keep a key see its NaN, others do not, though a weight of 0 makes NaN of it too."""
    g = rng(4)
    q, k, v = (random_array(g, (1, 2, 120, 64), "bfloat16") for _ in range(3))
    mask = g.random((120, 120)) < 0.3
    mask[:, [3, 77]] = False
    mask[:70, 110] = False
    mask[20] = False
    k[:, :, 3] = np.nan
    v[:, :, 77] = np.inf
    v[:, 0, 110, ::3] = np.nan
    v[:, 1, 110, 1::3] = -np.inf
    case = Case(q, k, v, masks.BsrMask(mask))
    exact, _, _ = case.oracle()
    assert np.isnan(exact).any() and np.isfinite(exact[:, :, :70]).all()
    compare(case, *run_on_cpu(config, case))


@pytest.mark.parametrize("keys", [64, 100, 150])
@pytest.mark.parametrize("mask", ["none", "causal", "random"])
def test_what_the_code_does_beyond_the_lengths(mask: str, keys: int) -> None:
    g = rng(keys)
    q, k, v = (random_array(g, (3, 1, 150, 32), "bfloat16") for _ in range(3))
    lengths = np.array([keys, keys - 13, keys - 37])
    for i, n in enumerate(lengths):
        k[i, :, n:], v[i, :, n:] = np.nan, np.inf
    chosen = {
        "none": None,
        "causal": masks.causal(150),
        "random": masks.BsrMask(g.random((150, 150)) < 0.3),
    }[mask]
    case = Case(q, k, v, chosen, None, lengths)
    for config in (SMALL, ODD, HALVES):
        compare(case, *run_on_cpu(config, case))


def test_packed_keys_that_do_not_count() -> None:
    g = rng(6)
    q, k, v = (random_array(g, (1, 1, 200, 64), "bfloat16") for _ in range(3))
    mask = g.random((200, 200)) < 0.03
    mask[:, 50] = False
    v[:, :, 50] = np.nan
    v[:, :, 51, 3] = np.inf
    case = Case(q, k, v, masks.BsrMask(mask))
    compare(case, *run_on_cpu(PACKED, case))


def test_what_the_code_does_with_lists_that_are_cut_off() -> None:
    case = Case.draw(0, SMALL, "bfloat16", (100,))
    case.mask = masks.causal(100)
    out, lse = run_on_cpu(SMALL, case, overflow=True)
    assert np.isnan(out.astype(np.float32)).all() and np.isnan(lse).all()


def test_runs_of_the_code_are_equal_whatever_the_order_of_its_threads() -> None:
    case = Case.draw(5, ODD, "bfloat16", (200,))
    first, _ = run_on_cpu(ODD, case)
    for seed in range(1, 4):
        again, _ = run_on_cpu(ODD, case, seed=seed, ctas=seed)
        assert np.array_equal(again.view("u2"), first.view("u2"))


# ---------------------------------------------------------------- slices


@pytest.mark.parametrize("config", [SMALL, ODD, THREE, HALVES], ids=lambda c: c.name)
@pytest.mark.parametrize("seed", range(6))
def test_lists_in_slices(config: Sm90Config, seed: int) -> None:
    """Of all query tiles or some, more slices than tiles among them, lengths, and empty rows."""
    case = Case.draw(seed + 40, config, "bfloat16", (1, 64, 100, 200, 500))
    how = {"ctas": 1 + seed % 4, "long_slots": 1 + 7 * (seed % 2), "splits": 2 + 3 * (seed % 3)}
    case.terms = {"sinks": rng(seed).normal(size=case.q.shape[1]).astype(np.float32)}
    if seed % 2:
        case.terms["sinks"][:] = -np.inf
    compare(case, *run_on_cpu(config, case, **how, seed=seed))


def test_packed_keys_in_slices() -> None:
    case = Case.draw(3, PACKED, "bfloat16", (300,))
    case.mask, case.kv_lengths = masks.BsrMask(rng(3).random((300, 300)) < 0.1), None
    compare(case, *run_on_cpu(PACKED, case, 5, 3))


def test_values_that_do_not_count_in_slices() -> None:
    g = rng(12)
    q, k, v = (random_array(g, (1, 2, 120, 64), "bfloat16") for _ in range(3))
    mask = g.random((120, 300)) < 0.3
    k, v = (random_array(g, (1, 2, 300, 64), "bfloat16") for _ in range(2))
    mask[:, [3, 77]] = False
    mask[:70, 110] = False
    v[:, :, 77], v[:, 0, 110, ::3] = np.inf, np.nan
    case = Case(q, k, v, masks.BsrMask(mask))
    exact, _, _ = case.oracle()
    assert np.isnan(exact).any() and np.isfinite(exact[:, :, :70]).all()
    compare(case, *run_on_cpu(SMALL, case, 2, 3))
    out, lse = run_on_cpu(SMALL, case, 2, 3, overflow=True)
    assert np.isnan(out.astype(np.float32)).all() and np.isnan(lse).all()


# ---------------------------------------------------------------- what makes scores


def _terms(g: np.random.Generator, heads: int, keys: int, name: str) -> dict[str, Any]:
    slopes = np.exp2(-g.uniform(1, 6, heads)).astype(np.float32)
    bias = random_array(g, (heads, 1, keys), "float16")
    bias[..., g.random(keys) < 0.2] = -np.inf
    return {
        "softcap": {"softcap": 3.0},
        "alibi": {"alibi": slopes},
        "distances": {
            "bias": RelativeBias(random_array(g, (8, heads)), bidirectional=True, max_distance=40)
        },
        "bias": {"bias": bias},
        "sinks": {"sinks": g.normal(size=heads).astype(np.float32)},
        "all": {"softcap": 2.0, "alibi": slopes, "bias": bias.astype(np.float32)},
    }[name]


def with_terms(shape: Sm90Config, name: str, seed: int, dtype: str = "bfloat16") -> Any:
    """Return a case whose scores are modified, and the configuration that does it."""
    case = Case.draw(seed, shape, dtype, (15, 100, 200))
    heads, keys = case.q.shape[1], case.k.shape[2]
    case.terms = _terms(rng(seed), heads, keys, name)
    kind = kind_of(case.args(None).scores)
    shape = shape if name == "sinks" else shape.roomy(stages(kind))
    if seed % 2 and name != "sinks":
        case.scale = -0.2
    return case, shape


@pytest.mark.parametrize(
    ("config", "name"),
    [
        *((SMALL, name) for name in ("softcap", "alibi", "distances", "bias", "sinks", "all")),
        *((PACKED, "distances"), (PACKED, "bias"), (THREE, "alibi")),
    ],
    ids=lambda x: getattr(x, "name", x),
)
def test_the_code_with_modified_scores(config: Sm90Config, name: str) -> None:
    for seed in range(2):
        case, shape = with_terms(config, name, seed + 20)
        if config.packed:
            case.kv_lengths = None
            size = case.q.shape[2], case.k.shape[2]
            case.mask = masks.BsrMask(rng(seed).random(size) < 0.2)
        compare(case, *run_on_cpu(shape, case, seed % 3, 1 + seed % 2, seed=seed))


def test_values_under_a_bias_that_masks() -> None:
    g = rng(13)
    q, k, v = (random_array(g, (1, 2, 100, 64), "bfloat16") for _ in range(3))
    bias = np.zeros((1, 2, 1, 100), np.float16)
    bias[..., 60:70] = -np.inf
    bias[:, 1, :, 5] = -65504
    v[:, :, 60:70], v[:, 1, 5] = np.nan, np.inf
    case = Case(q, k, v, terms={"bias": bias})
    shape = SMALL.roomy(("Additive<stof::f16>",))
    for splits in (1, 2):
        compare(case, *run_on_cpu(shape, case, 2, splits))


# ---------------------------------------------------------------- what it takes


def test_every_configuration_is_one() -> None:
    assert [c.name for c in SM90_CONFIGS if not c.overlaps] == [IN_SEQUENCE.name]
    assert [config.fault() for config in SM90_CONFIGS] == [None] * len(SM90_CONFIGS)
    assert len({config.name for config in SM90_CONFIGS}) == len(SM90_CONFIGS)
    for dim in range(1, 257):
        found = list(shapes(gpus.case(9, dim=dim)))
        assert found and all(shape.dim_qk == sm90_dim(dim) for shape in found)


@pytest.mark.parametrize("dims", [(a, b) for a in SM90_DIMS for b in SM90_DIMS])
def test_every_pair_of_head_dims_has_a_configuration(dims: tuple[int, int]) -> None:
    case = gpus.case(9, dim_qk=dims[0], dim_v=dims[1])
    found = list(attention_sm90.configs(case))
    assert found and all(legal(config, case) == "" for config in found)


@pytest.mark.parametrize(
    "change, named",
    [
        ({"n": 256, "warpgroups": 3}, "registers"),
        ({"scores": ("Alibi",)}, "registers"),
        ({"scores": ("Alibi", "Relative"), "n": 64}, "scores"),
        ({"n": 120}, "n:"),
        ({"stages": 4}, "shared memory"),
        ({"halves": True, "n": 112}, "halves"),
        ({"halves": True, "packed": True}, "halves"),
        ({"blocks": 2}, "registers|shared memory"),
        ({"dim_v": 80}, "head dims"),
        ({"warpgroups": 4}, "warpgroups"),
        ({"warpgroups": 1}, "blocks"),
        ({"stages": 1}, "stages"),
    ],
)
def test_what_is_no_configuration(change: dict[str, int], named: str) -> None:
    wrong = replace(Sm90Config(128, 128, n=128, warpgroups=2), **change).fault()
    assert wrong is not None
    assert any(name in wrong for name in named.split("|"))


@pytest.mark.parametrize(
    "change, named",
    [
        ({"facts": gpus.A100}, "sm_90a alone"),
        ({"facts": gpus.L4}, "sm_90a alone"),
        ({"facts": gpus.B200}, "sm_90a alone"),
        ({"dim": 36}, "a multiple of 8"),
        ({"seq_k": 0}, "empty"),
        ({"dim": 80}, "head dims"),
        ({"given": Given(boxes=False)}, "16 bytes"),
        ({"given": Given(negative=True)}, "negative"),
        ({"scores": gpus.ScoreKind(softcap=True)}, "scores made by"),
        ({"mask": gpus.OnGpu((5, 5))}, "no mask is built"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_it_cannot_run(change: dict[str, Any], named: str) -> None:
    given = change.pop("given", Given())
    case = replace(gpus.case(100, **change), given=given)
    assert named in legal(Config(THREE), case)


def test_packed_keys_need_a_mask_that_the_cpu_knows() -> None:
    some = masks.BsrMask(rng(0).random((100, 100)) < 0.05)
    assert legal(Config(PACKED), gpus.case(100, some)) == ""
    for mask in (None, gpus.OnGpu((5, 5))):
        assert "packed" in legal(Config(replace(PACKED, n=64)), gpus.case(100, mask))
    lengths = replace(gpus.case(100, some), given=Given(lengths=True))
    assert "packed" in legal(Config(PACKED), lengths)
    rare = masks.BsrMask(rng(0).random((1024, 1024)) < 0.001)
    assert any(config.packed for config in attention_sm90.configs(gpus.case(1024, rare)))
    band = masks.sliding_window(1024, window=100).tobsr()
    assert not any(config.packed for config in attention_sm90.configs(gpus.case(1024, band)))


def test_slices_that_are_too_many() -> None:
    case = gpus.case(1000, dim=64)
    assert "slices" in legal(Config(THREE, 7, 2), case)
    assert "slices" in legal(Config(THREE, 1, 65), case)
    assert "bytes" in legal(
        Config(THREE, 6, 64), replace(case, problem=replace(case.problem, batch=200))
    )


def test_where_rows_begin() -> None:
    x = np.zeros((1, 2, 50, 72), np.float16)
    views = (
        *((x, True), (x[..., :70], True), (x[..., 1:9], False)),
        *((x[..., ::2], False), (x[..., :64:2], True)),  # copied
    )
    for q, boxes in views:
        args = Case(q, q, x[..., :64]).args(None)
        assert attention_sm90.given(args) == Given(boxes)
    args = Case(x, x, x, None, -1.0, np.array([3])).args(None)
    assert attention_sm90.given(args) == Given(True, True, True)


def test_more_work_takes_longer() -> None:
    def us(config: Config, **change: Any) -> float:
        return predict(config, gpus.case(change.pop("seq", 2048), dim=128, **change)).us

    causal = masks.causal(2048).tobsr()
    near, far = (masks.sliding_window(2048, window=w).tobsr() for w in (100, 500))
    every = list(candidates(gpus.case(2048, causal, dim=128), ("sm90",)))
    assert {each.splits > 1 for each in every} == {True, False}
    for config in every:
        by_batch = [us(config, mask=causal, batch=n) for n in (1, 2, 8, 64)]
        by_mask = [us(config, mask=mask) for mask in (near, far, None)]
        by_length = [us(config, seq=n, mask=None) for n in (1024, 2048, 4096)]
        for times in (by_batch, by_mask, by_length):
            assert all(a <= b * 1.001 for a, b in pairwise(times)), config.name
        assert by_batch[-1] > 16 * by_batch[0]
        slower = replace(gpus.H100, clock_khz=gpus.H100.clock_khz // 2)
        assert us(config, mask=causal, facts=slower) > us(config, mask=causal)


@pytest.mark.parametrize("seed", range(4))
def test_the_code_on_fuzzed_cases(seed: int) -> None:
    found = [each for each in forced.instances(200) if isinstance(each, forced.Hopper)]
    small = [each for each in found if each.name.endswith("d64_64x64_s2q2b3")]
    case = fuzz_case.draw(seed, small, heavy=0, largest=2e4)
    for outcome in fuzz_check.run_case(case, fuzz_check.Kernels(on_host=True)):
        assert outcome.verdict in ("ok", "refused"), outcome


def test_it_is_chosen_only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    case = gpus.case(4096, masks.causal(4096).tobsr(), dim=128)
    assert choose(case).kernel == "blockwise"
    assert choose(case, select="sm90").kernel == "sm90"
    found = explain(case, select="sm90")
    assert {each.candidate.kernel for each in found} == {"sm90"} and found[0].us > 0
    for facts in (gpus.A100, gpus.L4, gpus.B200):
        with pytest.raises(UnsupportedError, match="sm_90a alone"):
            choose(replace(case, facts=facts), select="sm90")
    monkeypatch.setattr(attention_candidates, "HOPPER", True)
    assert {each.candidate.kernel for each in explain(case)} == {"blockwise", "rowwise", "sm90"}
    assert explain(case)[0].candidate.kernel == "sm90"
    assert explain(case, select="stof-eq1")[0].candidate.kernel == "sm90"
    for facts in (gpus.A100, gpus.L4, gpus.B200):
        kernels = {each.candidate.kernel for each in explain(replace(case, facts=facts))}
        assert kernels == {"blockwise", "rowwise"}


def test_candidates_are_legal_and_have_names() -> None:
    some = masks.BsrMask(rng(1).random((2048, 2048)) < 0.002)
    long = masks.longformer(2048, window=64, global_tokens=64).tobsr()
    for mask in (None, some, long, gpus.OnGpu((500, 400)), gpus.Copied(some)):
        for dim in (40, 64, 96, 128, 192, 256):
            for scores in (gpus.ScoreKind(), gpus.ScoreKind(softcap=True, bias="float32")):
                case = gpus.case(2048, mask, dim=dim, scores=scores)
                found = list(attention_sm90.configs(case))
                assert len({config.name for config in found}) == len(found)
                assert found or (dim > 128 and scores != gpus.ScoreKind())
                for config in found:
                    assert legal(config, case) == "" and config.spec(case.problem)


def test_small_cases_have_no_candidate_twice() -> None:
    for seq in (65, 130, 256, 500):
        for mask in (None, masks.longformer(seq, window=20, global_tokens=9).tobsr()):
            found = list(attention_sm90.configs(gpus.case(seq, mask, heads=2)))
            assert len(set(found)) == len(found)


def test_what_is_long_and_what_is_cut() -> None:
    def of(mask: Any, heads: int, seq: int = 8192) -> list[Config]:
        case = gpus.case(seq, mask, dim=128, heads=heads)
        return [each for each in attention_sm90.configs(case) if each.tile == (128, 128)]

    long = masks.longformer(8192, window=256, global_tokens=64).tobsr()
    assert of(long, 32)[0] == Config(BIG, 1)
    assert of(None, 32) == [Config(BIG)]
    window = masks.sliding_window(8192, window=256).tobsr()
    assert of(window, 32)[0].long_slots == 0
    assert of(masks.causal(8192).tobsr(), 1)[0].long_slots > 32
    cut = [each for each in of(long, 4) if each.splits > 1]
    assert cut and all(each.long_slots == 1 for each in cut)
    decode = gpus.case(65536, dim=128, heads=8, seq_q=1)
    assert max(each.splits for each in attention_sm90.configs(decode)) >= 16


@pytest.mark.parametrize("kv_heads", [32, 8, 1])
@pytest.mark.parametrize("seq", [512, 2048, 8192, 32768])
def test_a_section_stays_in_l2(seq: int, kv_heads: int) -> None:
    """Or is what shares its keys; and what all heads need together is one section."""
    problem = Problem("float16", 4, 32, kv_heads, seq, seq, 128, 128)
    group = 32 // kv_heads
    touched = 2 * 256 * seq * (1 + group)  # by heads that share keys
    for l2_bytes in (4 << 20, 50 << 20, 10**12):
        first, section = _order(Config(BIG, 3), problem, None, 132, l2_bytes)
        assert first == 3 and section % group == 0
        assert section == group or section / group * touched < l2_bytes
        assert section == 128 or section / group * touched > l2_bytes / 4 - touched
    assert section == 128


def test_a_section_is_larger_or_long_lists_come_first_where_they_would_end_last() -> None:
    problem, l2_bytes = Problem("float16", 16, 12, 12, 2048, 2048, 64, 64), 50 << 20

    def of(longest: int, others: int, long_slots: int = 1, splits: int = 1) -> tuple[int, int]:
        lengths = np.array([longest] + 31 * [others])
        return _order(Config(SMALL, long_slots, splits), problem, lengths, 396, l2_bytes)

    assert of(8, 8) == (0, 28) and of(32, 9) == (0, 39)
    assert of(320, 9) == (1, 28)  # it alone takes longer than what 66 heads have beside
    assert of(32, 9, 1, 2) == (1, 28)  # what is cut comes first
    assert of(320, 9, 0) == (0, 66) and of(0, 0) == (0, 28)


# ---------------------------------------------------------------- the kernel, on a GPU


@pytest.fixture(scope="module")
def hopper() -> Any:
    """Return CuPy, if its device is a Hopper."""
    cupy = pytest.importorskip("cupy")
    from stof_cupy.jit import device

    if device.facts().arch != "90a":
        pytest.skip(f"{device.facts().name} is no Hopper")
    return cupy


def run_on_gpu(
    cupy: Any,
    shape: Sm90Config,
    case: Case,
    views: tuple[str, ...] = ("", "", ""),
    long_slots: int = 0,
    splits: int = 1,
) -> tuple[Any, Any]:
    out = poison((*case.q.shape[:3], case.v.shape[3]), case.q.dtype, cupy)
    args = case.args(out, cupy)
    arrays = (args.q, args.k, args.v)
    q, k, v = (strided(x)[name] if name else x for x, name in zip(arrays, views, strict=True))
    config = Config(shape, splits=splits)
    config = replace(config, long_slots=min(long_slots, config.slots(args.problem)))
    got, lse = attention_cuda.run(replace(args, q=q, k=k, v=v), True, candidate=config)
    assert got is out
    return out.get(), lse.get()


def configs(dtype: str) -> list[Any]:
    halves = [replace(config, halves=True) for config in SM90_CONFIGS]
    halves = [config for config in halves if config.fault() is None]
    extra = (
        ODD,
        HALF_SLAB,
        WIDE,
        replace(BIG, bounded=True),
        *halves,
    )  # packed ones take no lengths
    return [pytest.param(c, dtype, id=f"{c.name}-{dtype}") for c in (*SM90_CONFIGS, *extra)]


@pytest.mark.gpu
@pytest.mark.parametrize("config, dtype", [*configs("bfloat16"), *configs("float16")])
def test_random_cases(hopper: Any, config: Sm90Config, dtype: str) -> None:
    sizes = (1, 15, 64, 65, 127, 130, 257, 321, 400)
    first = zlib.crc32(config.name.encode()) % 1000
    for seed in range(first, first + 10):
        case = Case.draw(seed, config, dtype, sizes)
        views = tuple(rng(seed + 10_000).choice(("", "rows", "slice", "transposed"), 3))
        compare(case, *run_on_gpu(hopper, config, case, views))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [8, 16, 40, 64, 72, 80, 96, 112, 128, 136, 160, 192, 200, 256])
def test_head_dims(hopper: Any, dim: int, dtype: str) -> None:
    g = rng(dim)
    inputs = [random_array(g, (2, 3, 300, dim), dtype) for _ in range(3)]
    for mask in (None, masks.sliding_window(300, window=20), masks.causal(300)):
        case = Case(*inputs, mask)
        for shape in shapes(gpus.case(300, dim=dim)):
            compare(case, *run_on_gpu(hopper, shape, case))


@pytest.mark.gpu
@pytest.mark.parametrize(
    "config", [*SM90_CONFIGS, replace(BIG, halves=True), THREE_HALVES], ids=lambda c: c.name
)
def test_values_that_do_not_count(hopper: Any, config: Sm90Config) -> None:
    g = rng(7)
    dims = config.dim_qk, config.dim_qk, config.dim_v
    q, k, v = (random_array(g, (1, 2, 300, dim), "bfloat16") for dim in dims)
    mask = g.random((300, 300)) < 0.5
    mask[:, [3, 77]] = False
    mask[:100, 140] = False
    k[:, :, 3] = np.nan
    v[:, :, 77] = np.inf
    v[:, 0, 140, ::3] = np.nan
    v[:, 1, 140, 1::3] = -np.inf
    case = Case(q, k, v, masks.BsrMask(mask))
    compare(case, *run_on_gpu(hopper, config, case))
    lengths = np.array([200], np.int32)
    k[:, :, 200:], v[:, :, 200:] = np.nan, np.inf
    case = Case(q, k, v, None, None, lengths)
    v[:, :, [77, 140]] = 0
    k[:, :, 3] = 0
    compare(case, *run_on_gpu(hopper, config, case))


@pytest.mark.gpu
@pytest.mark.parametrize(
    "config", [*SM90_CONFIGS, replace(BIG, halves=True), THREE_HALVES], ids=lambda c: c.name
)
def test_many_rows_for_each_cta(hopper: Any, config: Sm90Config) -> None:
    """Thousands of rows, some of them empty: buffers and phases go round many times."""
    g = rng(8)
    dense = np.abs(np.arange(1024)[:, None] - np.arange(1024)) <= 150
    dense[100:400] = False
    dense[900:, :] = True
    shapes = [(2, 48, 1024, config.dim_qk), (2, 6, 1024, config.dim_qk), (2, 6, 1024, config.dim_v)]
    q, k, v = (random_array(g, shape, "bfloat16") for shape in shapes)
    case = Case(q, k, v, masks.BsrMask(dense))
    out, lse = run_on_gpu(hopper, config, case)
    again, _ = run_on_gpu(hopper, config, case)
    np.testing.assert_array_equal(out.view("u2"), again.view("u2"))
    for b, h in ((0, 0), (0, 17), (1, 47)):
        some = slice(h // 8, h // 8 + 1)
        one = Case(q[b : b + 1, h : h + 1], k[b : b + 1, some], v[b : b + 1, some], case.mask)
        compare(one, out[b : b + 1, h : h + 1], lse[b : b + 1, h : h + 1])


@pytest.mark.gpu
@pytest.mark.parametrize("config", [PACKED, replace(BIG, packed=True)], ids=lambda c: c.name)
def test_packed_keys(hopper: Any, config: Sm90Config) -> None:
    for seed in range(16):
        case = Case.draw(seed, config, DTYPES[seed % 2], (1, 15, 64, 130, 321, 700))
        case.kv_lengths = None
        if case.mask is None:
            columns = rng(seed).random(case.k.shape[2]) < 0.1
            case.v[:, :, ~columns] = np.nan
            case.mask = masks.BsrMask(columns | np.zeros((case.q.shape[2], 1), bool))
        compare(case, *run_on_gpu(hopper, config, case))


@pytest.mark.gpu
@pytest.mark.parametrize("dim", [20, 33, 63, 100])
def test_rows_that_end_within_16_bytes(hopper: Any, dim: int) -> None:
    """Queries and keys may, where strides are multiples of 16 bytes; values may not."""
    g = rng(dim)
    sizes = (2, 3, 100, dim), (2, 3, 100, dim), (2, 3, 100, 56)
    case = Case(*(random_array(g, size, "float16") for size in sizes))
    wide = [poison((2, 3, 100, 104), np.float16, hopper) for _ in range(4)]
    q, k, v, out = (x[..., :n] for x, n in zip(wide, (dim, dim, 56, 56), strict=True))
    for x, from_ in zip((q, k, v), (case.q, case.k, case.v), strict=True):
        x[...] = hopper.asarray(from_)
    args = replace(case.args(None, hopper), q=q, k=k, v=v, out=out)
    for shape in shapes(gpus.case(100, dim_qk=dim, dim_v=56)):
        out.fill(np.nan)
        _, lse = attention_cuda.run(args, True, candidate=Config(shape))
        compare(case, out.get(), lse.get())
        assert hopper.isnan(wide[3][..., 56:]).all()


@pytest.mark.gpu
def test_large_scores_stay_finite(hopper: Any) -> None:
    g = rng(2)
    q, k, v = (random_array(g, (1, 2, 100, 64), "float16", scale=60.0) for _ in range(3))
    case = Case(q, k, v, masks.causal(100), 1.0)
    compare(case, *run_on_gpu(hopper, SMALL, case))


@pytest.mark.gpu
def test_a_mask_built_on_the_gpu(hopper: Any) -> None:
    g = rng(9)
    q, k, v = (random_array(g, (1, 2, 500, 64), "bfloat16") for _ in range(3))
    pattern = masks.longformer(500, window=100, global_tokens=64)
    masks_of_both = (pattern.to("cuda"), pattern.tobsr())
    got = [
        attention_cuda.run(Case(q, k, v, mask).args(None, hopper), candidate=Config(shape))
        for shape in (SMALL, IN_SEQUENCE)
        for mask in masks_of_both
    ]
    assert hopper.array_equal(got[0], got[1]) and hopper.array_equal(got[2], got[3])


@pytest.mark.gpu
def test_captured_launches_run_again(hopper: Any) -> None:
    g = rng(10)
    q, k, v = (random_array(g, (2, 4, 500, 64), "bfloat16") for _ in range(3))
    for config in (Config(SMALL), Config(SMALL, 2, 3)):
        out = hopper.zeros_like(hopper.asarray(q))
        args = Case(q, k, v, masks.causal(500).tobsr()).args(out, hopper)
        want = attention_cuda.run(args, candidate=config).copy()
        stream = hopper.cuda.Stream(non_blocking=True)
        hopper.cuda.Device().synchronize()
        with stream:
            stream.begin_capture()
            attention_cuda.run(args, candidate=config)
            graph = stream.end_capture()
            for _ in range(3):
                args.out.fill(0)
                graph.launch(stream)
                stream.synchronize()
                assert hopper.array_equal(args.out, want)


@pytest.mark.gpu
@pytest.mark.parametrize("config", [*SM90_CONFIGS, PACKED], ids=lambda c: c.name)
def test_slices(hopper: Any, config: Sm90Config) -> None:
    for seed in range(6):
        case = Case.draw(seed + 60, config, DTYPES[seed % 2], (1, 100, 300, 700))
        if config.packed:
            case.kv_lengths = None
            size = case.q.shape[2], case.k.shape[2]
            case.mask = masks.BsrMask(rng(seed).random(size) < 0.1)
        compare(case, *run_on_gpu(hopper, config, case, ("", "", ""), 1 + seed, 2 + 3 * seed))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["softcap", "alibi", "distances", "bias", "sinks", "all"])
@pytest.mark.parametrize("config", SM90_CONFIGS, ids=lambda c: c.name)
def test_modified_scores(hopper: Any, config: Sm90Config, name: str) -> None:
    for seed in range(3):
        case, shape = with_terms(config, name, seed + 80, DTYPES[seed % 2])
        if shape.fault() is None:  # wide heads leave no registers for some
            views = ("", "", "")
            compare(case, *run_on_gpu(hopper, shape, case, views, seed, 1 + seed))


@pytest.mark.gpu
def test_a_call_that_asks_for_it(hopper: Any) -> None:
    g = rng(14)
    q, k, v = (hopper.asarray(random_array(g, (1, 4, 300, 64), "float16")) for _ in range(3))
    mask = masks.sliding_window(300, window=50)
    got = attention(q, k, v, mask, select="sm90")
    hopper.testing.assert_allclose(got, attention(q, k, v, mask), atol=4e-3)
    with pytest.raises(UnsupportedError, match="negative"):
        attention(q, k, v, mask, select="sm90", scale=-1.0)
