"""What an engine does beside computing: lists, recorded lengths, out=, profile, close."""

from __future__ import annotations

import gc
import itertools
import weakref
from io import StringIO
from typing import Any

import numpy as np
import pytest

from stof_cupy import Graph, TransformerEngine, masks
from stof_cupy.errors import ArgumentError, DTypeError, ShapeError
from stof_cupy.graph.recorder import Recordings
from stof_cupy.models.lists import is_list
from stof_cupy.runtime.padding import SMALL, bucket
from stof_cupy.runtime.ready import Ready
from stof_cupy.terminal import Progress
from tests.runtime.fake import FakeRecorder

LENGTHS = (9, 1, 0, 131, 64)


@pytest.fixture
def sequences() -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    return [rng.integers(0, 50, length) for length in LENGTHS]


# Lists of sequences


@pytest.mark.parametrize(
    "mask", [None, "causal", "sliding:w=5", "longformer:w=3,g=1", lambda n: masks.causal(n)]
)
@pytest.mark.parametrize("packed", [True, False])
def test_a_list_gives_what_each_gives_alone(
    engine, sequences, mask, packed, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not packed:
        monkeypatch.setattr(engine._program, "packed", lambda: None)
    kinds = [ids % 3 for ids in sequences]
    for given in (None, kinds):
        got = engine.run(sequences, mask=mask, token_types=given)
        assert isinstance(got, list) and [len(each) for each in got] == [*LENGTHS]
        for number, ids in enumerate(sequences):
            if len(ids):
                types = None if given is None else given[number][None]
                alone = engine.run(ids[None], mask=mask, token_types=types)[0]
                np.testing.assert_allclose(got[number], alone, atol=2e-5)
            assert got[number].dtype == np.float32 and got[number].shape[1] == 24


def test_lists_of_integers_of_every_type(engine, sequences) -> None:
    """NumPy makes floats of int64 and uint64."""
    dtypes = ["int64", "uint64", "int8", "uint16", "int32"]
    given = [ids.astype(each) for ids, each in zip(sequences, dtypes, strict=True)]
    for got, want in zip(engine.run(given), engine.run(sequences), strict=True):
        np.testing.assert_array_equal(got, want)
    given[1][0] = 2**63 + 1
    with pytest.raises(ArgumentError, match=r"x\[1\]\[0, 0\]: got 9223372036854775809"):
        engine.run(given)


def test_token_types_may_be_anything_that_gives_them_one_by_one(engine, sequences) -> None:
    want = engine.run(sequences, token_types=[ids % 3 for ids in sequences])
    for got, each in zip(
        engine.run(sequences, token_types=(ids % 3 for ids in sequences)), want, strict=True
    ):
        np.testing.assert_array_equal(got, each)


def test_packing_shares_the_weights(engine) -> None:
    program = engine._program
    assert program.packed() is program.packed()
    assert program.packed()._uploads is program._uploads
    shared = {n for n in program.graph.constants if n in program.packed().graph.constants}
    assert len(shared) > 20
    assert all(program.graph.constants[n] is program.packed().graph.constants[n] for n in shared)


def test_what_is_a_list() -> None:
    one, two = np.ones(3, int), np.ones(4, int)
    assert (
        is_list([one, two])
        and is_list((one, one))
        and is_list([[1], [1, 2]])
        and is_list([one, [1]])
    )
    for array in (np.ones((2, 3), int), [[1, 2], [3, 4]], [one[None]], [one[None], [3]], [1, 2]):
        assert not is_list(array)


def test_lists_of_lists_and_of_nothing(engine) -> None:
    got = engine.run([[1, 2, 3], [4]])
    assert [each.shape for each in got] == [(3, 24), (1, 24)]
    none = engine.run([np.zeros(0, int), np.zeros(0, int)])
    assert [each.shape for each in none] == [(0, 24), (0, 24)]


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"lengths": [1, 2]}, ArgumentError, "lengths: got a value, expected None"),
        ({"out": np.zeros(3)}, ArgumentError, "out: got a value"),
        ({"layer_masks": {0: "full"}}, ArgumentError, "layer_masks: got a value, expected None"),
        ({"output": "logits"}, ArgumentError, "output: got 'logits'.*the model has no head"),
        ({"mask": np.ones((3, 3), bool)}, ArgumentError, "mask: got ndarray, expected a spec"),
        ({"mask": "nonsense"}, ArgumentError, "mask"),
        ({"output": "everything"}, ArgumentError, "output: got .everything."),
        ({"token_types": [[0, 1]]}, ShapeError, "token_types: got 1 sequences, expected 2 as x"),
        ({"token_types": []}, ShapeError, "token_types: got 0 sequences, expected 2 as x"),
        (
            {"token_types": [np.ones(3, ">i4"), np.array(0)]},
            DTypeError,
            r"token_types\[0\]: got >i4",
        ),
        ({"token_types": [[0, 1], [0]]}, ShapeError, r"token_types\[0\]: got 2 tokens, expected 3"),
        ({"token_types": [[0, 9, 1], [0]]}, ArgumentError, r"token_types\[0\]"),
        ({"token_types": 1}, DTypeError, "token_types: got int .*expected a sequence of integers"),
        ({"token_types": [None, [0]]}, DTypeError, "token_types: got list .*NoneType"),
        ({"token_types": [[0] * 3, np.array(0)]}, DTypeError, "token_types: got list"),
    ],
)
def test_lists_that_are_wrong(engine, changes: dict[str, Any], error: Any, match: str) -> None:
    with pytest.raises(error, match=match):
        engine.run([np.array([1, 2, 3]), np.array([4])], **changes)
    for x, kind in (
        ([[1, 99], [2]], ArgumentError),
        ([np.ones(151, int), np.ones(2, int)], ShapeError),
    ):
        with pytest.raises(kind, match="x"):
            engine.run(x)


# Recorded runs


def recording(engine: TransformerEngine, monkeypatch: pytest.MonkeyPatch) -> FakeRecorder:
    recorder = FakeRecorder()
    monkeypatch.setattr(engine._program, "_recordings", Recordings(recorder))
    return recorder


def test_lengths_of_one_bucket_share_a_recording(engine, monkeypatch) -> None:
    rng = np.random.default_rng(0)
    runs = [rng.integers(0, 50, (2, n)) for n in (97, 100, 128, 111, 120)]
    kinds = [rng.integers(0, 3, ids.shape) for ids in runs]
    expected = [engine.run(i, token_types=t) for i, t in zip(runs, kinds, strict=True)]
    cut = [engine.run(i, lengths=[90, 7], token_types=t) for i, t in zip(runs, kinds, strict=True)]
    recorder = recording(engine, monkeypatch)
    for i, ids in enumerate(runs):
        got = engine.run(ids, token_types=kinds[i])
        np.testing.assert_allclose(got, expected[i], atol=2e-5)
        got = engine.run(ids, lengths=[90, 7], token_types=kinds[i])
        np.testing.assert_allclose(got, cut[i], atol=2e-5)
        assert not got[1, 7:].any() and got.shape == expected[i].shape
    # 128 itself, without lengths, is no padded run.
    assert len(recorder.made) == 1 and engine._program._recordings.replayed == 8


def test_masks_by_spec_are_recorded_at_their_own_length(engine, ids, monkeypatch) -> None:
    expected = engine.run(ids, mask="sliding:w=5")
    recorder = recording(engine, monkeypatch)
    for _ in range(3):
        np.testing.assert_array_equal(engine.run(ids, mask="sliding:w=5"), expected)
    assert len(recorder.made) == 1


@pytest.mark.parametrize("mask", [None, "causal"])
def test_runs_of_other_layers_masks_are_other_runs(engine, ids, mask, monkeypatch) -> None:
    window, causal = masks.sliding_window(131, window=5).tobsr(), masks.causal(131).tobsr()
    given = [{0: window}, {1: window}, {0: causal, 1: window}, {0: window, 1: causal}, {}]
    expected = [engine.run(ids, mask=mask, layer_masks=each) for each in given]
    for one, other in itertools.combinations(expected, 2):
        assert mask is not None or np.abs(one - other).max() > 1e-2
    recorder = recording(engine, monkeypatch)
    for _ in range(3):
        for each, exact in zip(given, expected, strict=True):
            got = engine.run(ids, mask=mask, layer_masks=each)
            np.testing.assert_allclose(got, exact, atol=2e-5)
    assert engine._program._recordings.replayed == 2 * len(given) == 2 * len(recorder.made)


def test_a_layer_without_a_mask_is_as_plain_as_before(engine, monkeypatch) -> None:
    recorder = recording(engine, monkeypatch)
    for seq in (97, 100, 111):
        engine.run(np.ones((2, seq), int), layer_masks={0: None})
    assert len(recorder.made) == 1 and engine._program._recordings.replayed == 2


def test_buckets() -> None:
    for seq in range(1, 700):
        padded = bucket(seq, 512)
        assert padded >= seq and (padded == seq or padded <= 512)
        assert padded - seq < (16 if seq <= 64 else 32 if seq <= 256 else 64)
    assert bucket(150, 150) == 150 and SMALL > 0


# out=, profile, explain, close


@pytest.mark.parametrize("lengths", [None, [131, 70, 1]])
def test_out_is_written_and_returned(engine, ids, lengths) -> None:
    out = np.full((3, 131, 24), np.nan, np.float32)
    assert engine.run(ids, lengths=lengths, out=out) is out
    np.testing.assert_array_equal(out, engine.run(ids, lengths=lengths))
    strided = np.zeros((3, 131, 48), np.float32)[..., ::2]
    engine.run(ids, lengths=lengths, out=strided)
    np.testing.assert_array_equal(strided, out)


def test_out_that_does_not_fit(engine, ids) -> None:
    read_only = np.zeros((3, 131, 24), np.float32)
    read_only.flags.writeable = False
    for out, error in (
        (np.zeros((3, 131, 25), np.float32), ShapeError),
        (np.zeros((3, 131, 24)), DTypeError),
        (read_only, ArgumentError),
    ):
        with pytest.raises(error, match="out: got"):
            engine.run(ids, out=out)


def test_profile_and_explain(engine, ids) -> None:
    profile = engine.profile(ids, lengths=[131, 3, 9], repeat=2)
    assert {"gemm", "attention", "layer_norm", "embedding"} <= set(profile.by_op())
    text = engine.explain()
    assert text.startswith("bert, ") and "tune='off'" in text and "scheme" in text


def test_a_closed_engine(weights, config, ids) -> None:
    with TransformerEngine(weights, config=config, backend="numpy") as engine:
        engine.run([[1, 2], [3]])
    for x in (ids, [[1, 2], [3]]):
        with pytest.raises(ArgumentError, match="closed"):
            engine.run(x)


def engine_of(weights: Any, config: Any) -> TransformerEngine:
    return TransformerEngine(weights, config=config, backend="numpy")


def test_closing_frees_the_weights_and_still_explains(weights, config, ids) -> None:
    engine = engine_of({name: array.copy() for name, array in weights.items()}, config)
    engine.run(ids)
    engine.run([ids[0], ids[0, :2]])
    told = engine.explain()
    arrays = [*engine.graph.constants.values(), *engine._model.graph.constants.values()]
    kept = [weakref.ref(array) for array in arrays]
    del arrays
    engine.close()
    gc.collect()
    assert kept and not any(each() is not None for each in kept)
    assert engine.explain().splitlines()[0] == told.splitlines()[0]


def test_closing_leaves_a_run_that_is_under_way_its_weights(
    weights, config, ids, monkeypatch
) -> None:
    engine = engine_of(weights, config)
    expected = engine.run(ids)
    engine._program._ready.clear()  # it has to be made anew
    made = Ready.made

    def closed_before(*args: Any) -> Any:
        engine.close()
        return made(*args)

    monkeypatch.setattr(Ready, "made", closed_before)
    assert np.array_equal(engine.run(ids), expected)
    with pytest.raises(ArgumentError, match="closed"):
        engine.run(ids)


def test_what_a_closed_engine_never_ran_is_not_made(weights, config) -> None:
    engine = engine_of(weights, config)
    graph = Graph("another")
    graph.output("y", graph.gelu(graph.input("x", ("batch", "seq", 2), "float")))
    engine.close()
    with pytest.raises(ArgumentError, match="closed"):
        engine._run(graph, {"x": np.ones((1, 1, 2), np.float32)})
    assert not engine._others


@pytest.mark.parametrize("tune", ["fast", "full"])
def test_tuned_engines_compute_the_same(
    tune, weights, config, ids, engine, monkeypatch, tmp_path
) -> None:
    monkeypatch.setenv("STOF_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("stof_cupy.engine.Options", lambda **o: options(seconds=0.5, **o))
    tuned = TransformerEngine(weights, config=config, backend="numpy", tune=tune, progress=True)
    lengths = np.array([131, 70, 1])
    for mask in (None, "longformer:w=3,g=2"):
        expected = engine.run(ids, lengths=lengths, mask=mask)
        got = tuned.run(ids, lengths=lengths, mask=mask)
        np.testing.assert_allclose(got, expected, atol=3e-5)
    assert f"tune={tune!r}" in tuned.explain()
    assert str(tuned.report(ids)) in tuned.explain() and tuned.report(ids).mode == tune
    assert list((tmp_path / "schemes").glob("*.json"))


def options(seconds: float, **given: Any) -> Any:
    from stof_cupy.runtime import Options

    return Options(tune_seconds=seconds, **given)


def test_tune_that_is_no_mode(weights, config) -> None:
    with pytest.raises(ArgumentError, match="tune: got 'most'"):
        TransformerEngine(weights, config=config, backend="numpy", tune="most")


def test_the_bar_is_drawn_over_itself_and_wiped() -> None:
    stream = StringIO()
    bar = Progress("tuning", stream, always=True)
    for share in (0, 0.5, 1.5):
        bar(share, "piece " + "x" * 200)
    lines = stream.getvalue().split("\r")[1:]
    assert len({len(line) for line in lines}) == 1 and "100%" in lines[-1]
    bar.close()
    assert stream.getvalue().endswith(" \r")
    silent = StringIO()
    quiet = Progress("tuning", silent)
    quiet(0.5)
    quiet.close()
    assert silent.getvalue() == ""


def test_explain_says_how_lists_run(engine, sequences) -> None:
    engine.run(sequences)
    packed = engine.explain().split("sequences one after another: ")[1]
    assert "attention" in packed and "memory at batch 1, seq " in packed
