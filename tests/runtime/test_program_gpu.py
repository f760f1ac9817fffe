"""Programs and engines on CUDA: a replay is a run, on any stream, thread and device."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from stof_cupy import TransformerEngine, masks, models
from stof_cupy.errors import ArgumentError
from stof_cupy.runtime import Options, Program
from tests.fusion.stacks import WIDTH, paper_stack
from tests.runtime.cuda_path import GPT2, LLAMA

pytestmark = pytest.mark.gpu

CONFIG = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "num_hidden_layers": 3,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 50,
    "max_position_embeddings": 300,
    "type_vocab_size": 2,
}


@pytest.fixture(scope="module")
def engines() -> tuple[TransformerEngine, TransformerEngine]:
    weights = models.random_weights(CONFIG, seed=3)
    recorded, eager = (
        TransformerEngine(weights, config=CONFIG, backend="cuda", cuda_graphs=graphs)
        for graphs in (True, False)
    )
    return recorded, eager


def near(a: Any, b: Any) -> None:
    np.testing.assert_allclose(a.astype(np.float32), b.astype(np.float32), atol=0.02)


@pytest.mark.parametrize("mask", [None, "causal", "longformer:w=8,g=2"])
@pytest.mark.parametrize("with_lengths", [False, True])
def test_replays_are_runs_of_their_own_inputs(engines, mask, with_lengths) -> None:
    recorded, eager = engines
    rng = np.random.default_rng(0)
    for seq in (33, 128, 201):
        for _ in range(4):
            ids = rng.integers(0, 50, (3, seq))
            lengths = rng.integers(0, seq + 1, 3) if with_lengths else None
            got = recorded.run(ids, mask=mask, lengths=lengths)
            near(got, eager.run(ids, mask=mask, lengths=lengths))
            if lengths is not None:
                assert all(not row[n:].any() for row, n in zip(got, lengths, strict=True))
    assert recorded._program._recordings.replayed >= 9


def test_masks_of_single_layers_are_told_apart(engines) -> None:
    recorded, eager = engines
    plain = TransformerEngine(models.random_weights(CONFIG, seed=3), config=CONFIG, backend="numpy")
    ids = np.random.default_rng(0).integers(0, 50, (2, 128))
    window, causal = masks.sliding_window(128, window=2).tobsr(), masks.causal(128).tobsr()
    given = [{0: window}, {2: window}, {0: causal, 2: window}, {}]
    expected = [eager.run(ids, layer_masks=each) for each in given]
    exact = [plain.run(ids, layer_masks=each) for each in given]
    far = np.array([[np.abs(made - each).max() for each in exact] for made in expected])
    assert far.argmin(axis=1).tolist() == [0, 1, 2, 3]  # masks of other layers make 0.7 and more
    for _ in range(3):
        for each, made in zip(given, expected, strict=True):
            near(recorded.run(ids, layer_masks=each), made)


def test_a_mask_rebuilt_on_the_gpu_is_read_anew(engines) -> None:
    import cupy

    recorded, eager = engines
    doc = cupy.zeros(128, "int32")
    pattern = masks.predicate((128, 128), "doc[i] == doc[j]", arrays={"doc": doc})
    mask = pattern.to("cuda", tiles=16, bitmaps=16)
    ids = cupy.asarray(np.random.default_rng(0).integers(0, 50, (2, 128)))
    for cut in (0, 40, 70, 100):
        doc[cut:] = 1
        doc[:cut] = 0
        mask.rebuild()
        near(recorded.run(ids, mask=mask).get(), eager.run(ids, mask=mask).get())


def test_streams_and_threads(engines) -> None:
    import cupy

    recorded, eager = engines
    rng = np.random.default_rng(1)
    batches = [rng.integers(0, 50, (2, 64)) for _ in range(4)]
    expected = [eager.run(ids) for ids in batches]
    wrong: list[Any] = []

    def work(number: int) -> None:
        with cupy.cuda.Stream(non_blocking=True):
            for turn in range(20):
                which = (number + turn) % 4
                got = recorded.run(batches[which])
                if not np.allclose(got, expected[which], atol=0.02):
                    wrong.append((number, turn))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert not wrong


def test_new_lengths_compile_nothing(engines) -> None:
    from stof_cupy.jit.launch import store

    recorded, _ = engines
    rng = np.random.default_rng(2)
    for seq in (1, 2, 4, 8, 16, 32, 64, 128, 256, 300):  # one of each class
        recorded.run(rng.integers(0, 50, (2, seq)), lengths=[seq, 1])
    before = set(store().root.iterdir())
    for seq in rng.integers(1, 301, 100):
        recorded.run(rng.integers(0, 50, (2, seq)), lengths=[seq, 1])
    assert set(store().root.iterdir()) == before
    assert recorded._program.recorded <= 32


def test_lists_are_their_sequences(engines) -> None:
    import cupy

    recorded, eager = engines
    rng = np.random.default_rng(3)
    ids = [cupy.asarray(rng.integers(0, 50, n)) for n in (5, 0, 130, 64, 1)]
    for mask in (None, "causal", "sliding:w=9", "longformer:w=4,g=1"):
        for one, got in zip(ids, recorded.run(ids, mask=mask), strict=True):
            assert isinstance(got, cupy.ndarray) and got.shape == (len(one), 64)
            if len(one):
                near(got.get(), eager.run(one[None], mask=mask)[0].get())


@pytest.mark.parametrize("mask", [None, "causal"])
def test_lists_of_other_lengths_replay_what_was_recorded(engines, mask) -> None:
    import cupy

    recorded, eager = engines
    packed = recorded._program.packed()
    rng, before = np.random.default_rng(4), packed._recordings.replayed
    for _ in range(8):  # of one number of tokens, when padded
        lengths = rng.multinomial(rng.integers(961, 1000), np.ones(9) / 9)
        ids = [cupy.asarray(rng.integers(0, 50, n)) for n in lengths]
        cupy.cuda.get_current_stream().synchronize()  # the other stream does not wait for copies
        with cupy.cuda.Stream(non_blocking=True) as stream:
            results = recorded.run(ids, mask=mask)
            stream.synchronize()
        for one, got in zip(ids, results, strict=True):
            near(got.get(), eager.run(one[None], mask=mask)[0].get())
    assert packed._recordings.replayed - before >= 6


def lists_of(rng: Any, kind: str) -> tuple[list[Any], list[Any]]:
    """Return sequences wherever they lie, of one number of tokens when padded, and on the host."""
    import cupy

    lengths = rng.multinomial(rng.integers(961, 1000), np.ones(9) / 9)
    lengths[:2] = 0, 1
    host = [rng.integers(0, 50, n) for n in lengths]
    if kind == "widths":
        dtypes = ["int64", "int32", "uint8", "uint64", "int16"] * 2
        given = [cupy.asarray(ids.astype(each)) for ids, each in zip(host, dtypes, strict=False)]
    elif kind == "strided":
        given = [cupy.asarray(np.repeat(ids[::-1], 3))[::-3] for ids in host]
    elif kind == "both":
        given = [cupy.asarray(ids) if number % 2 else ids for number, ids in enumerate(host)]
    else:
        given = host if kind == "here" else [cupy.asarray(ids.astype(kind)) for ids in host]
    return given, host


@pytest.mark.parametrize("kind", ["int32", "int64", "widths", "strided", "both", "here"])
@pytest.mark.parametrize("typed", [False, True])
def test_lists_wherever_their_sequences_lie(engines, kind, typed) -> None:
    import cupy

    recorded, eager = engines
    rng = np.random.default_rng(5)
    for _ in range(4):
        x, host = lists_of(rng, kind)
        types = [each % 2 for each in x] if typed else None
        for number, got in enumerate(recorded.run(x, token_types=types)):
            ids = host[number]
            assert got.shape == (len(ids), 64)
            if len(ids):
                one = eager.run(ids[None], token_types=ids[None] % 2 if typed else None)[0]
                near(got.get() if isinstance(got, cupy.ndarray) else got, one)


def test_lists_are_refused_for_what_one_of_them_holds(engines) -> None:
    import cupy

    recorded, _ = engines
    good, host = lists_of(np.random.default_rng(6), "int64")
    recorded.run(good)
    for bad in (50, -1, 2**31, 2**32, 2**32 + 1, -(2**63)):
        x = [each.copy() for each in good]
        x[4][3] = bad
        with pytest.raises(ArgumentError, match=rf"x\[4\]\[0, 3\]: got {bad}, expected"):
            recorded.run(x)
    for one, got in zip(host, recorded.run(good), strict=True):
        if len(one):
            near(got.get(), recorded.run(cupy.asarray(one[None]))[0].get())


def test_lists_of_one_size_in_threads(engines) -> None:
    """They share a mask and its ids, whose writers wait for each other's runs."""
    import cupy

    recorded, _ = engines
    rng = np.random.default_rng(7)
    every = [lists_of(rng, "int32")[0] for _ in range(4)]
    expected = [[each.get() for each in recorded.run(x)] for x in every]
    cupy.cuda.get_current_stream().synchronize()
    wrong: list[Any] = []

    def work(number: int) -> None:
        with cupy.cuda.Stream(non_blocking=True):
            for turn in range(12):
                which = (number + turn) % 4
                for got, want in zip(recorded.run(every[which]), expected[which], strict=True):
                    if not np.allclose(got.get(), want, atol=0.02):
                        wrong.append((number, turn))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert not wrong


def test_each_list_in_threads_is_refused_for_its_own_ids(engines) -> None:
    """They are looked at while the run goes on, beside it, when others write to the recording."""
    import cupy

    recorded, _ = engines
    rng = np.random.default_rng(8)
    every = [lists_of(rng, dtype)[0] for dtype in ("int32", "int64") * 2]
    for number, x in enumerate(every):
        recorded.run(x)
        x[4][number] = 50 if number % 2 else x[4][number]
    cupy.cuda.get_current_stream().synchronize()
    wrong: list[Any] = []

    def work(first: int) -> None:
        with cupy.cuda.Stream(non_blocking=True):
            for turn in range(24):
                number = (first + turn) % 4
                said = ""
                try:
                    recorded.run(every[number])  # nor is it waited for
                except ArgumentError as error:
                    said = str(error)
                if said.startswith(f"x[4][0, {number}]: got 50") != bool(number % 2):
                    wrong.append((first, turn, said))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert not wrong


def test_packed_hidden_states_are_those_of_each_alone() -> None:
    import cupy

    program = Program(paper_stack(2), backend="cuda", dtype="float16")
    packed = program.packed()
    assert packed is not None
    rng = np.random.default_rng(8)
    for turn in range(4):
        lengths = rng.multinomial(rng.integers(200, 250), np.ones(5) / 5)
        x = rng.standard_normal((1, int(lengths.sum()), WIDTH)).astype(np.float16)
        wide = cupy.asarray(np.concatenate([x, x * 0 + 7], axis=-1))
        given = [x, cupy.asarray(x), wide[..., :WIDTH]][turn % 3]
        got = packed.run({"x": given, "mask": masks.document(lengths)})["y"]
        assert got.shape == x.shape
        stops = np.cumsum(lengths)
        for stop, n in zip(stops, lengths, strict=True):
            part = cupy.asarray(x[:, stop - n : stop])
            alone = program.run({"x": part, "mask": masks.document([n])})["y"]
            near(got[:, stop - n : stop].get(), alone.get())


def test_a_run_inside_the_callers_own_graph() -> None:
    import cupy

    program = Program(paper_stack(2), backend="cuda")
    x = cupy.zeros((2, 64, WIDTH), cupy.float16)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        for _ in range(3):
            program.run({"x": x})
        stream.synchronize()
        stream.begin_capture()
        y = program.run({"x": x})["y"]
        graph = stream.end_capture()
        for seed in range(3):
            x[...] = cupy.asarray(np.random.default_rng(seed).standard_normal(x.shape))
            graph.launch(stream)
            stream.synchronize()
            near(y.get(), program.run({"x": x})["y"].get())


def test_too_little_memory_and_on(engines) -> None:
    import cupy

    from stof_cupy.errors import OutOfMemoryError

    recorded, eager = engines
    pool = cupy.get_default_memory_pool()
    ids = np.random.default_rng(4).integers(0, 50, (64, 256))
    expected = eager.run(ids)
    pool.free_all_blocks()
    pool.set_limit(size=pool.total_bytes() + (1 << 20))
    try:
        with pytest.raises(OutOfMemoryError, match="MiB for what lies between operators"):
            recorded.run(ids)
    finally:
        pool.set_limit(size=0)
    near(recorded.run(ids), expected)


def test_tuning_and_profile(tmp_path) -> None:
    import cupy

    from stof_cupy.fusion.store import SchemeStore

    store = SchemeStore(tmp_path)
    options = Options(tune="fast", tune_seconds=2, store=store)
    program = Program(paper_stack(3), backend="cuda", options=options)
    plain = Program(paper_stack(3), backend="cuda")
    x = cupy.asarray(np.random.default_rng(5).standard_normal((4, 128, WIDTH)).astype(np.float16))
    near(program.run({"x": x})["y"].get(), plain.run({"x": x})["y"].get())
    assert program.tuned({"x": x}).timed
    again = Program(paper_stack(3), backend="cuda", options=options)
    assert all(piece.cached for piece in again.tuned({"x": x}).pieces)
    profile = program.profile({"x": x}, repeat=3)
    assert 0 < sum(line.seconds for line in profile.lines) < 1


def test_another_device_than_the_current_one() -> None:
    import cupy

    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two GPUs")
    weights = models.random_weights(CONFIG, seed=3)
    engine = TransformerEngine(weights, config=CONFIG, backend="cuda", device=1)
    ids = np.random.default_rng(6).integers(0, 50, (2, 70))
    expected = TransformerEngine(weights, config=CONFIG, backend="numpy").run(ids)
    with cupy.cuda.Device(1):
        there = cupy.asarray(ids)
    with cupy.cuda.Device(0):
        for _ in range(3):
            got = engine.run(there)
            assert got.device.id == 1
            near(got.get(), expected)


def test_closing_frees_device_memory() -> None:
    import cupy

    weights = models.random_weights({**CONFIG, "hidden_size": 512, "intermediate_size": 2048})
    config = {**CONFIG, "hidden_size": 512, "intermediate_size": 2048}
    ids = np.random.default_rng(7).integers(0, 50, (8, 256))

    def once() -> int:
        with TransformerEngine(weights, config=config, backend="cuda") as engine:
            for _ in range(3):
                engine.run(ids)
        cupy.get_default_memory_pool().free_all_blocks()
        return int(cupy.cuda.runtime.memGetInfo()[0])

    once()
    free = [once() for _ in range(3)]
    assert max(free) - min(free) < 16 << 20


@pytest.mark.parametrize("tune", ["off", "fast"])
@pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["gpt2", "llama"])
def test_folded_norms_are_as_exact_as_others(config, tune, tmp_path) -> None:
    import cupy

    from stof_cupy.fusion.store import SchemeStore

    graph = models.build(config, models.random_weights(config, seed=5)).graph
    at = np.ascontiguousarray(np.broadcast_to(np.arange(150, dtype=np.int32), (3, 150)))
    ids = np.random.default_rng(8).integers(0, 50, at.shape, dtype=np.int32)
    given = {"ids": ids, "positions": at, "rows": at[:, :0]}
    given = {name: each for name, each in given.items() if name in graph.inputs}
    exact = Program(graph).run(given)["hidden"]
    errors = {}
    for fold in (False, True):
        store = SchemeStore(tmp_path)
        options = Options(tune=tune, tune_seconds=1, store=store, fold_norms=fold)
        with Program(graph, backend="cuda", dtype="float16", options=options) as program:
            on_gpu = {name: cupy.asarray(each) for name, each in given.items()}
            for _ in range(3):  # launched, recorded and replayed
                got = program.run(on_gpu)["hidden"].get().astype(np.float32)
            errors[fold] = float(np.abs(got - exact).max())
    assert errors[True] <= 2 * errors[False] + 1e-3, errors
