"""Attention of one new token: bad arguments, NumPy, and the kernel, compiled for the CPU.

And on a GPU where there is one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stof_cupy.errors import ArgumentError, DTypeError, ShapeError
from stof_cupy.jit import decoder_kernels
from stof_cupy.jit.attention_token import TOKEN_HEAD_DIMS, attention_token, token_floats
from stof_cupy.ops import attention_token as module
from stof_cupy.ops import reference, reference_decoder, rotary
from stof_cupy.ops.attention_args import Scores
from stof_cupy.ops.attention_token import HeadNorms, Token, Turn, attend_token, unfit
from stof_cupy.ops.greedy import take_best
from stof_cupy.testing import assert_close, poison, random_array, rng
from tests.masks import on_host
from tests.ops.conftest import OnHost


@dataclass(frozen=True)
class Case:
    """Sizes of a token, and how it is computed."""

    lengths: tuple[int, ...]
    heads: int = 3
    kv_heads: int = 1
    head_dim: int = 64
    dtype: str = "float16"
    room: int = 0  # keys of the cache; 0: the longest sequence and some more
    half: int | None = None  # pairs that are turned; None: all
    interleaved: bool = False
    normed: bool = False
    softcap: float | None = None
    ring: bool = False
    told: bool = True  # of lengths
    cut: tuple[int, int] = (1, 256)
    early: bool = True
    at_once: int = 1
    magnitude: float = 1.0
    seed: int = 0

    @property
    def keys(self) -> int:
        return self.room or max(self.lengths) + 5

    def token(self) -> Token:
        """Random arrays; the cache is poisoned where nobody may look."""
        g, batch, rows = rng(self.seed), len(self.lengths), self.heads + 2 * self.kv_heads
        # As a product gives them: heads of queries, keys and values side by side.
        projected = random_array(g, (batch, 1, rows + 1, self.head_dim), self.dtype, 2.0)
        heads = projected.transpose(0, 2, 1, 3)
        q, k, v, _ = np.split(heads, np.cumsum([self.heads, self.kv_heads, self.kv_heads]), axis=1)
        shape = (batch, self.kv_heads, self.keys, self.head_dim)
        caches = [random_array(g, shape, self.dtype, 2.0) for _ in range(2)]
        positions = np.array([[length - 1] for length in self.lengths], np.int32)
        lengths = np.array(self.lengths, np.int32) if self.told else None
        for cache in caches:
            for one, length, (at,) in zip(cache, self.lengths, positions, strict=True):
                one[:, length if self.told else self.keys :] = np.nan
                one[:, at % self.keys] = np.nan
        turn = norms = None
        half = self.head_dim // 2 if self.half is None else self.half
        if half:
            frequency = (10000.0 ** -(np.arange(half) / half)).astype(np.float32)
            turn = Turn(frequency, self.interleaved, self.magnitude)
        if self.normed:
            norms = HeadNorms(*random_array(g, (2, self.head_dim), self.dtype), 1e-5)
        return Token(
            q, k, v, *caches, positions, turn, norms, lengths, 0.15, self.softcap, self.ring
        )  # fmt: skip


def expected(case: Case, t: Token, precision: str | None) -> tuple[Any, Any]:
    """The result and the keys, as the operators in turn have them."""
    q, k = t.q, t.k
    if t.norms is not None:
        q, k = (
            reference_decoder.rms_norm(x, w, eps=t.norms.eps, precision=precision)
            for x, w in ((q, t.norms.q), (k, t.norms.k))
        )
    if t.turn is not None:
        how: Any = {"interleaved": t.turn.interleaved, "magnitude": t.turn.magnitude}
        q, k = (
            reference_decoder.rotary(x, t.positions, t.turn.frequency, **how, precision=precision)
            for x in (q, k)
        )
    keys, values = (x.astype(np.float64) for x in (t.key_cache, t.value_cache))
    for b, (at,) in enumerate(t.positions):
        keys[b, :, at % case.keys] = k[b, :, 0]
        values[b, :, at % case.keys] = t.v[b, :, 0]
    how = {"scale": t.scale, "softcap": t.softcap, "precision": precision}
    lengths = None if t.lengths is None else np.minimum(t.lengths, case.keys)
    return reference.attention(q, keys, values, kv_lengths=lengths, **how), k


def run_on_host(case: Case, t: Token) -> tuple[np.ndarray, Token]:
    """Run the kernel on arrays that end where memory does; what it writes to is poisoned."""
    assert not unfit(t)
    t = replace(t, key_cache=on_host.fenced(t.key_cache), value_cache=on_host.fenced(t.value_cache))
    head_dim = next(dim for dim in TOKEN_HEAD_DIMS if dim >= case.head_dim)
    out = poison((*t.q.shape[:2], case.head_dim + 8), t.q.dtype)[:, :, None, : case.head_dim]
    partial = on_host.fenced(poison((t.items, case.cut[0], token_floats(head_dim)), np.float32))
    counts = np.zeros(t.items, np.int32)
    scores = Scores(scale=t.scale, softcap=t.softcap)
    given = (t.positions, t.lengths, out, case.cut, partial, counts.ctypes.data)
    blocks, fields = module.arguments(t, scores, *given)
    fields["early"] = case.early
    spec, how = attention_token(case.dtype, head_dim), {"at_once": case.at_once}
    before = [each.copy() for each in (t.key_cache, t.value_cache)]
    on_host.launch(spec, (blocks, 1), seed=case.seed, **how, **fields)
    assert not counts.any(), "the next launch would not find zeros"
    assert np.isnan(out.base[..., case.head_dim :].astype(np.float32)).all()
    for cache, was, new in zip((t.key_cache, t.value_cache), before, (None, t.v), strict=True):
        changed = (cache.view(np.uint16) != was.view(np.uint16)).any(axis=(1, 3))
        for b, (at,) in enumerate(t.positions):
            slot = at % case.keys if case.ring else at
            assert set(np.flatnonzero(changed[b])) == ({slot} & set(range(case.keys)))
            if new is not None and slot in range(case.keys):
                assert np.array_equal(cache[b, :, slot].view(np.uint16), new[b, :, 0].view("u2"))
    return out, t


def check(case: Case) -> np.ndarray:
    t = case.token()
    exact, exact_k = expected(case, t, None)
    low, low_k = expected(case, t, case.dtype)
    out, after = run_on_host(case, t)
    assert_close(out, exact, low)
    for b, (at,) in enumerate(t.positions):
        assert_close(after.key_cache[b, :, at % case.keys], exact_k[b, :, 0], low_k[b, :, 0])
    return out


@pytest.mark.parametrize("length", [1, 15, 16, 17, 127, 128, 129, 1000])
def test_the_code_at_lengths(length: int) -> None:
    check(Case((length,), seed=length))


@pytest.mark.parametrize("heads", [(1, 1), (4, 4), (6, 2), (8, 2), (8, 1), (9, 1), (20, 1)])
def test_the_code_with_shared_keys(heads: tuple[int, int]) -> None:
    check(Case((37, 150), *heads, seed=sum(heads)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("head_dim", [8, 48, 64, 80, 96, 128, 192, 256])
def test_the_code_of_head_dims(head_dim: int, dtype: str) -> None:
    half = head_dim // 2 if head_dim % 16 == 0 else 0
    check(Case((77, 20), 4, 2, head_dim, dtype, half=half, seed=head_dim))
    check(Case((140,), 4, 1, head_dim, dtype, half=0, normed=True, cut=(3, 32), seed=head_dim))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("half", [0, 8, 16, 40])
def test_the_code_turns_some_of_a_head(half: int, interleaved: bool) -> None:
    check(Case((21, 300), 5, 1, 80, half=half, interleaved=interleaved, magnitude=1.25, seed=half))


def test_the_code_turns_neighbours_of_any_number() -> None:
    for half, head_dim in ((1, 64), (13, 64), (27, 56), (101, 256)):
        check(Case((40,), 2, 1, head_dim, half=half, interleaved=True, seed=half))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_code_with_norms_and_a_cap(dtype: str) -> None:
    for head_dim, half in ((256, 128), (64, 32), (96, 24)):
        case = Case((90, 33), 4, 1, head_dim, dtype, half=half, normed=True, softcap=5.0)
        check(replace(case, seed=head_dim))


@pytest.mark.parametrize("cut", [(2, 16), (5, 64), (8, 256), (64, 16), (33, 32)])
@pytest.mark.parametrize("at_once", [1, 3])
def test_the_code_in_splits(cut: tuple[int, int], at_once: int) -> None:
    longest = 1020 if cut[0] == 64 else 700  # as many splits as there can be
    check(Case((1, 65, longest), 6, 2, cut=cut, at_once=at_once, seed=cut[0]))
    check(Case((400,), 3, 1, 256, "bfloat16", cut=cut, at_once=at_once, seed=cut[1]))


def test_splits_are_added_up_in_their_order() -> None:
    case = Case((900,), 4, 1, cut=(16, 32), at_once=4)
    first = check(case)
    for turn in range(3):
        t = case.token()
        again, _ = run_on_host(replace(case, at_once=1 + turn), t)
        assert np.array_equal(first.view(np.uint16), again.view(np.uint16))


def test_the_code_goes_round_a_ring() -> None:
    for lengths, keys in (((40, 41, 100), 40), ((39, 16, 1), 40), ((513, 1024), 512)):
        check(Case(lengths, 4, 2, room=keys, ring=True, cut=(4, 64), seed=keys))
    check(Case((70, 200), 4, 2, room=64, ring=True, told=False))


def test_all_keys_of_the_cache_count_without_lengths() -> None:
    check(Case((30, 10), 2, 1, room=61, told=False))


@pytest.mark.parametrize("early", [False, True])
def test_places_that_are_none_and_lengths_that_leave_the_token_out(early: bool) -> None:
    case = Case((50, 60, 9), 3, 1, room=64, early=early)
    t = case.token()
    caches = [random_array(rng(1), t.key_cache.shape, case.dtype) for _ in range(2)]
    positions = np.array([[-1], [64], [63]], np.int32)  # the last at one that is masked
    lengths = np.array([50, 1000, 0], np.int32)
    t = replace(t, key_cache=caches[0], value_cache=caches[1], positions=positions, lengths=lengths)
    how: Any = {"interleaved": False}
    results = []
    for precision in (None, case.dtype):
        q = reference_decoder.rotary(t.q, positions, t.turn.frequency, **how, precision=precision)
        results.append(
            reference.attention(
                q, *caches, scale=t.scale, kv_lengths=np.minimum(lengths, 64), precision=precision
            )
        )
    out, _ = run_on_host(case, t)
    assert_close(out, *results)
    assert not out[2].any()  # which attends to nothing


def test_what_is_not_finite_stays_with_its_head() -> None:
    case = Case((70,), 3, 1)
    t = case.token()
    t.q[0, 1, 0, 3] = np.nan
    out, _ = run_on_host(case, t)
    exact, _ = expected(case, t, None)
    finite = [0, 2]
    assert_close(out[:, finite], exact[:, finite], expected(case, t, "float16")[0][:, finite])
    assert np.isnan(out[0, 1]).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_token_that_its_own_length_leaves_out_does_not_count(dtype: str) -> None:
    case = Case((50, 50), 3, 1, dtype=dtype, room=64)
    t = case.token()
    for cache in (t.key_cache, t.value_cache):
        cache[...] = random_array(rng(1), cache.shape, dtype)
    # In the tile that has the last keys that count.
    t = replace(t, positions=np.array([[51], [58]], np.int32))
    first, _ = run_on_host(case, t)
    t.k[...], t.v[...] = np.nan, np.inf
    again, _ = run_on_host(case, t)
    assert np.isfinite(again.astype(np.float32)).all()
    assert np.array_equal(first.view(np.uint16), again.view(np.uint16))


@pytest.mark.parametrize("interleaved", [False, True])
def test_what_is_not_turned_is_copied(interleaved: bool) -> None:
    for half in (8, 13) if interleaved else (8, 16):
        case = Case((20,), 2, 1, half=half, interleaved=interleaved)
        t = case.token()
        t.k[0, 0, 0, [2 * half, 2 * half + 3, 62]] = np.inf, -np.inf, np.nan
        _, after = run_on_host(case, t)
        kept, given = (x[..., 2 * half :] for x in (after.key_cache[0, 0, 19], t.k[0, 0, 0]))
        np.testing.assert_array_equal(kept, given)


def test_scores_far_from_zero() -> None:
    case = Case((200,), 2, 1, half=0, cut=(4, 32))
    t = replace(case.token(), scale=3e5)
    out, _ = run_on_host(case, t)
    q, k = t.q.astype(np.float64), t.key_cache.astype(np.float64)
    k[0, 0, 199], v = t.k[0, 0, 0], t.value_cache.astype(np.float64)
    v[0, 0, 199] = t.v[0, 0, 0]
    best = np.einsum("hd,kd->hk", q[0, :, 0], k[0, 0, :200]).argmax(axis=1)
    assert np.array_equal(out[0, :, 0].astype(np.float64), v[0, 0, best])  # it alone counts


@pytest.mark.parametrize(("interleaved", "half"), [(False, 32), (True, 32), (False, 8)])
def test_the_key_is_that_of_the_kernels_in_turn(interleaved: bool, half: int) -> None:
    case = Case((1000, 3), 2, 2, half=half, interleaved=interleaved)
    t = case.token()
    k = np.ascontiguousarray(t.k)
    blocks, fields = rotary.arguments(k, t.positions, t.turn.frequency, k, 1.0)
    on_host.launch(decoder_kernels.rotary(case.dtype, interleaved), (blocks, 1), **fields)
    _, after = run_on_host(case, t)
    for b, (at,) in enumerate(t.positions):
        got = after.key_cache[b, :, at]
        assert np.array_equal(got.view(np.uint16), k[b, :, 0].view(np.uint16))


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_numpy(dtype: str, normed: bool) -> None:
    case = Case((20, 7), 4, 2, 16, dtype, normed=normed, softcap=3.0)
    t = case.token()
    exact, exact_k = expected(case, t, None)
    low, low_k = expected(case, t, dtype if dtype != "float64" else "float32")
    assert_close(attend_token(t), exact, low)
    for b, (at,) in enumerate(t.positions):
        assert_close(t.key_cache[b, :, at], exact_k[b, :, 0], low_k[b, :, 0])
        assert np.array_equal(t.value_cache[b, :, at], t.v[b, :, 0])


def some(**others: Any) -> Token:
    x = np.ones((1, 2, 1, 8), np.float32)
    caches = {name: np.zeros((1, 2, 4, 8), np.float32) for name in ("key_cache", "value_cache")}
    return Token(**{"q": x, "k": x, "v": x, "positions": np.array([[1]]), **caches, **others})


ONE = np.ones((1, 2, 1, 8), np.float32)


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"q": ONE[0]}, ShapeError, "q: got"),
        ({"q": ONE.astype(int)}, DTypeError, "q: got int64"),
        ({"k": ONE.astype(np.float16)}, DTypeError, "key_cache|cache: got"),
        ({"k": ONE[:, :1]}, ShapeError, "cache: got"),
        ({"q": ONE.repeat(2, axis=2)}, ShapeError, "k: got"),
        ({"positions": np.array([[4]])}, ArgumentError, "got 4"),
        ({"positions": np.array([[-1]])}, ArgumentError, "got -1"),
        ({"positions": np.array([1])}, ShapeError, "positions"),
        ({"lengths": np.array([1.0])}, DTypeError, "kv_lengths"),
        ({"turn": Turn(np.ones(5, np.float32))}, ShapeError, "frequency"),
        ({"turn": Turn(np.ones(4))}, DTypeError, "frequency"),
        ({"turn": Turn(np.ones(4, np.float32), magnitude=np.nan)}, ArgumentError, "magnitude"),
        ({"norms": HeadNorms(ONE[0, 0, 0], ONE[0, 0, 0, :7], 1e-5)}, ShapeError, "k_norm"),
        ({"norms": HeadNorms(ONE[0, 0, 0], ONE[0, 0, 0], 0)}, ArgumentError, "eps"),
        ({"norms": HeadNorms(np.ones(8), ONE[0, 0, 0], 1)}, DTypeError, "q_norm"),
        ({"scale": np.inf}, ArgumentError, "scale"),
        ({"softcap": -1.0}, ArgumentError, "softcap"),
    ],
)
def test_bad_arguments(given: dict[str, Any], error: type, text: str) -> None:
    token = some(**given)
    with pytest.raises(error, match=text):
        attend_token(token)
    assert not token.key_cache.any() and not token.value_cache.any()


def test_memory_that_is_shared() -> None:
    cache = np.zeros((1, 2, 4, 8), np.float32)
    with pytest.raises(ArgumentError, match="shared with"):
        attend_token(some(key_cache=cache, value_cache=cache))
    with pytest.raises(ArgumentError, match="shared with"):
        attend_token(some(q=cache[:, :, :1], key_cache=cache))
    token = some()
    with pytest.raises(ArgumentError, match="shared with"):
        attend_token(token, out=token.q)


def test_what_the_kernel_does_not_take() -> None:
    def why(case: Case, **others: Any) -> str:
        return unfit(replace(case.token(), **others))

    assert not why(Case((5,)))
    assert "head_dim 20" in why(Case((5,), head_dim=20, half=0))
    assert "head_dim 264" in why(Case((5,), head_dim=264, half=0))
    assert "12 frequencies" in why(Case((5,), half=12))
    assert not why(Case((5,), half=12, interleaved=True))
    odd = np.zeros((1, 1, 10, 68), np.float16)[..., :64]
    assert "same strides" in why(Case((5,)), key_cache=odd)
    assert "aligned" in why(Case((5,)), key_cache=odd, value_cache=odd)
    assert "aligned" in why(Case((5,)), q=np.zeros((1, 3, 1, 128), np.float16)[..., ::2])
    assert "2 tokens" in why(Case((5,)), q=np.zeros((1, 3, 2, 64), np.float16))


def test_how_it_is_launched(launched: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator's own launching code: a cache with room for splits, and one without."""
    counts = np.zeros(64, np.int32)
    taken: list[int] = []

    def take(count: int) -> int:
        taken.append(count)
        return int(counts.ctypes.data)

    monkeypatch.setattr(module, "counters", lambda device: SimpleNamespace(take=take))
    told: list[dict[str, Any]] = []
    launch = on_host.launch

    def listened(*given: Any, **fields: Any) -> Any:
        told.append(fields)
        return launch(*given, **fields)

    monkeypatch.setattr(on_host, "launch", listened)
    about = SimpleNamespace(sm_count=132)
    monkeypatch.setattr("stof_cupy.jit.device.facts", lambda device: about)
    for number, room in enumerate((600, 250)):
        case = Case((room - 10, 60), 6, 2, room=room)
        t = case.token()
        exact, low = (expected(case, t, each)[0] for each in (None, case.dtype))
        arrays = {
            name: getattr(t, name).view(OnHost)
            for name in ("q", "k", "v", "key_cache", "value_cache", "positions", "lengths")
        }
        # As a session has them, and as others may.
        at = t.positions[:, 0].view(OnHost)[:, None] if number else t.positions.astype(np.int64)
        on = replace(t, **{**arrays, "positions": at.view(OnHost)}, scale=0.15, settled=True)
        got = module._launch(on, Scores(scale=0.15), None)
        assert told.pop()["early"] is (number == 1)  # none, where positions are converted
        assert got.strides[1] < got.strides[0] and len(launched) == number + 1
        assert_close(np.asarray(got), exact, low)
    assert taken == [4] and not counts.any()


def test_lengths_that_int32_does_not_hold_are_clipped(
    launched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    about = SimpleNamespace(sm_count=132)
    monkeypatch.setattr("stof_cupy.jit.device.facts", lambda device: about)
    case = Case((40, 40), 3, 1, room=40)
    t = case.token()
    want, _ = run_on_host(case, replace(t, lengths=np.array([40, 0], np.int32)))
    lengths = np.array([2**32 + 3, -(2**32) + 3])
    on = replace(t, lengths=lengths.view(OnHost), q=t.q.view(OnHost))
    got = module._launch(on, Scores(scale=0.15), None)
    assert np.array_equal(np.asarray(got).view(np.uint16), want.view(np.uint16))


DECODED = (
    Case((1, 17, 128), 9, 3),
    Case((1000, 4000), 32, 8, told=False, room=4096),
    Case((300,), 4, 1, 256, "bfloat16", normed=True),
    Case((900, 100), 4, 1, 256, "bfloat16", room=512, ring=True),
    Case((7800,), 9, 3, room=8192),
    Case((5000,), 8, 1, 128, softcap=9.0),
    Case((70,) * 64, 12, 12, 80, "bfloat16", interleaved=True),
)


@pytest.mark.gpu
@pytest.mark.parametrize("case", DECODED, ids=str)
def test_on_a_gpu(case: Case) -> None:
    import cupy

    t = case.token()
    exact, exact_k = expected(case, t, None)
    low, low_k = expected(case, t, case.dtype)
    on = put(t, cupy)
    for settled in (False, True, False):  # the same result, and counters that were left as found
        assert_close(attend_token(replace(on, settled=settled)), exact, low)
        for b, (at,) in enumerate(t.positions):
            got = on.key_cache[b, :, int(at) % case.keys]
            assert_close(got, exact_k[b, :, 0], low_k[b, :, 0])
        cupy.cuda.get_current_stream().synchronize()


@pytest.mark.gpu
def test_a_graph_that_is_launched_again_and_again() -> None:
    """Tokens after one another, of which each reads the keys of those before."""
    import cupy

    case = Case((600,), 9, 3, room=1024)
    t = put(case.token(), cupy)
    t.key_cache[...], t.value_cache[...] = 0, 0
    other = replace(t, key_cache=t.key_cache.copy(), value_cache=t.value_cache.copy())
    other = replace(other, positions=t.positions.copy(), lengths=t.lengths.copy())
    out, logits, tokens = cupy.empty_like(t.q), cupy.zeros((1, 8), np.float16), cupy.zeros(1, int)
    attend_token(t, out=out)  # compiled before it is captured
    take_best(logits, tokens, cupy.zeros(1, np.int32), cupy.zeros(1, np.int32))
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture(cupy.cuda.runtime.streamCaptureModeRelaxed)
        attend_token(replace(t, settled=True), out=out)
        take_best(logits, tokens, t.positions.reshape(-1), t.lengths)  # counts
        graph = stream.end_capture()
        for _ in range(40):
            graph.launch(stream)
            stream.synchronize()
            alone = attend_token(other)
            assert cupy.array_equal(alone.view(np.uint16), out.view(np.uint16))
            take_best(logits, tokens, other.positions.reshape(-1), other.lengths)


def put(t: Token, xp: Any) -> Token:
    names = ("q", "k", "v", "key_cache", "value_cache", "positions", "lengths")
    arrays = {n: xp.asarray(getattr(t, n)) for n in names if getattr(t, n) is not None}
    if t.turn is not None:
        arrays["turn"] = replace(t.turn, frequency=xp.asarray(t.turn.frequency))
    if t.norms is not None:
        arrays["norms"] = replace(t.norms, q=xp.asarray(t.norms.q), k=xp.asarray(t.norms.k))
    return replace(t, **arrays)
