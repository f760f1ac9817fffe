"""Masks on the GPU as operands, in other geometries, copied, compared and refused."""

from __future__ import annotations

import copy
import operator
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stof_cupy import masks
from stof_cupy.errors import ArgumentError, DeviceError, MaskError, UnsupportedError
from stof_cupy.jit.compile import compile_cubin
from stof_cupy.jit.mask_kernels import FormulaCode, mask_build
from stof_cupy.masks.formula import Formula

gpu = pytest.mark.gpu


def draw(*shape: int, density: float = 0.01, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random(shape) < density


def code(text: str, **arrays: Any) -> FormulaCode:
    formula = Formula.parse(text)
    kinds = formula.kinds(arrays)
    shape = (1000, 1000)
    return FormulaCode(formula.cuda(kinds, shape), formula.cuda_state(kinds, shape), len(arrays))


@pytest.mark.parametrize("arch", ("80", "90a"))
def test_a_formula_of_many_registers_compiles(arch: str) -> None:
    """What a user writes may spill; what is ours may not."""
    x = np.zeros(9, np.float64)
    text = " || ".join(f"abs(x[i] - x[j - {k}]) < 0.5" for k in range(32))
    cubin = compile_cubin(mask_build((64, 64), False, (code(text, x=x),)), arch, strict=False)
    assert cubin.spill_bytes > 0
    names = {f"x{k}": x for k in range(16)}
    text = " && ".join(f"{name}[i] != {name}[j]" for name in names)
    compile_cubin(mask_build((64, 64), False, (code(text, **names),)), arch, strict=False)


@pytest.mark.parametrize("rows", (2**27, 2**30 + 200))
def test_a_shape_too_long_for_numbers_of_positions_is_refused(rows: int) -> None:
    with pytest.raises(UnsupportedError, match=r"at most 2\*\*26"):
        masks.full(100).shift(rows - 100, 0, shape=(rows, 100))


@gpu
@pytest.mark.parametrize("combine", (operator.and_, operator.or_, operator.xor))
def test_operators_with_masks_of_the_cpu(combine: Callable[[Any, Any], Any]) -> None:
    import cupy

    one, other = draw(130, 200), draw(130, 200, density=0.5, seed=1)
    heads = draw(3, 130, 200, density=0.5, seed=2)
    mask, stack = masks.BsrMask(other), masks.MaskStack.from_dense(heads)
    for left in (masks.dense(cupy.asarray(one)), masks.dense(cupy.asarray(one)).to("cuda")):
        for made in (combine(left, mask), combine(mask, left), combine(left, other)):
            np.testing.assert_array_equal(made.to("cuda").to("cpu").toarray(), combine(one, other))
        for made in (combine(left, stack), combine(stack, left)):
            assert made.lead == (3,)
            got = made.to("cuda").to("cpu").toarray()
            np.testing.assert_array_equal(got, combine(one, heads))


@gpu
def test_what_did_not_fit_does_not_pass_for_a_mask_as_an_operand() -> None:
    """Its lists are cut off, so nothing made of them is right."""
    import cupy

    from stof_cupy import attention

    array = cupy.asarray(np.tri(256, dtype=bool))
    cut = masks.dense(array).to("cuda", tiles=4, bitmaps=1)
    for made in (~cut, cut & masks.full(256), masks.causal(256) | cut):
        derived = made.to("cuda")
        with pytest.raises(MaskError, match="one that did not fit"):
            derived.check()
        with pytest.raises(MaskError, match="one that did not fit"):
            (~derived).to("cuda").to("cpu")
        q = cupy.asarray(np.random.default_rng(0).standard_normal((1, 1, 256, 64)), np.float16)
        assert cupy.isnan(attention(q, q, q, derived)).all()
    array[...] = False
    cut.rebuild()
    derived.rebuild()
    assert derived.to("cpu").equals(masks.causal(256).tobsr())


@gpu
def test_every_size_of_tiles_is_checked() -> None:
    import cupy

    array = cupy.zeros((256, 256), bool)
    array[:64, :64] = True
    mask = masks.dense(array).to("cuda")
    mask.schedule((128, 128), layout="accumulator")
    array[...] = False
    array[::130, 3] = True  # as many tiles of 64 as before would be one; now there are two
    mask.rebuild()
    with pytest.raises(MaskError, match="tiles of 64x64"):
        mask.check()
    roomy = masks.dense(array).to("cuda", tiles=16, bitmaps=16)
    lists = roomy.schedule([128, 128], layout="accumulator", tiles=1, bitmaps=1)
    assert len(lists.cols) == 1 and int(lists.overflow[0])
    with pytest.raises(MaskError, match="tiles of 128x128"):
        roomy.check()


@gpu
def test_room_in_lists_of_larger_tiles_is_bounded_by_the_grid() -> None:
    mask = masks.causal(4096).to("cuda", tiles=2080, bitmaps=64)
    lists = mask.schedule((256, 256), layout="accumulator")
    assert len(lists.cols) == len(lists.bitmaps) == 256
    mask.check()
    exact = masks.causal(4096).to("cuda").schedule((256, 256), layout="accumulator")
    assert len(exact.cols) == 136 and len(exact.bitmaps) == 16


@gpu
def test_a_derived_mask_takes_its_operand_as_it_is() -> None:
    import cupy

    array = cupy.asarray(np.tri(100, dtype=bool))
    mask = masks.dense(array).to("cuda", tiles=4, bitmaps=4)
    derived = (mask & masks.full(100)).to("cuda", tiles=4, bitmaps=4)
    array[...] = True
    derived.rebuild()
    assert derived.to("cpu").nnz == 5050
    mask.rebuild()
    derived.rebuild()
    assert derived.to("cpu").nnz == 10_000


@gpu
def test_predicates_within_what_is_on_the_gpu() -> None:
    import cupy

    array = draw(200, 200, density=0.3)
    bound = masks.dense(cupy.asarray(array))
    expected = np.tri(200, dtype=bool) & array
    for within in (bound, bound.to("cuda")):
        made = masks.predicate((200, 200), "i >= j", within=within)
        np.testing.assert_array_equal(made.to("cuda").to("cpu").toarray(), expected)
        with pytest.raises(DeviceError, match="within: got a mask of a GPU"):
            masks.predicate((200, 200), lambda q, k: q >= k, within=within)


@gpu
def test_a_mask_is_not_copied_compared_or_pickled() -> None:
    mask = masks.causal(100).to("cuda")
    assert copy.copy(mask) is mask and copy.deepcopy([mask])[0] is mask
    with pytest.raises(DeviceError, match=r"pickle.*mask\.to\('cpu'\)"):
        pickle.dumps(mask)
    with pytest.raises(DeviceError, match=r"array.*mask\.to\('cpu'\)"):
        np.asarray(mask)
    for other in (mask, masks.causal(100).tobsr()):
        with pytest.raises(ArgumentError, match=r"==.*a \^ b"):
            mask == other  # noqa: B015
    assert "room for 3 tiles, 2 of them part" in repr(mask)


@gpu
def test_capacities_that_cannot_be() -> None:
    pattern = masks.causal(100)
    with pytest.raises(UnsupportedError, match=r"2\*\*28"):
        pattern.to("cuda", tiles=2**31, bitmaps=0)
    with pytest.raises(ArgumentError, match="both, or neither"):
        pattern.to("cuda").schedule((128, 128), tiles=3)
    with pytest.raises(ArgumentError, match="capacity: got one on the CPU"):
        pattern.to("cpu", tiles=3, bitmaps=3)
    assert pattern.to("cuda", tiles=3, bitmaps=10**12).capacity == (3, 3)


def test_a_pattern_is_an_array_where_one_is_wanted() -> None:
    np.testing.assert_array_equal(np.asarray(masks.causal(5)), np.tri(5, dtype=bool))
