"""The engine on CUDA: the same kind out as in, everything checked before a launch."""

from __future__ import annotations

import numpy as np
import pytest

from stof_cupy import TransformerEngine, masks, models
from stof_cupy.dtypes import as_dtype
from stof_cupy.errors import ArgumentError, DeviceError, ShapeError
from stof_cupy.jit import device as gpu

pytestmark = pytest.mark.gpu

CONFIG = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "num_hidden_layers": 2,
    "hidden_size": 72,
    "num_attention_heads": 3,
    "intermediate_size": 88,
    "vocab_size": 50,
    "max_position_embeddings": 150,
    "type_vocab_size": 2,
}
LENGTHS = np.array([131, 70, 1], np.int32)
TOLERANCE = {"float16": 0.02, "bfloat16": 0.15}
"""Loose: these tests are of plumbing, the budgets of tests/parity are of accuracy."""


@pytest.fixture(scope="module")
def weights() -> dict[str, np.ndarray]:
    return models.random_weights(CONFIG, seed=3)


@pytest.fixture(scope="module")
def ids() -> np.ndarray:
    return np.random.default_rng(4).integers(0, 50, (3, 131), dtype=np.int32)


@pytest.fixture(scope="module")
def expected(weights, ids) -> np.ndarray:
    engine = TransformerEngine(weights, config=CONFIG, backend="numpy")
    return engine.run(ids, lengths=LENGTHS, mask="longformer:w=9,g=2")


@pytest.fixture(scope="module", params=["float16", "bfloat16"])
def engine(request, weights) -> TransformerEngine:
    return TransformerEngine(weights, config=CONFIG, backend="cuda", dtype=request.param)


def close(got: np.ndarray, expected: np.ndarray, dtype: str) -> bool:
    return float(np.abs(got.astype(np.float32) - expected).max()) < TOLERANCE[dtype]


def test_numpy_in_numpy_out(engine, ids, expected):
    hidden = engine.run(ids, lengths=LENGTHS, mask="longformer:w=9,g=2")
    assert isinstance(hidden, np.ndarray) and hidden.dtype == as_dtype(engine.dtype)
    assert close(hidden, expected, engine.dtype)
    assert not hidden[1, 70:].any() and not hidden[2, 1:].any()


def test_cupy_in_cupy_out(engine, ids, expected):
    import cupy

    hidden = engine.run(cupy.asarray(ids), lengths=cupy.asarray(LENGTHS), mask="longformer:w=9,g=2")
    assert isinstance(hidden, cupy.ndarray)
    assert close(hidden.get(), expected, engine.dtype)


def test_strided_cupy_ids(engine, ids):
    import cupy

    wide = cupy.repeat(cupy.asarray(ids), 2, axis=1)[:, ::2]
    assert not wide.flags.c_contiguous
    assert np.array_equal(engine.run(wide).get(), engine.run(ids))


def test_lengths_and_ids_may_lie_apart(engine, ids):
    import cupy

    mixed = engine.run(cupy.asarray(ids), lengths=LENGTHS)
    assert np.array_equal(mixed.get(), engine.run(ids, lengths=cupy.asarray(LENGTHS)))


def test_torch_on_cuda(engine, ids, expected):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    x = torch.from_numpy(ids).cuda()
    hidden = engine.run(x, lengths=torch.from_numpy(LENGTHS), mask="longformer:w=9,g=2")
    assert hidden.is_cuda and hidden.dtype == getattr(torch, engine.dtype)
    assert close(hidden.float().cpu().numpy(), expected, engine.dtype)


def test_cupy_mask(weights, engine, ids):
    import cupy

    i = cupy.arange(131)
    dense = cupy.abs(i[:, None] - i) <= 5
    on_numpy = TransformerEngine(weights, config=CONFIG, backend="numpy")
    expected = on_numpy.run(ids, mask="sliding:w=5")
    # Not as the engine's own with that pattern, bit for bit: of a mask on the GPU attention knows
    # less, and may take another kernel.
    assert close(engine.run(ids, mask=dense), expected, engine.dtype)


@pytest.mark.parametrize("lead", [(3,), (1, 3), (3, 1), (3, 3)], ids=str)
def test_masks_with_leading_axes(weights, engine, ids, lead):
    import cupy

    mask = np.random.default_rng(6).random((*lead, 131, 131)) < 0.2
    on_numpy = TransformerEngine(weights, config=CONFIG, backend="numpy")
    expected = on_numpy.run(ids, lengths=LENGTHS, mask=mask)
    for given in (mask, cupy.asarray(mask), masks.MaskStack.from_dense(mask)):
        hidden = engine.run(ids, lengths=LENGTHS, mask=given)
        assert close(hidden, expected, engine.dtype)
        assert not hidden[1, 70:].any() and not hidden[2, 1:].any()


def test_other_streams(engine, ids):
    """Ids that a stream still writes are read after it, and the result is ready on that stream."""
    import cupy

    expected = engine.run(ids)
    with cupy.cuda.Stream(non_blocking=True):
        late = cupy.zeros_like(cupy.asarray(ids))
        cupy.random.rand(1 << 22).sort()
        late += cupy.asarray(ids)
        hidden = engine.run(late)
        assert np.array_equal(hidden.get(), expected)


def test_a_run_inside_the_callers_own_graph(engine, ids):
    """T26: what it is given is read anew at every launch, and what is wrong shows in its rows."""
    import cupy

    x, lengths = cupy.asarray(ids, np.int64), cupy.asarray(LENGTHS)
    how = {"lengths": lengths, "mask": "sliding:w=9"}
    pool = cupy.cuda.MemoryPool()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        for _ in range(3):
            engine.run(x, **how)
        stream.synchronize()
        with cupy.cuda.using_allocator(pool.malloc):
            stream.begin_capture()
            hidden = engine.run(x, **how)
            graph = stream.end_capture()
        for turn in range(3):
            x[...] = cupy.asarray(np.roll(ids, turn, axis=1))
            lengths[...] = cupy.asarray(np.roll(LENGTHS, turn))
            graph.launch(stream)
            assert close(hidden.get(), engine.run(x, **how).get(), engine.dtype)
        lengths[...] = 131
        x[1, 2] = 2**32
        graph.launch(stream)
        wrong = cupy.isnan(hidden.astype(np.float32)).any(axis=(1, 2)).get()
        assert wrong.tolist() == [False, True, False]


@pytest.mark.parametrize("value", [50, -1, 2**32])
def test_id_out_of_vocabulary_on_the_gpu(engine, ids, value):
    import cupy

    bad = cupy.asarray(ids, dtype=np.int64)
    bad[1, 2] = value
    with pytest.raises(ArgumentError, match=rf"x\[1, 2\].*{value}.*0 to 49"):
        engine.run(bad)
    # The context survives: rows of bad ids are NaN, and nothing is read from outside.
    assert np.isfinite(engine.run(ids).astype(np.float32)).all()


def test_lengths_out_of_range_on_the_gpu(engine, ids):
    import cupy

    with pytest.raises(ArgumentError, match=r"lengths\[2\].*132"):
        engine.run(cupy.asarray(ids), lengths=cupy.asarray([1, 2, 132]))
    with pytest.raises(ShapeError, match="lengths"):
        engine.run(cupy.asarray(ids), lengths=cupy.asarray([1, 2]))


def test_cupy_in_and_out_of_the_numpy_backend(weights, ids):
    import cupy

    engine = TransformerEngine(weights, config=CONFIG, backend="numpy")
    hidden = engine.run(cupy.asarray(ids))
    assert isinstance(hidden, cupy.ndarray)
    assert np.array_equal(hidden.get(), engine.run(ids))


def test_auto_is_cuda_where_there_is_a_gpu(weights, monkeypatch):
    monkeypatch.delenv("STOF_BACKEND", raising=False)
    engine = TransformerEngine(weights, config=CONFIG)
    assert (engine.backend, engine.dtype) == ("cuda", "float16")
    assert "CUDA device" in engine.explain()


def test_no_such_device(weights):
    with pytest.raises(DeviceError, match="99"):
        TransformerEngine(weights, config=CONFIG, backend="cuda", device=99)


def test_ids_on_another_device(weights, ids):
    import cupy

    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two GPUs")
    engine = TransformerEngine(weights, config=CONFIG, backend="cuda", device=1)
    hidden = engine.run(cupy.asarray(ids))
    assert hidden.device.id == 0 and cupy.cuda.Device().id == 0
    assert np.array_equal(hidden.get(), engine.run(ids))
    assert gpu.facts(1).name
