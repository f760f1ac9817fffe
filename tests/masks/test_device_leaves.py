"""What a mask kernel's leaves say of words and of boxes, on the CPU: no GPU is needed.

Words are the mask. States are sound, and exact where interval arithmetic can tell.
"""

from __future__ import annotations

from operator import and_, or_, xor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stof_cupy import masks
from stof_cupy.dtypes import as_dtype
from stof_cupy.jit.mask_kernels import MASK_ARRAYS, MASK_DEPTH, MASK_NODES, NODE_BYTES, mask_select
from stof_cupy.masks import MaskStack, Pattern
from stof_cupy.masks.block_arrays import DeviceScores
from stof_cupy.masks.device import lowering, nodes
from stof_cupy.masks.device.leaf import DenseArray, KeyFlags, Stacked, StoredOnDevice
from stof_cupy.masks.device.nodes import Node
from stof_cupy.masks.device.program import Program, TooLargeError
from tests.masks import host_program, on_host
from tests.masks.host_program import on_device, program_from, program_of
from tests.masks.on_host import fenced
from tests.masks.test_device_build import OBLONG, SQUARE, draw, grow, leaf

TILES = ((64, 64), (128, 64), (64, 128), (128, 256))
ROWS = (1, 7, 63, 64, 65, 127, 129, 1000)
COLS = (1, 64, 65, 200, 1000)
EMPTY, PART, FULL = range(3)
SYMBOLS = {"&": and_, "|": or_, "^": xor}


def states_of(mask: np.ndarray, tile: tuple[int, int]) -> np.ndarray:
    """Return what each tile is, by its elements."""
    down, across = (np.arange(0, size, step) for size, step in zip(mask.shape, tile, strict=True))
    if not mask.size:
        return np.zeros((len(down), len(across)), np.uint8)
    some, every = (
        each.reduceat(each.reduceat(mask, down, axis=0), across, axis=1)
        for each in (np.logical_or, np.logical_and)
    )
    return some.astype(np.uint8) + every


def check_program(program: Program, expected: np.ndarray, exact: bool = False) -> None:
    """The program is `expected`, ``(*lead, queries, keys)``."""
    shape = expected.shape[-2:]
    each = expected.reshape(*program.lead, *shape)
    for at in np.ndindex(program.lead):
        np.testing.assert_array_equal(host_program.elements(program, shape, at), each[at])
        for tile in TILES:
            found, truth = host_program.states(program, shape, tile, at), states_of(each[at], tile)
            open_ = (found == PART) & (not exact)
            np.testing.assert_array_equal(np.where(open_, truth, found), truth, f"{tile}")


def check(pattern: Pattern, expected: np.ndarray | None = None, exact: bool = False) -> None:
    wanted = pattern.toarray() if expected is None else expected
    for made, values in ((pattern, wanted), (~pattern, ~wanted)):
        check_program(program_of(made), values, exact)


# ------------------------------------------------------------------ structs


def test_the_host_packs_what_the_kernel_takes() -> None:
    node, array, program = host_program.constants("sizes", 3)
    assert node == NODE_BYTES == len(Node("push").pack())
    assert program == len(nodes.pack_program([], [])) == MASK_NODES * node + MASK_ARRAYS * array
    full = nodes.pack_program([Node("push")] * MASK_NODES, [(1, 2, 3)] * MASK_ARRAYS)
    assert len(full) == program
    assert host_program.constants("limits", 3) == [MASK_NODES, MASK_ARRAYS, MASK_DEPTH]
    kinds = len(nodes.KINDS)
    assert host_program.constants("kinds", kinds) == list(nodes.KINDS.values())
    joins = [nodes.REPLACE, nodes.AND, nodes.OR, nodes.XOR, nodes.INVERT_LEAF, nodes.INVERT_RESULT]
    assert host_program.constants("joins", 6) == joins
    for size, (kind, packed) in zip(
        host_program.constants("payloads", kinds), nodes._PAYLOADS.items(), strict=True
    ):
        assert -(-packed.size // 8) == -(-size // 8), kind  # but for padding at the end


# ------------------------------------------------------------------ patterns

# Leaves of one kind that tell of every box; `layout` of blocks so large that a box has few.
EXACT = {
    *("full", "empty", "causal", "causal at the end", "window", "window back", "uneven window"),
    *("dilated", "dilated back", "chunked", "chunked back", "blocks of 64", "blocks of 128x65"),
    *("padding", "holes", "documents by id", "documents by id back", "strided"),
    "strided both ways",
}


@pytest.mark.parametrize("name", OBLONG)
def test_patterns_of_any_shape(name: str) -> None:
    for sq in ROWS:
        for sk in COLS:
            check(OBLONG[name](sq, sk), exact=name in EXACT)


@pytest.mark.parametrize("name", SQUARE)
def test_square_patterns(name: str) -> None:
    for size in ROWS:
        check(SQUARE[name](size), exact=name in EXACT)


@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize(("before", "after"), [(0, 0), (1, 2), (0, 40)])
def test_chunks_of_queries_before_the_first_key(before: int, after: int, causal: bool) -> None:
    for sq, sk in ((300, 65), (1000, 200), (129, 128), (65, 300)):
        for chunk in (1, 17, 64):
            made = masks.chunked(
                *(sq, sk),
                chunk=chunk,
                before=before,
                after=after,
                causal=causal,
                align="bottom-right",
            )
            check(made, exact=True)


@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("window", (None, 5, (70, 3)))
def test_documents(window: Any, causal: bool) -> None:
    """States are exact as long as no key between two documents is seen by nobody."""
    for lengths in ([1], [64, 64], [3, 70, 1, 1, 130, 17], [1] * 100, [200, 300]):
        made = masks.document(lengths, causal=causal, window=window)
        check(made, exact=window is None)
        cached = [length + 40 for length in lengths]
        check(masks.document(lengths, cached, causal=causal, window=window, align="bottom-right"))


@pytest.mark.parametrize("name", sorted({**OBLONG, **SQUARE}))
@pytest.mark.parametrize(("down", "across"), [(64, 128), (1, 0), (65, 127)])
def test_crop_and_shift(name: str, down: int, across: int) -> None:
    pattern = leaf(name, 200, 260)
    array, exact = pattern.toarray(), name in EXACT and name in OBLONG
    check(pattern[down:197, across:], array[down:197, across:], exact)
    moved = np.pad(array, ((down, 0), (across, 0)))
    check(pattern.shift(down, across, moved.shape), moved, exact)
    cut = np.zeros((70, 300), bool)
    rest = array[down:, across:][:70, :300]
    cut[: rest.shape[0], : rest.shape[1]] = rest
    check(pattern.shift(-down, -across, cut.shape), cut, exact)


def test_views_of_compounds_of_views() -> None:
    near, holes = leaf("window", 300, 300), leaf("holes", 300, 300)
    inner = (near.shift(10, 70) ^ holes[5:, 64:].shift(0, 0, (300, 300)))[3:290, 100:]
    array = np.pad(near.toarray(), ((10, 0), (70, 0)))[:300, :300] ^ np.pad(
        holes.toarray()[5:, 64:], ((0, 5), (0, 64))
    )
    check(inner, array[3:290, 100:])
    check((~inner)[64:, :65], ~array[3:290, 100:][64:, :65])


@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize(
    ("lattice", "window", "dilation"),
    [
        ((9,), (3,), (2,)),
        ((300,), (5,), (60,)),
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
    made = masks.neighborhood(lattice, window=window, dilation=dilation, causal=causal)
    check(made)
    check(made.shift(3, -70), np.pad(made.toarray(), ((3, 0), (0, 70)))[: -3 or None, 70:])


def test_a_lattice_settles_what_is_far_away() -> None:
    made = masks.neighborhood((64, 64), window=(5, 5))
    found = host_program.states(program_of(made), made.shape)
    assert (found == EMPTY).mean() > 0.9


# ------------------------------------------------------------------ arrays and leading axes


def same_bytes(array: np.ndarray) -> np.ndarray:
    """Return bools of which the true ones have any bits but none; after them memory ends."""
    noise = np.random.default_rng(0).integers(1, 256, array.shape, np.uint8)
    return fenced(np.where(array, noise, 0).astype(np.uint8)).view(bool)


@pytest.mark.parametrize("lead", [(), (3,), (2, 1), (1, 3), (2, 3)])
@pytest.mark.parametrize("density", (0.001, 0.5, 1.0))
def test_dense_arrays(lead: tuple[int, ...], density: float) -> None:
    for shape in ((1, 1), (5, 64), (70, 200), (9, 208), (129, 63), (64, 1000)):
        array = draw(*lead, *shape) < density
        check(DenseArray(same_bytes(array)), array)
        for view in (
            np.repeat(array, 3, axis=-1)[..., ::3],
            array[..., ::-1][..., ::-1],
            np.ascontiguousarray(array.swapaxes(-1, -2)).swapaxes(-1, -2),
            np.pad(array, [(0, 0)] * (len(lead) + 1) + [(16, 5)])[..., 16:-5],
        ):
            check(DenseArray(view), array)
        flipped = array[..., ::-1, ::-1]
        check(DenseArray(flipped), flipped)


def test_a_dense_array_that_is_moved_and_broadcast() -> None:
    array = draw(2, 3, 150, 300) < 0.3
    near = masks.causal(150, 300, align="top-left")
    made = (DenseArray(array) ^ DenseArray(array[1, 0])) & near
    check(made, (array ^ array[1, 0]) & near.toarray())
    check(made[3:, 70:], ((array ^ array[1, 0]) & near.toarray())[..., 3:, 70:])
    one = np.broadcast_to(array[:, :1], array.shape)
    check(DenseArray(one) | DenseArray(array[0, 0, :1].repeat(150, 0)), one | array[0, 0, :1])


def test_flags_of_keys_settle_all_boxes() -> None:
    for size in (1, 63, 64, 65, 300):
        flags = draw(size) < 0.95
        flags[: size // 2] = True
        for array in (flags, flags.repeat(2)[::2], flags[::-1]):
            check(KeyFlags(fenced(array), 130), np.broadcast_to(array, (130, size)), exact=True)


@pytest.mark.parametrize("lead", [(), (3,), (1, 2), (2, 3)])
def test_a_stack_as_an_operand(lead: tuple[int, ...]) -> None:
    """Its masks are stored once each, and which one is which is looked up."""
    array = (draw(3, 130, 200) < np.array([0.3, 0.001, 1.1])[:, None, None])[
        np.random.default_rng(0).integers(0, 3, lead)
    ]
    mask = MaskStack.from_dense(array) if lead else masks.BsrMask(array)
    made: list[Pattern] = [StoredOnDevice(on_device(mask))]
    if lead:
        made.append(Stacked(mask))
    for each in made:
        check(each, array)
        check(each[5:, 63:], array[..., 5:, 63:])


@pytest.mark.parametrize("strides", [(0, 0), (0, 150), (150, 0), (450, 150)])
def test_intervals_of_leading_axes(strides: tuple[int, int]) -> None:
    bounds = np.sort(np.random.default_rng(0).integers(0, 201, (2, 6, 150)), axis=0).astype(
        np.int32
    )
    start, stop = (each.ctypes.data for each in bounds)
    made = program_from(
        Node("intervals", shape=(150, 200), fields=(start, stop, *strides)), lead=(2, 3)
    )
    number = np.add.outer(np.arange(2) * strides[0], np.arange(3) * strides[1]) // 150
    keys = np.arange(200)
    expected = (keys >= bounds[0, ..., None]) & (keys < bounds[1, ..., None])
    check_program(made, expected[number])


# ------------------------------------------------------------------ scores


def spread(kept: np.ndarray, block: tuple[int, int], shape: tuple[int, int]) -> np.ndarray:
    rows, cols = (np.arange(size) // step for size, step in zip(shape, block, strict=True))
    return kept[..., rows[:, None], cols]


SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, 6e-8], np.float32)


@pytest.mark.parametrize("dtype", ("float32", "float16", "bfloat16"))
@pytest.mark.parametrize("block", [(64, 64), (7, 13), (1, 100), (33, 1), (128, 256)])
def test_scores_above_a_threshold(block: tuple[int, int], dtype: str) -> None:
    shape = (200, 300)
    counts = tuple(-(-size // step) for size, step in zip(shape, block, strict=True))
    for lead in ((), (3,), (2, 3)):
        rng = np.random.default_rng(len(lead))
        scores = fenced(rng.choice(SPECIAL, (*lead, *counts)).astype(as_dtype(dtype)))
        wide = scores.astype(np.float32)
        per_row = rng.choice(SPECIAL, (*lead, counts[0]))
        for threshold in (0.5, 0.0, per_row, np.broadcast_to(per_row[..., :1], per_row.shape)):
            kept = wide >= np.asarray(threshold)[..., None]
            made = DeviceScores(scores, shape, block, top=None, threshold=threshold)
            check(made, spread(kept, block, shape), exact=min(block) >= 64)
        view = np.ascontiguousarray(scores[..., ::-1].swapaxes(-1, -2)).swapaxes(-1, -2)[..., ::-1]
        made = DeviceScores(view, shape, block, top=None, threshold=per_row)
        kept = wide >= per_row[..., None]
        check(made[3:, 65:], spread(kept, block, shape)[..., 3:, 65:])


@pytest.mark.parametrize("block", [(64, 64), (7, 13)])
def test_flags_of_blocks(block: tuple[int, int]) -> None:
    """Scores of bytes, of which any but 0 is above a threshold between 0 and 1."""
    shape = (200, 300)
    flags = draw(2, 3, *(-(-size // step) for size, step in zip(shape, block, strict=True))) < 0.5
    for array in (same_bytes(flags), same_bytes(flags.swapaxes(-1, -2)).swapaxes(-1, -2)):
        made = DeviceScores(array, shape, block, top=None, threshold=0.5)
        check(made, spread(flags, block, shape), exact=min(block) >= 64)


@pytest.mark.parametrize("top", (1, 3))
def test_scores_of_which_the_highest_are_kept(top: int) -> None:
    """Cut by the kernel that the GPU runs before."""
    (a, b), (rows, cols), block, shape = (2, 3), (5, 9), (30, 40), (141, 330)
    scores = np.random.default_rng(top).choice(SPECIAL, (a, b, rows, cols))
    cuts = np.zeros((a, b, rows, 2), np.int32)
    strides = [step // 4 for step in scores.strides]
    on_host.launch(
        mask_select("float32"),
        (a * b * rows, 1),
        scores=scores.ctypes.data,
        cut=cuts.ctypes.data,
        row_stride=strides[2],
        col_stride=strides[3],
        lead_a_stride=strides[0],
        lead_b_stride=strides[1],
        lead_b=b,
        rows=rows,
        cols=cols,
        top=top,
    )
    where = (*strides[2:], *strides[:2])
    fields = (scores.ctypes.data, cuts.ctypes.data, 0, *where, 0, 0, 0, *block, 0, 0.0)
    program = program_from(Node("scores", shape=shape, fields=fields), lead=(a, b))
    check_program(program, masks.score_blocks(scores, top=top, block=block, shape=shape).toarray())


# ------------------------------------------------------------------ programs

ONE_NODE = sorted(EXACT & OBLONG.keys())


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.data())
def test_any_expression_is_its_elementwise_meaning(data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from(((1, 1), (65, 130), (129, 64), (200, 200), (150, 300))))
    pattern, expected = grow(data.draw, *shape, data.draw(st.integers(0, 5)))
    check_program(program_of(pattern), expected)


@pytest.mark.parametrize("side", ("left", "right"))
@pytest.mark.parametrize("leaves", (2, MASK_NODES, MASK_NODES + 1, 60))
def test_a_chain_of_as_many_leaves_as_fit_is_one_program(leaves: int, side: str) -> None:
    pattern = leaf("window", 130, 150)
    expected = pattern.toarray()
    for n in range(leaves - 1):
        other, join = leaf(ONE_NODE[5 * n % len(ONE_NODE)], 130, 150), SYMBOLS["|&^"[n % 3]]
        pattern = join(*((pattern, other) if side == "left" else (other, pattern)))
        expected = join(expected, other.toarray())
    program = program_of(pattern)
    check_program(program, expected)
    # One that does not fit is lowered on the CPU.
    assert program.count == (leaves if leaves <= MASK_NODES else 1)


@pytest.mark.parametrize("levels", (1, 2, 3, 4, 6))
def test_balanced_trees(levels: int) -> None:
    def tree(level: int, number: int) -> tuple[Pattern, np.ndarray]:
        if level == 0:
            made = leaf(ONE_NODE[number * 7 % len(ONE_NODE)], 130, 200)
            return made, made.toarray()
        (left, x), (right, y) = (tree(level - 1, 2 * number + n) for n in range(2))
        join = SYMBOLS["^&|"[level % 3]]
        return ~join(left, right), ~join(x, y)

    pattern, expected = tree(levels, 1)
    program = program_of(pattern)
    assert (program.count > 1) == (levels <= 3)
    check_program(program, expected)


def test_as_many_accumulators_set_aside_as_there_is_room_for() -> None:
    """No expression that fits the nodes needs all of it; a program made by hand does."""
    shape, values = (70, 130), [draw(70, 130, seed=n) < 0.5 for n in range(MASK_DEPTH + 1)]

    def dense(array: np.ndarray, invert: int) -> Node:
        return Node(
            "dense", nodes.REPLACE, invert, (0, 0), shape, (array.ctypes.data, 130, 1, 0, 0)
        )

    steps = [dense(values[0], nodes.INVERT_LEAF)]
    for array in values[1:]:
        steps += [Node("push"), dense(array, nodes.INVERT_RESULT)]
    expected = ~values[-1]
    for n, array in enumerate(reversed(values[:-1])):
        join = (nodes.AND, nodes.OR, nodes.XOR)[n % 3]
        steps.append(Node("pop", join, nodes.INVERT_RESULT if n % 2 else 0))
        expected = SYMBOLS["&|^"[n % 3]](~array, expected)
        expected = ~expected if n % 2 else expected
    check_program(program_from(*steps), expected)


@pytest.mark.parametrize("spare", (0, -1))
def test_more_nodes_than_fit_of_what_only_the_gpu_can_build(spare: int) -> None:
    array = draw(70, 70) < 0.5
    pattern: Pattern = DenseArray(array)
    for _ in range(MASK_NODES - 1 - spare):
        pattern = pattern ^ DenseArray(array)
    if spare == 0:
        check_program(program_of(pattern), np.zeros_like(array))
    else:
        with pytest.raises(TooLargeError, match=f"{MASK_NODES + 1} nodes"):
            program_of(pattern)


@pytest.mark.parametrize("spare", (0, -1))
def test_deeper_than_fits(spare: int) -> None:
    """A tree in which both operands are as deep needs one more accumulator at every level."""
    array = draw(70, 70) < 0.5

    def tree(level: int) -> Pattern:
        return tree(level - 1) ^ tree(level - 1) if level else DenseArray(array)

    with pytest.raises(TooLargeError, match="nodes" if spare == 0 else "nested"):
        program_of(tree(MASK_DEPTH + 1 - spare))


@pytest.mark.parametrize("spare", (0, -1))
def test_more_arrays_than_fit(spare: int) -> None:
    names = [f"x{n}" for n in range(MASK_ARRAYS - spare)]
    text = " + ".join(f"{name}[i]" for name in names)
    pattern = masks.predicate((70, 70), text, arrays={name: np.arange(70) for name in names})
    program = program_of(pattern)
    assert bool(program.formulas) == (spare == 0)
    if spare:  # lowered on the CPU
        check_program(program, pattern.toarray())


@pytest.mark.parametrize("queries", [0, 5])
def test_arrays_without_elements_need_no_upload(queries: int) -> None:
    program = lowering.program_of(masks.key_padding(np.zeros(0, bool), queries))
    assert (program.count, program.kept[0]) == (1, None)
