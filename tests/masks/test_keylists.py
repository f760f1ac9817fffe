"""Lists of keys per row, and statistics without lists, beside the dense mask."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stof_cupy import masks
from stof_cupy.errors import UnsupportedError
from stof_cupy.masks import BsrMask
from stof_cupy.masks.keylists import LONG, MOST, KeyLists
from stof_cupy.masks.tiles import FULL, Tiles
from stof_cupy.testing import rng

TILES = ((64, 64), (128, 64), (64, 128), (128, 128), (256, 192), (128, 112), (64, 24), (64, 248))


def examples() -> list[Any]:
    g = rng(0)
    tall = np.zeros((130, 700), bool)
    tall[[3, 7]] = True
    tall[5, :300] = True
    return [
        masks.causal(1000).tobsr(),
        masks.longformer(700, window=70, global_tokens=10).tobsr(),
        masks.bigbird(1000, block=48).tobsr(),
        (~masks.full(130)).tobsr(),
        masks.full(0, 5).tobsr(),
        masks.full(5, 0).tobsr(),
        BsrMask(g.random((300, 500)) < 0.01),
        BsrMask(tall),
        masks.stack([masks.causal(200), masks.sliding_window(200, window=4), masks.causal(200)]),
        masks.stack([tall, g.random(tall.shape) < 0.02, tall | tall[::-1]]).reshape(3, 1),
    ]


@pytest.mark.parametrize("mask", examples(), ids=repr)
def test_statistics_are_those_of_the_schedules(mask):
    for tile in TILES:
        assert mask.tile_stats(tile) == mask.schedule(tile).stats
        assert mask.tile_lengths(tile).tolist() == mask.schedule(tile).lengths.tolist()
        lists, counted = mask.schedule(tile, packed=True), mask.tile_stats(tile, packed=True)
        assert replace(counted, part=lists.stats.part) == lists.stats
        assert lists.stats.part <= counted.part <= counted.visited
        assert mask.tile_lengths(tile, packed=True).tolist() == lists.lengths.tolist()
    assert mask.tile_stats((32, 16)) == mask.schedule((32, 16)).stats
    lengths = mask.toarray().sum(-1)
    stats = mask.row_stats()
    assert stats.kept == mask.nnz and stats.longest == lengths.max(initial=0)
    above = lengths[lengths > LONG]
    assert (stats.long_rows, stats.long_kept) == (len(above), above.sum())
    assert mask.row_stats() is stats and mask.tile_stats(TILES[1]) is mask.tile_stats(TILES[1])


@pytest.mark.parametrize("mask", examples(), ids=repr)
def test_share_of_the_groups_of_part_tiles(mask):
    kept = []
    for each in mask.masks if hasattr(mask, "masks") else (mask,):
        dense = each.toarray()
        for i, j in np.ndindex(*(-(-size // 64) for size in dense.shape)):
            tile = dense[64 * i : 64 * i + 64, 64 * j : 64 * j + 64]
            if tile.any() and not tile.all():
                columns = np.zeros(64, bool)
                columns[: tile.shape[1]] = tile.any(0)
                kept += columns.reshape(8, 8).any(1).tolist()
    assert mask.group_share() == pytest.approx(np.mean(kept) if kept else 1.0)


@pytest.mark.parametrize("mask", examples(), ids=repr)
def test_lists_are_the_rows_of_the_mask(mask):
    lists = mask.key_lists()
    assert mask.key_lists() is lists
    every = mask.masks if hasattr(mask, "masks") else (mask,)
    assert lists.row_ptr.shape == (len(every), mask.shape[-2] + 1)
    long_rows = 0
    for number, each in enumerate(every):
        dense = each.toarray()
        bounds = lists.row_ptr[number]
        for row in range(len(dense)):
            keys = lists.keys[bounds[row] : bounds[row + 1]]
            np.testing.assert_array_equal(keys, np.flatnonzero(dense[row]))
        lengths = dense.sum(1)
        above = int((lengths > LONG).sum())
        long_rows = max(long_rows, above)
        if lists.order is not None:
            order = lists.order[number].tolist()
            natural = [row for row in range(len(dense)) if lengths[row] <= LONG]
            assert sorted(order) == list(range(len(dense))) and order[above:] == natural
            assert lengths[order[:above]].tolist() == sorted(lengths[lengths > LONG])[::-1]
    assert lists.long_rows == long_rows and (lists.order is None) == (long_rows == 0)
    for array in (lists.row_ptr, lists.keys, lists.mask_of):
        assert array.dtype == np.int32 and not array.flags.writeable
    assert lists.nbytes >= 4 * sum(each.nnz for each in every)
    expected = mask.mask_of if hasattr(mask, "masks") else 0
    assert lists.mask_of.ravel().tolist() == np.ravel(expected).tolist()


def test_more_elements_than_indices_are_refused_before_work():
    side = 64 * 724  # 46336 squared is below 2^31, by less than the lists need
    rows = side // 64
    tiles = Tiles(
        (side, side + 64),
        np.arange(0, rows * (rows + 1) + 1, rows + 1, dtype=np.int32),
        np.tile(np.arange(rows + 1, dtype=np.int32), rows),
        np.full(rows * (rows + 1), FULL, np.int32),
        np.zeros((0, 64), np.uint64),
    )
    assert tiles.nnz >= MOST
    with pytest.raises(UnsupportedError, match="kept elements"):
        KeyLists.of(tiles)


@pytest.mark.gpu
def test_upload():
    import cupy

    lists = masks.causal(400).tobsr().key_lists()
    there = lists.on_device()
    assert lists.on_device() is there
    for name in ("row_ptr", "keys", "order", "mask_of"):
        assert cupy.array_equal(getattr(there, name), cupy.asarray(getattr(lists, name)))
