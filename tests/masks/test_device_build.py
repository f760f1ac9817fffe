"""Patterns built on the GPU against what the CPU builds of them, which has tests of its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from operator import and_, or_, xor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stof_cupy import masks
from stof_cupy.errors import ArgumentError
from stof_cupy.masks import BsrMask, MaskStack, Pattern
from tests.masks.dense import SHAPES, SIZES
from tests.masks.on_device import check_array, check_same, counts, download

gpu = pytest.mark.gpu
END, START = {"align": "bottom-right"}, {"align": "top-left"}


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    """Return numbers from 0 to 1, the same at every call."""
    return np.random.default_rng([*shape, seed]).random(shape)


def lengths(total: int, documents: int, seed: int) -> list[int]:
    """Return lengths of so many documents, some of them 0."""
    cuts = np.random.default_rng(seed).integers(0, total + 1, documents - 1)
    return np.diff([0, *np.sort(cuts), total]).tolist()


def layout(sq: int, sk: int, rows: int, cols: int | None = None) -> Pattern:
    """Return random blocks of `rows` and `cols`."""
    block = (rows, rows if cols is None else cols)
    grid = [-(-size // side) for size, side in zip((sq, sk), block, strict=True)]
    return masks.blocks((sq, sk), *(draw(*grid) < 0.4).nonzero(), block=block)


def ids(s: int) -> np.ndarray:
    """Return sorted document numbers, the lowest of which are padding."""
    return np.sort(np.random.default_rng(s).integers(-2, max(s // 40, 1), s))


OBLONG: dict[str, Callable[[int, int], Pattern]] = {
    "full": lambda sq, sk: masks.full(sq, sk),
    "empty": lambda sq, sk: ~masks.full(sq, sk),
    "causal": lambda sq, sk: masks.causal(sq, sk, **START),
    "causal at the end": lambda sq, sk: masks.causal(sq, sk, **END),
    "window": lambda sq, sk: masks.sliding_window(sq, sk, window=20, **END),
    "window back": lambda sq, sk: masks.sliding_window(sq, sk, window=64, causal=True, **START),
    "uneven window": lambda sq, sk: masks.sliding_window(sq, sk, window=(130, 3), **START),
    "dilated": lambda sq, sk: masks.dilated(sq, sk, window=5, dilation=40, **START),
    "dilated back": lambda sq, sk: masks.dilated(sq, sk, window=60, dilation=3, causal=True, **END),
    "prefix": lambda sq, sk: masks.prefix_lm(sq, sk, prefix=70, **END),
    "sinks": lambda sq, sk: masks.sink_window(sq, sk, sinks=3, window=65, **START),
    "chunked": lambda sq, sk: masks.chunked(sq, sk, chunk=17, before=1, after=2, **START),
    "chunked back": lambda sq, sk: masks.chunked(sq, sk, chunk=100, causal=True, **END),
    "slash": lambda sq, sk: masks.vertical_slash(
        sq, sk, vertical=(draw(sk) < 0.02).nonzero()[0], slash=[0, 1, 64, 300], **END
    ),
    "blocks of 1": lambda sq, sk: layout(sq, sk, 1),
    "blocks of 48": lambda sq, sk: layout(sq, sk, 48),
    "blocks of 64": lambda sq, sk: layout(sq, sk, 64),
    "blocks of 128x65": lambda sq, sk: layout(sq, sk, 128, 65),
    "documents": lambda sq, sk: masks.document(lengths(sq, 7, 1), lengths(sk, 7, 2)),
    "documents back": lambda sq, sk: masks.document(
        lengths(sq, 7, 1), lengths(sk, 7, 2), causal=True, **END
    ),
    "padding": lambda sq, sk: masks.key_padding(np.arange(sk) < sk * 2 // 3, sq),
    "holes": lambda sq, sk: masks.key_padding(draw(sk) < 0.9, sq),
    "function": lambda sq, sk: masks.predicate((sq, sk), lambda q, k: (q ^ k) & 5 == 0),
    "bounded function": lambda sq, sk: masks.predicate(
        (sq, sk), lambda q, k: (q + k) % 3 == 0, within=masks.causal(sq, sk, **START)
    ),
    "stored": lambda sq, sk: masks.full(sq, sk) & (draw(sq, sk) < 0.01),
}
SQUARE: dict[str, Callable[[int], Pattern]] = {
    "global": lambda s: masks.global_tokens(s, 16),
    "global positions": lambda s: masks.global_tokens(s, (draw(s) < 0.02).nonzero()[0]),
    "longformer": lambda s: masks.longformer(s, window=20, global_tokens=5),
    "strided": lambda s: masks.strided(s, stride=11),
    "strided both ways": lambda s: masks.strided(s, stride=70, causal=False),
    "fixed": lambda s: masks.fixed(s, stride=64, summary=1),
    "fixed both ways": lambda s: masks.fixed(s, stride=33, summary=4, causal=False),
    "bigbird": lambda s: masks.bigbird(s),
    "bigbird of 7": lambda s: masks.bigbird(s, block=7, seed=3),
    "bigbird as hf": lambda s: masks.bigbird_hf(s, block=16),
    "documents by id": lambda s: masks.document_ids(ids(s)),
    "documents by id back": lambda s: masks.document_ids(ids(s), causal=True),
    "line": lambda s: masks.neighborhood(max(s, 1), window=min(7, max(s, 1))),
    "line back": lambda s: masks.neighborhood(max(s, 9), window=3, dilation=3, causal=True),
    "spec": lambda s: masks.from_spec("sink:n=4,w=33", s),
}


@gpu
@pytest.mark.parametrize(("sq", "sk"), SHAPES)
@pytest.mark.parametrize("name", OBLONG)
def test_patterns_of_any_shape(name: str, sq: int, sk: int) -> None:
    check_same(OBLONG[name](sq, sk))


@gpu
@pytest.mark.parametrize("s", SIZES)
@pytest.mark.parametrize("name", SQUARE)
def test_square_patterns(name: str, s: int) -> None:
    check_same(SQUARE[name](s))


@gpu
@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize(
    ("lattice", "window", "dilation"),
    [
        ((14, 14), (7, 7), (1, 1)),
        ((7, 100), (3, 5), (2, 3)),
        ((5, 130), (4, 6), (1, 20)),
        ((5, 6, 7), (3, 2, 5), (1, 3, 1)),
        ((40, 2, 3), (5, 1, 3), (8, 2, 1)),
    ],
)
def test_lattices(
    lattice: tuple[int, ...], window: tuple[int, ...], dilation: tuple[int, ...], causal: bool
) -> None:
    check_same(masks.neighborhood(lattice, window=window, dilation=dilation, causal=causal))


def test_every_pattern_function_is_built_here() -> None:
    """A new one has to be added above; those of CuPy arrays have files of their own."""
    made = {
        name
        for name in masks.__all__
        if inspect.isfunction(function := getattr(masks, name))
        and inspect.signature(function).return_annotation == "Pattern"
    }
    here = inspect.getsource(inspect.getmodule(lengths))  # type: ignore[arg-type]
    elsewhere = {"dense", "score_blocks"}
    assert {name for name in made - elsewhere if f"masks.{name}(" not in here} == set()


SYMBOLS = {"&": and_, "|": or_, "^": xor}


def leaf(name: str, sq: int, sk: int) -> Pattern:
    """Return a pattern of any name above; a square one is cut or moved to the shape."""
    if name in OBLONG:
        return OBLONG[name](sq, sk)
    return SQUARE[name](max(sq, sk, 1)).shift(0, 0, (sq, sk))


def grow(draw_from: st.DrawFn, sq: int, sk: int, levels: int) -> tuple[Pattern, np.ndarray]:
    """Return a random tree of expressions, and the same of arrays."""
    kind = draw_from(st.sampled_from(("&", "|", "^", "~", "crop", "shift"))) if levels else "leaf"
    if kind == "leaf":
        pattern = leaf(draw_from(st.sampled_from(sorted({**OBLONG, **SQUARE}))), sq, sk)
        return pattern, pattern.toarray()
    if kind in SYMBOLS:
        less = [min(levels, draw_from(st.integers(1, 2))) for _ in "lr"]
        (left, x), (right, y) = (grow(draw_from, sq, sk, levels - n) for n in less)
        return SYMBOLS[kind](left, right), SYMBOLS[kind](x, y)
    if kind == "~":
        pattern, array = grow(draw_from, sq, sk, levels - 1)
        return ~pattern, ~array
    down, across = (draw_from(st.sampled_from((0, 1, 63, 64, 100, 128))) for _ in "qk")
    if kind == "crop":
        pattern, array = grow(draw_from, sq + down, sk + across, levels - 1)
        cut = np.s_[down:, across:]
        return pattern[cut], array[cut]
    pattern, array = grow(draw_from, sq, sk, levels - 1)
    return pattern.shift(down, across), np.pad(array, ((down, 0), (across, 0)))[:sq, :sk]


@gpu
@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.data())
def test_any_expression_is_its_elementwise_meaning(data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from(((1, 1), (65, 130), (129, 64), (200, 200), (150, 300))))
    pattern, expected = grow(data.draw, *shape, data.draw(st.integers(0, 5)))
    check_array(pattern.to("cuda"), expected)


NAMES = sorted({**OBLONG, **SQUARE})


@gpu
@pytest.mark.parametrize("levels", (8, 40))
@pytest.mark.parametrize("side", ("left", "right", "alternating"))
def test_chains(side: str, levels: int) -> None:
    """Each level is the left or the right operand of the next one."""
    pattern = leaf("window", 200, 150)
    expected = pattern.toarray()
    for level in range(levels):
        other = leaf(NAMES[(5 * level + 1) % len(NAMES)], 200, 150)
        apply = SYMBOLS["|&^"[level % 3]]
        first = side == "left" or (side == "alternating" and level % 2)
        pattern = apply(*((pattern, other) if first else (other, pattern)))
        expected = apply(expected, other.toarray())
        if level % 2:
            pattern, expected = ~pattern, ~expected
    check_array(pattern.to("cuda"), expected)


@gpu
@pytest.mark.parametrize("levels", (3, 5, 8))
def test_balanced_trees(levels: int) -> None:
    """Both operands are as deep: 256 leaves at last, more than any program need hold."""

    def tree(level: int, number: int) -> tuple[Pattern, np.ndarray]:
        if level == 0:
            pattern = leaf(NAMES[number * 7 % len(NAMES)], 130, 200)
            return pattern, pattern.toarray()
        (left, x), (right, y) = (tree(level - 1, 2 * number + n) for n in range(2))
        apply = SYMBOLS["^&|"[level % 3]]
        pattern, array = apply(left, right), apply(x, y)
        return (~pattern, ~array) if number % 3 == 1 else (pattern, array)

    pattern, expected = tree(levels, 1)
    check_array(pattern.to("cuda"), expected)


@gpu
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("down", "across"), [(64, 128), (1, 0), (0, 63), (65, 127), (128, 5)])
def test_crop_and_shift(name: str, down: int, across: int) -> None:
    pattern = leaf(name, 200, 260)
    array = pattern.toarray()
    check_array(pattern.crop((down, 197), (across, 260)).to("cuda"), array[down:197, across:])
    moved = np.pad(array, ((down, 0), (across, 0)))
    check_array(pattern.shift(down, across, moved.shape).to("cuda"), moved)
    cut = np.zeros((70, 300), bool)
    rest = array[down:, across:][:70, :300]
    cut[: rest.shape[0], : rest.shape[1]] = rest
    check_array(pattern.shift(-down, -across, cut.shape).to("cuda"), cut)


@gpu
def test_views_of_compounds_of_views() -> None:
    near, holes = leaf("window", 300, 300), leaf("holes", 300, 300)
    inner = (near.shift(10, 70) ^ holes[5:, 64:].shift(0, 0, (300, 300)))[3:290, 100:]
    array = np.pad(near.toarray(), ((10, 0), (70, 0)))[:300, :300] ^ np.pad(
        holes.toarray()[5:, 64:], ((0, 5), (0, 64))
    )
    expected = ~array[3:290, 100:]
    check_array((~inner).to("cuda"), expected)
    check_array((~inner)[64:, :65].to("cuda"), expected[64:, :65])


@gpu
@pytest.mark.parametrize("shape", ((0, 0), (0, 5), (5, 0), (1, 1), (65, 300), (1000, 129)))
def test_upload_of_a_mask(shape: tuple[int, int]) -> None:
    mask = BsrMask(draw(*shape) < 0.02)
    on_gpu = mask.to("cuda")
    assert on_gpu.shape == mask.shape and on_gpu.lead == ()
    assert download(on_gpu).equals(mask)
    assert mask.to("cpu") is mask


@gpu
@pytest.mark.parametrize("lead", ((1,), (4,), (2, 1), (1, 3), (2, 3)))
def test_upload_of_a_stack(lead: tuple[int, ...]) -> None:
    pool = draw(3, 130, 200) < np.array([0.3, 0.001, 0])[:, None, None]
    stacked = MaskStack.from_dense(pool[np.random.default_rng(0).integers(0, 3, lead)])
    on_gpu = stacked.to("cuda")
    assert on_gpu.lead == lead and on_gpu.shape == (*lead, 130, 200)
    assert download(on_gpu).equals(stacked)
    assert stacked.to("cpu") is stacked


@gpu
def test_masks_of_the_gpu_as_operands() -> None:
    """Built and uploaded ones, with leading axes and without, in patterns that are built again."""
    near, holes = leaf("window", 200, 260), draw(2, 1, 200, 260) < 0.9
    per_head = draw(3, 200, 260) < 0.01
    built, stacked = near.to("cuda"), MaskStack.from_dense(per_head).to("cuda")
    uploaded, x = BsrMask(per_head[0]).to("cuda"), near.toarray()
    for pattern, expected in (
        (~built, ~x),
        (built & uploaded, x & per_head[0]),
        (stacked ^ near, per_head ^ x),
        (near | stacked, per_head | x),
        (MaskStack.from_dense(holes).to("cuda") & ~stacked, holes & ~per_head),
        ((stacked | built)[70:, 3:], (per_head | x)[..., 70:, 3:]),
    ):
        check_array(pattern.to("cuda"), expected)


@gpu
def test_where_a_mask_is_and_how_large() -> None:
    import cupy

    for pattern in (masks.causal(1000), masks.longformer(1000, window=20, global_tokens=70)):
        mask = pattern.to("cuda")
        needed = counts(pattern.tobsr())
        assert mask.check() == (needed["tiles"], needed["bitmaps"])
        assert mask.device == cupy.cuda.Device().id
        assert mask.nbytes >= 512 * needed["bitmaps"] + 4 * needed["tiles"]
        room = f"room for {needed['tiles']} tiles, {needed['bitmaps']} of them part"
        assert repr(mask).startswith(f"<DeviceMask (1000, 1000) on device 0: {room}; ")


@gpu
@pytest.mark.parametrize(
    "make",
    [
        lambda: masks.causal(70),
        lambda: masks.causal(70).tobsr(),
        lambda: masks.stack([masks.causal(70), masks.full(70)]),
        lambda: masks.causal(70).to("cuda"),
    ],
)
def test_there_are_two_devices(make: Callable[[], Pattern]) -> None:
    with pytest.raises(ArgumentError, match="'tpu'"):
        make().to("tpu")


@gpu
@pytest.mark.parametrize("capacity", ({"tiles": -1, "bitmaps": 5}, {"tiles": 5, "bitmaps": -1}))
def test_negative_capacity(capacity: dict[str, int]) -> None:
    with pytest.raises(ArgumentError, match=r"(tiles|bitmaps).*-1"):
        masks.causal(70).to("cuda", **capacity)


@gpu
@pytest.mark.parametrize("capacity", ({"tiles": 5}, {"bitmaps": 5}))
def test_half_a_capacity(capacity: dict[str, int]) -> None:
    with pytest.raises(ArgumentError, match=r"tiles|bitmaps"):
        masks.causal(70).to("cuda", **capacity)
