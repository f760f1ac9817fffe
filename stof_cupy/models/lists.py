"""Sequences of different lengths: packed into one run, or one by one where that cannot be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from stof_cupy.dtypes import as_dtype
from stof_cupy.errors import ArgumentError, DTypeError, ShapeError, StofError, mismatch
from stof_cupy.interop import Origin, cupy_origins, export_array, import_array
from stof_cupy.models import LayerMask, Model
from stof_cupy.models.checks import Checks, checked, integers
from stof_cupy.models.target import Target
from stof_cupy.runtime.documents import PackedProgram
from stof_cupy.runtime.packing import DOCUMENTS, Packed, Sequences

__all__ = ["can_be_packed", "is_list", "run_list"]


class _Given(NamedTuple):
    """Sequences as arrays, None for those of no tokens; how long they are, what they came as."""

    rows: Sequence[Any]
    lengths: list[int]
    origins: Sequence[Origin]


def is_list(x: Any) -> bool:
    """Whether `x` is a list of sequences: of arrays, or of lists that differ in length.

    Nested lists of one length are an array, as NumPy has it.

    Raises
    ------
    DTypeError
        If it is text, or a list of texts.
    ShapeError
        If it is a list of nothing.

    Examples
    --------
    >>> is_list([[1, 2], [3]]), is_list([[1, 2], [3, 4]]), is_list([np.ones(2), [3, 4]])
    (True, False, True)
    """
    if isinstance(x, str) or (isinstance(x, (list, tuple)) and x and isinstance(x[0], str)):
        hint = "encode() and generate() take text"
        raise DTypeError(mismatch("x", "text", "the ids of its tokens", hint))
    if not isinstance(x, (list, tuple)):
        return False
    if not x:
        raise ShapeError(mismatch("x", "no sequence", "at least one"))
    kinds = {*map(type, x)}  # one as a rule, of many
    lists = {kind for kind in kinds if issubclass(kind, (list, tuple))}
    if lists == kinds:
        return len({len(each) for each in x}) > 1
    if not lists and {getattr(each, "ndim", 0) for each in x} == {1}:
        return True
    return all(type(each) in lists or len(getattr(each, "shape", ())) == 1 for each in x)


def can_be_packed(model: Model) -> bool:
    """Whether a model is an encoder told of tokens and masks alone, and has no masks of its own."""
    given = {name for name, node in model.graph.inputs.items() if node.dtype != "mask"}
    alone = model.kind == "encoder" and given <= {"ids", "token_types", "lengths"}
    return alone and model.feeds is None and {*model.layer_masks} <= {LayerMask()}


def run_list(
    engine: Any,
    program: PackedProgram | None,
    x: Sequence[Any],
    mask: Any,
    token_types: Any,
    output: str = "hidden",
) -> list[Any]:
    """Return the hidden states of each sequence, ``(length, hidden)``; see `TransformerEngine.run`.

    Parameters
    ----------
    engine : TransformerEngine
    program : PackedProgram or None
        For packed sequences; None: they are run one by one.
    x, mask, token_types, output
        As the engine is given them.
    """
    model, target = engine._model, engine._target
    if not (mask is None or isinstance(mask, str) or callable(mask)):
        expected = "a spec, or a function of a length, where sequences differ in length"
        raise ArgumentError(mismatch("mask", type(mask).__name__, expected))
    with target.active():
        given = _imported(x, "x")
        lengths, origins = given.lengths, given.origins
        if program is None or output not in program.graph.outputs:
            # Each is checked once more by its run: on the host, if that is where all are.
            there = any(origin.on_cuda for origin in origins)
            first = target if there else Target("numpy", target.dtype)
            ids = _whole(_tokens(given, "x", model.vocab_size - 1, first), first)
            spans = [span for span, n in zip(_spans(lengths), lengths, strict=True) if n]
            kinds: list[Any] = [None] * len(spans)
            if token_types is not None:
                types = _whole(_types(token_types, lengths, model, first), first)
                kinds = [types[:, span] for span in spans]
            made = [
                engine._forward(ids[:, span], None, mask, kind, None, output)[0]
                for span, kind in zip(spans, kinds, strict=True)
            ]
            if made and target.device is not None and not there:
                return _exported(target.xp.concatenate(made), lengths, origins)
            nothing = made[0][:0] if made else _nothing(model, target)
            rest = iter(made)
            parts = [next(rest) if n else nothing for n in lengths]
            return [export_array(*each) for each in zip(parts, origins, strict=True)]
        with checked() as later:
            inputs = _packed_inputs(model, program, target, given, mask, token_types, later)
            if sum(lengths):
                hidden = program.run(inputs, lengths=lengths)[output][0]
            else:
                hidden = _nothing(model, target)
            return _exported(hidden, lengths, origins)  # while the ids are looked at


def _nothing(model: Model, target: Target) -> Any:
    """Return the hidden states of no tokens."""
    return target.put(np.zeros((0, model.hidden_size), as_dtype(target.dtype)))


def _imported(x: Iterable[Any], name: str) -> _Given:
    given = list(x)
    origins: Sequence[Origin] | None = cupy_origins(given)
    if origins is not None:
        lengths = [*map(len, given)]
        rows = given if all(lengths) else [row if len(row) else None for row in given]
        return _Given(rows, lengths, origins)
    taken = [
        import_array(each, f"{name}[{i}]") if len(each) else None for i, each in enumerate(given)
    ]
    known = next((origin for _, origin in filter(None, taken)), Origin("numpy"))
    origins = [known if each is None else each[1] for each in taken]
    rows = [None if each is None else each[0] for each in taken]
    return _Given(rows, [0 if row is None else len(row) for row in rows], origins)


def _exported(hidden: Any, lengths: Sequence[int], origins: Sequence[Origin]) -> list[Any]:
    """Return each sequence's part as what it came as; those of the host are copied there as one."""
    there = isinstance(hidden, np.ndarray) or all(origin.on_cuda for origin in origins)
    host = hidden if there else hidden.get()
    return [
        export_array((hidden if origin.on_cuda else host)[span], origin)
        for span, origin in zip(_spans(lengths), origins, strict=True)
    ]


def _spans(lengths: Sequence[int]) -> list[slice]:
    stops = np.cumsum(lengths).tolist()
    return [slice(stop - length, stop) for length, stop in zip(lengths, stops, strict=True)]


def _whole(x: Any, target: Target) -> Any:
    """Return what `_tokens` does as one array on `target`."""
    return x.together(target.device) if isinstance(x, Sequences) else target.put(x)


def _types(
    token_types: Any,
    lengths: Sequence[int],
    model: Model,
    target: Target,
    later: Checks | None = None,
) -> Any:
    """Return the token types of all sequences as `_tokens` does; default 0."""
    if token_types is None:
        return np.ndarray((1, sum(lengths)), np.int32, np.zeros(1, np.int32), strides=(0, 0))
    try:
        imported = _imported(token_types, "token_types")
    except TypeError as bad:  # of list() and len(), and ours too, which says more
        if isinstance(bad, StofError):
            raise
        got = f"{type(token_types).__name__} ({bad})"
        raise DTypeError(mismatch("token_types", got, "a sequence of integers for each")) from bad
    given = imported.lengths
    types = _tokens(imported, "token_types", model.token_types - 1, target, later)
    if len(given) != len(lengths):
        got = f"{len(given)} sequences"
        raise ShapeError(mismatch("token_types", got, f"{len(lengths)} as x"))
    for number, (got_length, length) in enumerate(zip(given, lengths, strict=True)):
        if got_length != length:
            name = f"token_types[{number}]"
            raise ShapeError(mismatch(name, f"{got_length} tokens", f"{length} as x[{number}]"))
    return types


def _near(given: _Given, target: Target) -> Sequence[Any]:
    """Return the arrays on the target's device, or where they are on the host."""
    first = next(iter(given.origins), Origin("numpy"))
    there = first.kind == "cupy" and first.device[1] == target.device
    if there and len({*map(id, given.origins)}) == 1:
        return given.rows  # as a rule, and there are many
    return [
        row if row is None or isinstance(row, np.ndarray) else target.put(row) for row in given.rows
    ]


def _tokens(
    given: _Given, name: str, most: int, target: Target, later: Checks | None = None
) -> Any:
    """Return all sequences one after another.

    Those of the host are int32 ``(1, tokens)`` there, and checked; those on the GPU, `Sequences`
    that are checked once they are one array. See `integers` for when, and for `later`.

    Raises
    ------
    DTypeError, ShapeError, ArgumentError
        If one is not an array of integers from 0 to `most`.
    """
    rows = _near(given, target)
    filled = [row for row in rows if row is not None]
    if not filled:
        return np.zeros((1, 0), np.int32)

    def each_alone() -> None:
        for number, row in enumerate(rows):
            if row is not None:
                integers(row[None], f"{name}[{number}]", (1, "seq"), most, target)

    def named(check: Callable[[], Any]) -> Any:
        """Return what `check` does; an error of all sequences together becomes that of one."""
        try:
            return check()
        except StofError:
            each_alone()
            raise

    def look(whole: Any) -> Any:
        checks: Checks | None = None if later is None else []
        at = Target("numpy", target.dtype) if isinstance(whole, np.ndarray) else target
        made = named(lambda: integers(whole, name, (1, "tokens"), most, at, checks))
        if later is not None:
            later.extend(partial(named, check) for check in checks or ())
        return made

    dtypes = {row.dtype for row in filled}
    if any(dtype.kind not in "iu" for dtype in dtypes) or {row.ndim for row in filled} != {1}:
        each_alone()
    sequences = Sequences(rows, look)
    here = all(isinstance(row, np.ndarray) for row in filled)
    return sequences.together(None) if here else sequences


def _packed_inputs(
    model: Model,
    program: PackedProgram,
    target: Target,
    given: _Given,
    mask: Any,
    token_types: Any,
    later: Checks,
) -> dict[str, Any]:
    """Return the inputs of a packed program for sequences of token ids."""
    ids = _tokens(given, "x", model.vocab_size - 1, target, later)
    lengths = tuple(given.lengths)
    if max(lengths) > model.max_positions:
        raise ShapeError(
            mismatch("x", f"sequences of {max(lengths)} tokens", f"at most {model.max_positions}")
        )
    some = sum(lengths) > 0
    alone = Packed(lengths) if some else None
    everything = {
        "ids": ids,
        "token_types": _types(token_types, lengths, model, target, later),
        DOCUMENTS: alone,
    }
    declared = program.graph.inputs
    masks = [name for name, node in declared.items() if node.dtype == "mask"]
    of_layers = alone if mask is None or not some else Packed.of(mask, lengths)
    everything = dict.fromkeys(masks, of_layers) | everything
    return {name: each for name, each in everything.items() if name in declared}
