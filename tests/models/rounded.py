"""What a plain implementation in a low precision gives: the yardstick of the tests on a GPU.

And the logits of tokens that a decoder is told, read one by one through its cache, as those of
`generate` are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from stof_cupy import Graph, TransformerEngine
from stof_cupy.dtypes import as_dtype
from stof_cupy.fusion import fuse_epilogues
from stof_cupy.graph import Executor
from stof_cupy.models.decoding import read_source
from stof_cupy.models.session import Runner, Session, capacity_for
from stof_cupy.testing import assert_close, budget

__all__ = ["Rounded", "check_logits", "check_on_the_gpu", "told"]

FEW = 8
"""Tokens of the highest logits whose distances are looked at."""


class Rounded(TransformerEngine):
    """An engine on NumPy whose weights, and each operator's result, are rounded to `low`."""

    def __init__(self, weights: Any, *, low: str, **how: Any) -> None:
        self._low, self._executors = as_dtype(low), dict[str, Executor]()
        super().__init__(weights, backend="numpy", **how)

    def _round(self, array: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            rounded: np.ndarray = array.astype(self._low).astype(np.float32)
        return rounded

    def _executor(self, graph: Graph) -> Executor:
        made = self._executors.get(graph.name)
        if made is None:
            whole = fuse_epilogues(graph)
            weights = {
                name: self._round(array) if array.dtype.kind != "i" else array
                for name, array in whole.constants.items()
            }
            made = self._executors[graph.name] = Executor(whole, backend="numpy", uploads=weights)
        return made

    def _ran(self, program: Any, inputs: Mapping[str, Any], finish: Any) -> dict[str, Any]:
        executor = self._executor(program.graph)
        made = executor.run(inputs, observe=lambda _, array: self._round(array))
        return made if finish is None else finish(inputs, made)

    def _bind(self, graph: Graph, inputs: Mapping[str, Any], finish: Any, changes: Any) -> Any:
        program = self._program_of(graph)
        return lambda: self._ran(program, inputs, finish)


def told(engine: TransformerEngine, ids: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Return the logits (batch, new, vocabulary) that follow `ids` and all `tokens` but the last.

    Parameters
    ----------
    engine : TransformerEngine
    ids : int array (batch, seq)
        Prompts, or what an encoder-decoder reads.
    tokens : int array (batch, new)
        What the model is told that it has said.
    """
    model, runner, target = engine._model, Runner(engine._run, engine._bind), engine._target
    (batch, seq), new = ids.shape, tokens.shape[1]
    ids, lengths = ids.astype(np.int32), np.full(batch, seq, np.int32)
    logits = []
    with target.active():
        if model.decoder is None:
            session = Session(model, runner, target, batch, capacity_for(model, seq + new))
            logits.append(host(session.prefill(ids, lengths)))
        else:
            size = (capacity_for(model.decoder, new), capacity_for(model, seq))
            session = Session(model.decoder, runner, target, batch, *size)
            session.begin(model.start, read_source(model, runner, target, ids, lengths))
            logits.append(host(session.step(greedy=False)))
        for token in tokens.T[:-1]:
            session.take(token)
            logits.append(host(session.step(greedy=False)))
    return np.stack(logits, axis=1)


def host(array: Any) -> np.ndarray:
    """Return a copy on the host; what a step gives holds until the next one."""
    return np.array(array if isinstance(array, np.ndarray) else array.get())


def check_logits(got: Any, exact: np.ndarray, low: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Check logits, and their best token wherever the exact ones leave no doubt; return where.

    Without doubt is where the exact first two are further apart than the logits' budget. Or than
    the budget of what decides, how far the first few move against each other: often less, because
    an error that all logits share moves none.
    """
    dtype = got.dtype
    low = low.astype(dtype)
    assert_close(got, exact, low)
    got, low = got.astype(np.float32), low.astype(np.float32)
    # The largest error alone would let a systematic one hide: the mean is held to the same factor.
    assert np.abs(got - exact).mean() <= 2 * np.abs(low - exact).mean()
    first = np.argsort(-exact, axis=-1)[..., :FEW]
    leads, rounded = (lead(logits, first) for logits in (exact, low))
    allowed = min(budget(exact, low, dtype), budget(leads, rounded, dtype))
    sure: np.ndarray = leads[..., 0] > allowed
    assert np.array_equal(got.argmax(axis=-1)[sure], tokens[sure])
    return sure


def lead(logits: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Return how far the first of some tokens is ahead of each of the others."""
    picked = np.take_along_axis(logits, first, axis=-1)
    return picked[..., :1] - picked[..., 1:]


def check_on_the_gpu(
    weights: Mapping[str, Any], config: Any, dtype: str, rows: list[tuple[np.ndarray, np.ndarray]]
) -> int:
    """Check what a language model computes and says on a GPU against NumPy, teacher-forced.

    `rows` are prompts (batch, seq) and what follows them (batch, new), of one `new`. Returns how
    many tokens were compared.
    """
    host = TransformerEngine(weights, config=config, backend="numpy")
    low = Rounded(weights, low=dtype, config=config)
    how: dict[str, Any] = {"backend": "cuda", "dtype": dtype, "cuda_graphs": True}
    device = TransformerEngine(weights, config=config, **how)
    # All rows as one: how large the largest error is, is then less a matter of luck.
    exact, rounded, got = (
        np.concatenate([told(engine, *row) for row in rows]) for engine in (host, low, device)
    )
    tokens = np.concatenate([new for _, new in rows])
    sure = check_logits(got, exact, rounded, tokens)
    if host._model.decoder is None:  # the same without a cache
        whole = [
            device.run(np.hstack([ids, new[:, :-1]]), output="logits")[:, ids.shape[1] - 1 :]
            for ids, new in rows
        ]
        check_logits(np.concatenate(whole), exact, rounded, tokens)
    prompts = [prompt for ids, _ in rows for prompt in ids.tolist()]
    said = device.generate(prompts, max_new_tokens=tokens.shape[1], stop=())
    for row, golden, clear in zip(said, tokens.tolist(), sure, strict=True):
        first = len(golden) if clear.all() else int(clear.argmin())  # what follows may differ
        assert len(row) == len(golden) and row[:first] == golden[:first]
    return int(sure.sum())
