"""Generates text with a decoder: the prompts at once, then token by token from a cache.

Prompts of a batch are padded on the right. What a pad token leaves in the cache is masked by the
sequence's length and overwritten by its next tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy.dtypes import as_dtype
from stof_cupy.errors import ArgumentError, DTypeError, ShapeError, UnsupportedError, mismatch
from stof_cupy.graph import Graph
from stof_cupy.masks import as_masks
from stof_cupy.models import LayerMask, Model
from stof_cupy.models.inputs import masks_of, model_inputs
from stof_cupy.models.sampling import Sampler
from stof_cupy.models.target import Target
from stof_cupy.models.tokenizer import pad

__all__ = ["check_prompts", "generate", "listed", "stop_tokens"]

Ints = NDArray[np.int32]


Run = Callable[[Graph, Mapping[str, Any]], dict[str, Any]]
"""Runs one of a model's graphs on inputs that lie where they are needed."""


def generate(
    model: Model,
    run: Run,
    target: Target,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    sampler: Sampler,
    stop: frozenset[int],
    emit: Callable[[int, int], object] | None = None,
) -> list[list[int]]:
    """Return what follows each prompt, stop tokens left out.

    Parameters
    ----------
    model : Model
        A decoder or an encoder-decoder.
    run : callable
        ``(graph, inputs) -> outputs``, on `target`.
    target : Target
        Has to be active.
    prompts : sequence of sequence of int
        Token ids, checked by :func:`check_prompts`.
    max_new_tokens : int
    sampler : Sampler
    stop : frozenset of int
        Tokens that end a sequence.
    emit : callable, optional
        Called as ``emit(sequence, token)`` for each new token.
    """
    ids, lengths = pad(prompts)
    given: dict[str, Any] = {}
    if model.decoder is not None:
        given = _read_source(model, run, target, ids, lengths)
        model, ids = model.decoder, np.full((len(prompts), 1), model.start, np.int32)
        lengths = np.ones(len(prompts), np.int32)
    capacity = int(lengths.max()) + max_new_tokens
    session = Session(model, run, target, len(prompts), capacity, given)
    out: list[list[int]] = [[] for _ in prompts]
    going = np.ones(len(prompts), bool)
    logits = session.prefill(ids, lengths)
    for step in range(max_new_tokens):
        tokens = sampler(logits)
        for i in np.flatnonzero(going):
            if int(tokens[i]) in stop:
                going[i] = False
                continue
            out[i].append(int(tokens[i]))
            if emit is not None:
                emit(int(i), int(tokens[i]))
        if not going.any() or step == max_new_tokens - 1:
            break
        logits = session.step(tokens)
    return out


def _read_source(
    model: Model, run: Run, target: Target, ids: Ints, lengths: NDArray[np.int32]
) -> dict[str, Any]:
    """Return what the decoder of an encoder-decoder is told of its source."""
    given = model_inputs(model, target, ids, lengths, None, None)
    hidden = run(model.graph, given)["hidden"]
    bridge: Any = model.bridge
    return {**run(bridge, {"hidden": hidden}), "source_lengths": given["lengths"]}


class Session:
    """The caches of a batch of sequences, and how far each has come.

    Parameters
    ----------
    model, run, target
        As in :func:`generate`; the model is a decoder.
    batch : int
    capacity : int
        The most tokens of a sequence.
    given : mapping of str to array
        Further inputs of each run.
    """

    def __init__(
        self,
        model: Model,
        run: Run,
        target: Target,
        batch: int,
        capacity: int,
        given: Mapping[str, Any],
    ) -> None:
        self._model, self._graph_run, self._target = model, run, target
        self._given = given
        dtype = as_dtype(target.dtype) if target.device is not None else np.dtype(np.float32)
        self._caches = {
            name: target.xp.zeros((batch, node.shape[1], capacity, node.shape[3]), dtype)
            for name, node in model.graph.inputs.items()
            if node.dtype == "cache"
        }
        self.lengths: Ints = np.zeros(batch, np.int32)

    def prefill(self, ids: Ints, lengths: Ints) -> Any:
        """Take the prompts, padded; return the logits (batch, vocab) of what follows them."""
        batch, seq = ids.shape
        shape = (batch, self._model.heads, seq, seq)
        positions = np.broadcast_to(np.arange(seq, dtype=np.int32), ids.shape)
        masks = masks_of(self._model, self._target, None, None, shape)
        rows = np.arange(batch, dtype=np.int32) * seq + lengths - 1
        self.lengths = lengths.astype(np.int32)
        return self._run(ids, positions, rows, masks, None, seq)

    def step(self, tokens: NDArray[Any]) -> Any:
        """Take one token a sequence; return the logits (batch, vocab) of what follows it."""
        positions = self.lengths[:, None]
        self.lengths = self.lengths + 1
        keys = int(self.lengths.max())
        rows = np.arange(len(tokens), dtype=np.int32)
        ids = tokens.astype(np.int32)[:, None]
        made = {each: self._row_mask(each, keys) for each in {*self._model.layer_masks}}
        masks = {f"mask.{i}": made[each] for i, each in enumerate(self._model.layer_masks)}
        # A batch of equal lengths has no key to leave out, so neither has one sequence.
        ragged = (self.lengths != keys).any()
        return self._run(ids, positions, rows, masks, self.lengths if ragged else None, keys)

    def _row_mask(self, mask: LayerMask, keys: int) -> Any:
        """Return who the new tokens attend to, or None for every one that there is."""
        if mask.window is None or keys <= mask.window + 1:
            return None
        first = self.lengths[:, None] - 1 - mask.window
        kept = np.arange(keys) >= first
        batch, heads = len(kept), self._model.heads
        if (first == first[0]).all():
            kept = kept[:1]
        return as_masks(kept[:, None, None, :], (batch, heads, 1, keys))

    def _run(
        self,
        ids: Ints,
        positions: Ints,
        rows: Ints,
        masks: dict[str, Any],
        lengths: Ints | None,
        keys: int,
    ) -> Any:
        put = self._target.xp.asarray
        given = {
            "ids": put(ids),
            "positions": put(np.ascontiguousarray(positions)),
            "rows": put(rows[:, None]),
            "lengths": None if lengths is None else put(lengths),
            **{name: cache[:, :, :keys] for name, cache in self._caches.items()},
            **masks,
            **self._given,
        }
        return self._graph_run(self._model.graph, given)["logits"][:, 0]


def listed(prompts: Any) -> list[Any]:
    """Return prompts, all texts or all lists of ids, as a list.

    Raises
    ------
    DTypeError
        If they are something else, one single text among it.
    """
    rows = [] if isinstance(prompts, str) or not np.iterable(prompts) else list(prompts)
    # Lists, because what is looked at here may be an iterator.
    rows = [row if isinstance(row, str) or not np.iterable(row) else list(row) for row in rows]
    texts = sum(isinstance(row, str) for row in rows)
    ids = sum(_are_ids(row) for row in rows)
    if not rows or len(rows) not in (texts, ids):
        expected = "a sequence of texts, or of sequences of token ids"
        raise DTypeError(mismatch("prompts", type(prompts).__name__, expected))
    return rows


def _are_ids(row: Any) -> bool:
    return isinstance(row, list) and all(isinstance(token, (int, np.integer)) for token in row)


def check_prompts(
    model: Model, prompts: Iterable[Iterable[int]], max_new_tokens: int
) -> list[list[int]]:
    """Return prompts as lists, once they are known to be token ids that the model can continue.

    Raises
    ------
    UnsupportedError
        If the model does not generate.
    ArgumentError, ShapeError
        If a prompt is empty, too long, or has an id outside the vocabulary.
    """
    if model.kind not in ("decoder", "encoder-decoder"):
        got = f"one of kind {model.kind!r}"
        raise UnsupportedError(mismatch("model", got, "one that generates text"))
    if type(max_new_tokens) is not int or max_new_tokens < 1:
        raise ArgumentError(mismatch("max_new_tokens", max_new_tokens, "a positive integer"))
    rows = [[int(token) for token in prompt] for prompt in prompts]
    for i, row in enumerate(rows):
        if not row:
            raise ShapeError(mismatch(f"prompts[{i}]", "no token", "at least one"))
        if bad := [token for token in row if not 0 <= token < model.vocab_size]:
            expected = f"ids from 0 to {model.vocab_size - 1}"
            raise ArgumentError(mismatch(f"prompts[{i}]", bad[0], expected))
        new = max_new_tokens if model.kind == "decoder" else 0
        if len(row) + new > model.max_positions:
            got = f"{len(row)} tokens and {max_new_tokens} new ones"
            expected = f"at most {model.max_positions} positions"
            raise ShapeError(mismatch(f"prompts[{i}]", got, expected))
    return rows


def stop_tokens(stop: Any, config: Any) -> frozenset[int]:
    """Return the tokens that end a sequence: `stop`, or those of the config's ``eos_token_id``."""
    given = config.get("eos_token_id") if stop is None else stop
    if given is None:
        return frozenset()
    try:
        return frozenset(int(token) for token in (given if np.iterable(given) else [given]))
    except (TypeError, ValueError):
        expected = "a token id, or several"
        raise ArgumentError(mismatch("stop", repr(given), expected)) from None
