"""Lists, recorded runs, tuning and arenas of every family: each gives what a plain run gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stof_cupy.graph import Executor
from stof_cupy.graph.recorder import Recordings
from tests.goldens.cases import DECODERS, SPARSE
from tests.models.test_decoders import engine_of
from tests.runtime.fake import FakeRecorder

FAMILIES: dict[str, dict[str, Any]] = {**DECODERS, **SPARSE}


def ids_of(config: dict[str, Any], *shape: int) -> np.ndarray:
    return np.random.default_rng(3).integers(2, config["vocab_size"], shape)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_list_gives_what_each_gives_alone(name: str) -> None:
    engine = engine_of(FAMILIES[name])
    rows = [ids_of(FAMILIES[name], n) for n in (7, 1, 0, 12)]
    outputs = ["hidden", "logits"] if name in DECODERS else ["hidden"]
    for output in outputs:
        for mask in (None, "sliding:w=3"):
            got = engine.run(rows, mask=mask, output=output)
            for row, made in zip(rows, got, strict=True):
                assert len(made) == len(row)
                if len(row):
                    alone = engine.run(row[None], mask=mask, output=output)[0]
                    np.testing.assert_allclose(made, alone, atol=1e-4)


@pytest.mark.parametrize("name", FAMILIES)
def test_recorded_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(FAMILIES[name])
    batches = [ids_of(FAMILIES[name], 2, 21) + step % 2 for step in range(4)]
    batches = [np.minimum(ids, FAMILIES[name]["vocab_size"] - 1) for ids in batches]
    lengths = np.array([21, 5])
    expected = [engine.run(ids, lengths=lengths) for ids in batches]
    monkeypatch.setattr(engine._program, "_recordings", Recordings(FakeRecorder()))
    for ids, exact in zip(batches, expected, strict=True):
        np.testing.assert_allclose(engine.run(ids, lengths=lengths), exact, atol=1e-4)
    if name in DECODERS:
        prompt = [batches[0][0, :5].tolist()]
        again = engine_of(FAMILIES[name]).generate(prompt, max_new_tokens=6)
        assert engine.generate(prompt, max_new_tokens=6) == again


@pytest.mark.parametrize("name", FAMILIES)
def test_tuned_engines(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("STOF_CACHE_DIR", str(tmp_path))
    plain, tuned = engine_of(FAMILIES[name]), engine_of(FAMILIES[name], tune="fast")
    ids = ids_of(FAMILIES[name], 2, 33)
    np.testing.assert_allclose(tuned.run(ids), plain.run(ids), atol=1e-4)
    if name in DECODERS:
        prompts = [ids[0, :9].tolist(), ids[1, :4].tolist()]
        asked = {"max_new_tokens": 6}
        assert tuned.generate(prompts, **asked) == plain.generate(prompts, **asked)


@pytest.mark.parametrize("name", FAMILIES)
def test_values_in_one_arena(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(FAMILIES[name])
    ids = ids_of(FAMILIES[name], 2, 33)
    expected = engine.run(ids)
    placed = Executor(engine.graph, backend="numpy", arena=True)
    seen: list[Any] = []
    monkeypatch.setattr(
        engine._program, "run", lambda given, finish=None: (seen.append(1), placed.run(given))[1]
    )
    np.testing.assert_allclose(engine.run(ids), expected, atol=1e-4)
    assert seen and placed.plans[0].arena_bytes < placed.plans[0].total_bytes / 2
