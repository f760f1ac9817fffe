"""Sequences of different lengths: packed into one run, or one by one where that cannot be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stof_cupy.dtypes import as_dtype
from stof_cupy.errors import ArgumentError, ShapeError, mismatch
from stof_cupy.interop import Origin, export_array, import_array
from stof_cupy.models import Model
from stof_cupy.models.inputs import integers
from stof_cupy.models.target import Target
from stof_cupy.runtime import Program
from stof_cupy.runtime.packing import DOCUMENTS, POSITIONS, packed_mask, positions

__all__ = ["is_list", "run_list"]


def is_list(x: Any) -> bool:
    """Whether `x` is a list of sequences: of arrays, or of lists that differ in length.

    Nested lists of one length are an array, as NumPy has it.

    Examples
    --------
    >>> is_list([[1, 2], [3]]), is_list([[1, 2], [3, 4]]), is_list([np.ones(2), np.ones(2)])
    (True, False, True)
    """
    if not isinstance(x, (list, tuple)) or not x:
        return False
    if all(hasattr(each, "shape") for each in x):
        return all(len(each.shape) == 1 for each in x)
    return all(isinstance(each, (list, tuple)) for each in x) and len({len(each) for each in x}) > 1


def run_list(
    engine: Any, program: Program | None, x: Sequence[Any], mask: Any, token_types: Any
) -> list[Any]:
    """Return the hidden states of each sequence, ``(length, hidden)``; see `TransformerEngine.run`.

    Parameters
    ----------
    engine : TransformerEngine
    program : Program or None
        For packed sequences; None: they are run one by one.
    x, mask, token_types
        As the engine is given them.
    """
    model, target = engine._model, engine._target
    if not (mask is None or isinstance(mask, str) or callable(mask)):
        expected = "a spec, or a function of a length, where sequences differ in length"
        raise ArgumentError(mismatch("mask", type(mask).__name__, expected))
    origins = [import_array(each, f"x[{i}]")[1] if len(each) else None for i, each in enumerate(x)]
    known = next((origin for origin in origins if origin is not None), Origin("numpy"))
    with target.active():
        nothing = target.put(np.zeros((0, model.hidden_size), as_dtype(engine.dtype)))
        if program is None:
            rows = _tokens(x, "x", model.vocab_size - 1, target)
            kinds = _types(token_types, [row.shape[1] for row in rows], model, target)
            parts = [
                engine._forward(row, None, mask, kind)[0] if row.size else nothing
                for row, kind in zip(rows, kinds, strict=True)
            ]
        else:
            inputs, lengths = _packed_inputs(model, program, target, x, mask, token_types)
            hidden = program.run(inputs)["hidden"][0] if sum(lengths) else nothing
            stops = np.cumsum(lengths).tolist()
            parts = [hidden[stop - n : stop] for n, stop in zip(lengths, stops, strict=True)]
        pairs = zip(parts, origins, strict=True)
        return [export_array(part, origin or known) for part, origin in pairs]


def _types(token_types: Any, lengths: Sequence[int], model: Model, target: Target) -> list[Any]:
    """Return the token types of each sequence as int32 ``(1, length)``; default 0."""
    if token_types is None:
        return [target.put(np.zeros((1, length), np.int32)) for length in lengths]
    if len(token_types) != len(lengths):
        got = f"{len(token_types)} sequences"
        raise ShapeError(mismatch("token_types", got, f"{len(lengths)} as x"))
    given = _tokens(token_types, "token_types", model.token_types - 1, target)
    for number, (each, length) in enumerate(zip(given, lengths, strict=True)):
        if each.shape[1] != length:
            name = f"token_types[{number}]"
            raise ShapeError(mismatch(name, f"{each.shape[1]} tokens", f"{length} as x[{number}]"))
    return given


def _tokens(x: Sequence[Any], name: str, most: int, target: Target) -> list[Any]:
    """Return each sequence as int32 ``(1, length)`` on `target`; a length may be 0.

    Raises
    ------
    DTypeError, ShapeError, ArgumentError
        If one is not an array of integers from 0 to `most`.
    """
    rows = []
    for number, each in enumerate(x):
        if len(each):
            row = each[None] if hasattr(each, "shape") else [each]
            rows.append(integers(row, f"{name}[{number}]", (1, "seq"), most, target))
        else:
            rows.append(target.put(np.zeros((1, 0), np.int32)))
    return rows


def _packed_inputs(
    model: Model, program: Program, target: Target, x: Sequence[Any], mask: Any, token_types: Any
) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Return the inputs of a packed program for sequences of token ids, and their lengths."""
    rows = _tokens(x, "x", model.vocab_size - 1, target)
    lengths = tuple(row.shape[1] for row in rows)
    if max(lengths) > model.max_positions:
        raise ShapeError(
            mismatch("x", f"sequences of {max(lengths)} tokens", f"at most {model.max_positions}")
        )
    xp = target.xp
    ids = xp.concatenate(rows, axis=1)
    types = xp.concatenate(_types(token_types, lengths, model, target), axis=1)
    everything = {
        "ids": ids,
        "token_types": types,
        "mask": None,
        POSITIONS: target.put(positions(lengths)),
        DOCUMENTS: None,
    }
    if sum(lengths):
        everything["mask"] = packed_mask(mask, lengths)
        everything[DOCUMENTS] = packed_mask(None, lengths)
    declared = program.graph.inputs
    return {name: each for name, each in everything.items() if name in declared}, lengths
