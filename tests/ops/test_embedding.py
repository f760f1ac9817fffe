"""The embedding kernel on ids of any integer type: compiled for the CPU, and on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stof_cupy.jit import catalogue
from stof_cupy.ops import reference
from stof_cupy.ops.embedding import arguments, embedding
from stof_cupy.testing import assert_close, poison, random_array, rng
from tests.masks import on_host

SHAPE = (3, 5)
OUTSIDE = {"int32": (50, -1, 2**31 - 1, -(2**31)), "int64": (50, -1, 2**32, -(2**32), 2**63 - 1)}


def case(hidden: int, dtype: str, kinds: tuple[str, str]) -> tuple[Any, ...]:
    """Return ids, types and three tables."""
    g = rng(hidden)
    ids = g.integers(0, 50, SHAPE).astype(kinds[0])
    ids[0, 0], ids[-1, -1] = 49, 0
    types = g.integers(0, 2, SHAPE).astype(kinds[1])
    return ids, types, *(random_array(g, (rows, hidden), dtype) for rows in (50, 6, 2))


def on_cpu(ids: Any, types: Any, *tables: Any) -> Any:
    """Run the kernel; memory ends where each array does."""
    given = [None if x is None else on_host.fenced(x) for x in (ids, types, *tables)]
    table = given[2]
    out = on_host.fenced(poison((*ids.shape, table.shape[1]), table.dtype))
    blocks, fields = arguments(*given, out=out)
    on_host.launch(catalogue.embedding(table.dtype.name), (blocks, 1), **fields)
    return out


@pytest.mark.parametrize("kinds", [("int32", "int32"), ("int32", "int64"), ("int64", "int32")])
@pytest.mark.parametrize(("hidden", "dtype"), [(1, "float16"), (31, "bfloat16"), (264, "float16")])
def test_the_kernel_reads_both_widths(hidden: int, dtype: str, kinds: tuple[str, str]) -> None:
    ids, types, *tables = case(hidden, dtype, kinds)
    how = {"position_table": tables[1], "type_table": tables[2], "token_types": types}
    exact = reference.embedding(ids, tables[0], **how)
    low = reference.embedding(ids, tables[0], **how, precision=dtype)
    assert_close(on_cpu(ids, types, *tables), exact, low)


@pytest.mark.parametrize("kind", OUTSIDE)
def test_without_types_the_kernel_reads_none(kind: str) -> None:
    ids, _, table, *_ = case(40, "float16", (kind, kind))
    out = on_cpu(ids, None, table, None, None)
    assert np.array_equal(out, table[ids])


@pytest.mark.parametrize("kind", OUTSIDE)
@pytest.mark.parametrize("of_types", [False, True])
def test_the_kernel_gives_nan_outside_a_table(kind: str, of_types: bool) -> None:
    ids, types, *tables = case(24, "float16", (kind, kind))
    bad = np.zeros(SHAPE, bool)
    for place, value in enumerate(OUTSIDE[kind]):
        (types if of_types else ids).flat[2 * place + 1] = value
        bad.flat[2 * place + 1] = True
    out = on_cpu(ids, types, *tables)
    assert np.array_equal(np.isnan(out).all(axis=2), bad)
    assert np.array_equal(np.isnan(out).any(axis=2), bad)


@pytest.mark.gpu
@pytest.mark.parametrize("kinds", [("int32", "int32"), ("int64", "int32"), ("uint32", "int8")])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_on_a_gpu(dtype: str, kinds: tuple[str, str]) -> None:
    import cupy

    ids, types, *tables = case(264, dtype, kinds)
    how = {"position_table": tables[1], "type_table": tables[2], "token_types": types}
    exact = reference.embedding(ids, tables[0], **how)
    low = reference.embedding(ids, tables[0], **how, precision=dtype)
    on = {name: cupy.asarray(x) for name, x in how.items()}
    for step in (1, 2):
        wide = cupy.asarray(np.repeat(ids, step, axis=1))[:, ::step]
        assert_close(embedding(wide, cupy.asarray(tables[0]), **on), exact, low)
