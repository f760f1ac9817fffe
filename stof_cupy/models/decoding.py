"""Generates text with a decoder: the prompts at once, then token by token from a cache.

Prompts of a batch are padded on the right. What a pad token leaves in the cache is masked by the
sequence's length and overwritten by its next tokens. Of a decoder that reads a source the prompts
are the source, and it begins with a token of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy.errors import ArgumentError, DTypeError, ShapeError, UnsupportedError, mismatch
from stof_cupy.models import Model
from stof_cupy.models.inputs import model_inputs
from stof_cupy.models.sampling import Sampler
from stof_cupy.models.session import Runner, Session, Sessions, capacity_for
from stof_cupy.models.target import Target
from stof_cupy.models.tokenizer import pad

__all__ = ["check_prompts", "generate", "id_lists", "listed", "read_source", "stop_tokens"]

Ints = NDArray[np.int32]


def generate(
    model: Model,
    runner: Runner,
    target: Target,
    sessions: Sessions,
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
    runner : Runner
        What runs its graphs, on `target`.
    target : Target
        Has to be active.
    sessions : Sessions
        Where the caches come from.
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
    said = _Said(len(prompts), stop, emit)
    decoder, longest = model.decoder or model, int(lengths.max())
    size: tuple[int, ...] = (len(prompts), capacity_for(model, longest + max_new_tokens))
    if model.decoder is not None:
        size = (len(prompts), capacity_for(decoder, max_new_tokens), capacity_for(model, longest))
    with sessions.use(size, lambda: Session(decoder, runner, target, *size)) as session:
        logits = None
        if model.decoder is not None:
            session.begin(model.start, read_source(model, runner, target, ids, lengths))
        else:
            logits = session.prefill(ids, lengths)
        follow = _follow_best if sampler.temperature == 0 else _follow_drawn
        follow(session, logits, sampler, max_new_tokens, said, ahead=target.device is not None)
    return said.out


class _Said:
    """What each sequence has said so far, and whether it may go on."""

    def __init__(
        self, count: int, stop: frozenset[int], emit: Callable[[int, int], object] | None
    ) -> None:
        self.out: list[list[int]] = [[] for _ in range(count)]
        self._going, self._stop, self._emit = np.ones(count, bool), stop, emit

    def add(self, tokens: NDArray[Any]) -> bool:
        """Add a token to each that goes on; return whether any does still."""
        for i in np.flatnonzero(self._going):
            if int(tokens[i]) in self._stop:
                self._going[i] = False
                continue
            self.out[i].append(int(tokens[i]))
            if self._emit is not None:
                self._emit(int(i), int(tokens[i]))
        return bool(self._going.any())


def _follow_best(
    session: Session, logits: Any, _: Sampler, count: int, said: _Said, *, ahead: bool
) -> None:
    """Take the best token again and again, on the device.

    With `ahead` the next one is launched before this one is looked at, so that the device never
    waits for the host; after the last of all sequences that is one in vain. Without `logits` the
    first token is not read yet.
    """
    if logits is None:
        session.step(greedy=True)
    else:
        session.take_best(logits)
    for left in range(count - 1, -1, -1):
        wait = session.reading()
        if ahead and left:
            session.step(greedy=True)
        if not said.add(wait()):
            return
        if not ahead and left:
            session.step(greedy=True)


def _follow_drawn(
    session: Session, logits: Any, sampler: Sampler, count: int, said: _Said, *, ahead: bool
) -> None:
    """Draw tokens on the host, from a generator that is the same everywhere."""
    logits = session.step(greedy=False) if logits is None else logits
    for left in range(count - 1, -1, -1):
        tokens = sampler(logits)
        if not said.add(tokens) or not left:
            return
        session.take(tokens)
        logits = session.step(greedy=False)


def read_source(
    model: Model, runner: Runner, target: Target, ids: Ints, lengths: NDArray[np.int32]
) -> dict[str, Any]:
    """Return what the decoder of an encoder-decoder is told of its source."""
    given = model_inputs(model, target, ids, lengths, None, None)
    hidden = runner.run(model.graph, given)["hidden"]
    bridge: Any = model.bridge
    return {**runner.run(bridge, {"hidden": hidden}), "source_lengths": given["lengths"]}


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


def id_lists(rows: Any) -> list[list[Any]]:
    """Return rows of token ids as lists.

    Raises
    ------
    DTypeError
        If they are no sequence of sequences, one single row among it.
    """
    given: list[Any] = list(rows) if np.iterable(rows) else [None]
    if isinstance(rows, str) or not all(map(np.iterable, given)):
        got = type(rows).__name__
        raise DTypeError(mismatch("rows", got, "a sequence of sequences of token ids"))
    return [list(row) for row in given]


def _are_ids(row: Any) -> bool:
    return isinstance(row, list) and all(
        isinstance(token, Integral) and not isinstance(token, bool) for token in row
    )


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
    whole = isinstance(max_new_tokens, Integral) and not isinstance(max_new_tokens, bool)
    if not whole or max_new_tokens < 1:
        got = repr(max_new_tokens)
        raise ArgumentError(mismatch("max_new_tokens", got, "a positive integer"))
    rows = [[int(token) for token in prompt] for prompt in prompts]
    for i, row in enumerate(rows):
        if not row:
            raise ShapeError(mismatch(f"prompts[{i}]", "no token", "at least one"))
        if bad := [token for token in row if not 0 <= token < model.vocab_size]:
            expected = f"ids from 0 to {model.vocab_size - 1}"
            raise ArgumentError(mismatch(f"prompts[{i}]", bad[0], expected))
        # Not a NumPy integer: of a small type it might overflow.
        new = int(max_new_tokens) if model.kind == "decoder" else 0
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
    tokens = list(given) if np.iterable(given) else [given]
    whole = all(isinstance(each, Integral) and not isinstance(each, bool) for each in tokens)
    if not whole or isinstance(given, (str, bytes)):
        name = "config['eos_token_id']" if stop is None else "stop"
        raise ArgumentError(mismatch(name, repr(given), "a token id, or several"))
    return frozenset(map(int, tokens))
