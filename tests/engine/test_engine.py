"""The engine: right results for every form of input, and a typed error for every wrong one."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse

from stof_cupy import TransformerEngine, masks
from stof_cupy.dtypes import as_dtype
from stof_cupy.errors import (
    ArgumentError,
    CheckpointNotFoundError,
    ConfigError,
    DTypeError,
    MissingDependencyError,
    StofWarning,
)

BATCH, SEQ = 3, 131


LENGTHS = np.array([SEQ, 70, 1], np.int32)


def window(seq: int) -> np.ndarray:
    i = np.arange(seq)
    return np.abs(i[:, None] - i) <= 5


# Right input


def test_padding_is_zero_and_changes_nothing(engine, ids):
    hidden = engine.run(ids, lengths=LENGTHS)
    assert hidden.shape == (BATCH, SEQ, 24) and hidden.dtype == np.float32
    for row, n, got in zip(ids, LENGTHS, hidden, strict=True):
        assert not got[n:].any()
        alone = engine.run(row[None, :n])[0]
        assert np.abs(got[:n] - alone).max() < 1e-5


def test_length_zero_is_all_padding(engine, ids):
    hidden = engine.run(ids, lengths=np.array([0, SEQ, 0]))
    assert not hidden[[0, 2]].any() and hidden[1].any()


def test_every_form_of_mask_is_the_same_mask(engine, ids):
    dense = window(SEQ)
    expected = engine.run(ids, mask=dense)
    assert np.abs(expected - engine.run(ids)).max() > 1e-2
    forms = [
        "sliding:w=5",
        masks.sliding_window(SEQ, window=5),
        masks.BsrMask.from_dense(dense),
        scipy.sparse.csr_array(dense),
        lambda seq: masks.sliding_window(seq, window=5),
        window,
    ]
    for mask in forms:
        assert np.array_equal(engine.run(ids, mask=mask), expected)


def test_mask_and_lengths_are_intersected(engine, ids):
    both = engine.run(ids, mask="sliding:w=5", lengths=LENGTHS)
    alone = engine.run(ids[1:2, :70], mask="sliding:w=5")
    assert np.abs(both[1, :70] - alone[0]).max() < 1e-5


def test_a_mask_that_keeps_nothing_in_a_row(engine, ids):
    dense = window(SEQ)
    dense[3] = False
    assert np.isfinite(engine.run(ids, mask=dense)).all()


def test_token_types(engine, ids):
    types = np.random.default_rng(5).integers(0, 3, ids.shape)
    typed = engine.run(ids, token_types=types)
    assert np.abs(typed - engine.run(ids)).max() > 1e-2
    assert np.array_equal(engine.run(ids, token_types=np.zeros_like(types)), engine.run(ids))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int64", "uint64"])
def test_any_integer_type(engine, ids, dtype):
    assert np.array_equal(engine.run(ids.astype(dtype)), engine.run(ids))


def test_strided_and_read_only_ids(engine, ids):
    expected = engine.run(ids)
    wide = np.repeat(np.repeat(ids, 2, axis=0), 3, axis=1)
    views = [wide[::2, ::3], np.asfortranarray(ids), ids[::-1][::-1], ids.tolist()]
    frozen = ids.copy()
    frozen.flags.writeable = False
    for view in [*views, frozen]:
        assert np.array_equal(engine.run(view), expected)


def test_inputs_are_not_written_to(engine, ids):
    before = ids.copy(), LENGTHS.copy()
    engine.run(ids, lengths=LENGTHS)[:] = 7
    assert np.array_equal(ids, before[0]) and np.array_equal(LENGTHS, before[1])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_low_precision_on_numpy(weights, engine, ids, dtype, config):
    low = TransformerEngine(weights, config=config, backend="numpy", dtype=dtype)
    hidden = low.run(ids, lengths=LENGTHS)
    assert hidden.dtype == as_dtype(dtype)
    assert np.array_equal(hidden, engine.run(ids, lengths=LENGTHS).astype(as_dtype(dtype)))


def test_torch_in_torch_out(engine, ids):
    torch = pytest.importorskip("torch")
    hidden = engine.run(torch.from_numpy(ids), lengths=torch.from_numpy(LENGTHS))
    assert isinstance(hidden, torch.Tensor)
    assert np.array_equal(hidden.numpy(), engine.run(ids, lengths=LENGTHS))
    masked = engine.run(torch.from_numpy(ids), mask=torch.from_numpy(window(SEQ)))
    assert np.array_equal(masked.numpy(), engine.run(ids, mask="sliding:w=5"))


def test_jax_in_jax_out(engine, ids):
    jax = pytest.importorskip("jax")
    hidden = engine.run(jax.numpy.asarray(ids))
    assert isinstance(hidden, jax.Array)
    assert np.array_equal(np.asarray(hidden), engine.run(ids))


def test_threads_share_an_engine(engine, ids):
    expected = [engine.run(ids, mask=f"sliding:w={w}") for w in range(4)]
    got: dict[int, np.ndarray] = {}

    def work(w: int) -> None:
        got[w] = engine.run(ids, mask=f"sliding:w={w}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert all(np.array_equal(got[w], expected[w]) for w in range(4))


def test_weights_of_another_type(weights, engine, ids, config):
    low = {name: array.astype(np.float16) for name, array in weights.items()}
    hidden = TransformerEngine(low, config=config, backend="numpy").run(ids)
    assert hidden.dtype == np.float32
    assert 0 < np.abs(hidden - engine.run(ids)).max() < 0.05


def test_explain_says_where_and_what(engine):
    text = engine.explain()
    assert "bert" in text and "NumPy, float32" in text
    assert "attention(" in text and engine.graph.show() in text


def test_epilogues_are_fused(engine):
    ops = [node.op for node in engine.graph.nodes()]
    assert "gelu" not in ops and "add" not in ops and ops.count("gemm") == 8


# Checkpoint directories and sentences


def test_encode_is_the_mean_of_run(checkpoint, ids):
    engine = TransformerEngine(checkpoint, backend="numpy")
    lengths = [5, 131, 2, 64, 65]
    rows = [np.resize(ids, n).tolist() for n in lengths]
    sentences = [" ".join(f"w{i}" for i in row) for row in rows]
    vectors = engine.encode(sentences, mask="sliding:w=7", batch_size=2)
    assert vectors.dtype == np.float32 and vectors.shape == (5, 24)
    for row, vector in zip(rows, vectors, strict=True):
        mean = engine.run([row], mask="sliding:w=7")[0].astype(np.float64).mean(axis=0)
        assert np.abs(vector - mean / np.linalg.norm(mean)).max() < 1e-5


def test_encode_of_nothing(checkpoint):
    engine = TransformerEngine(checkpoint, backend="numpy")
    assert engine.encode([]).shape == (0, 24)


def test_progress_bar_goes_to_stderr(checkpoint, capsys):
    pytest.importorskip("tqdm")
    TransformerEngine(checkpoint, backend="numpy").encode(["w1", "w2"], progress=True)
    out, err = capsys.readouterr()
    assert not out and "2/2" in err


def test_encode_errors(checkpoint, engine):
    with pytest.raises(ArgumentError, match=r"tokenizer\.json"):
        engine.encode(["w1"])
    reader = TransformerEngine(checkpoint, backend="numpy")
    with pytest.raises(DTypeError, match="sequence of str"):
        reader.encode("w1")
    for size in (0, 1.5, "x", True, None):
        with pytest.raises(ArgumentError, match="batch_size"):
            reader.encode(["w1"], batch_size=size)
    for length in (0, 151, 2.0, "x", True):
        with pytest.raises(ArgumentError, match="max_length"):
            reader.encode(["w1"], max_length=length)


def test_batches_of_a_small_integer_type(checkpoint):
    engine = TransformerEngine(checkpoint, backend="numpy")
    sentences = [f"w{i % 9}" for i in range(300)]
    vectors = engine.encode(sentences, batch_size=np.uint8(200))
    assert np.array_equal(vectors, engine.encode(sentences, batch_size=200))


@pytest.mark.parametrize("rows", [None, 5, [5], "w1", [[1], None]])
def test_detokenize_of_what_is_no_rows(checkpoint, rows):
    with pytest.raises(DTypeError, match=r"rows: got .*, expected a sequence of sequences"):
        TransformerEngine(checkpoint, backend="numpy").detokenize(rows)


def test_encode_of_a_generator(checkpoint):
    engine = TransformerEngine(checkpoint, backend="numpy")
    vectors = engine.encode(f"w{i}" for i in range(3))
    assert np.array_equal(vectors, engine.encode(["w0", "w1", "w2"]))


@pytest.mark.parametrize("others", [[], ["w1 w2"]])
def test_sentence_without_tokens_is_zero_in_any_batch(checkpoint, others):
    vectors = TransformerEngine(checkpoint, backend="numpy").encode(["", *others, " "])
    assert not vectors[[0, -1]].any() and vectors[1:-1].any(axis=1).all()


def test_encode_pools_and_cuts_as_the_checkpoint_says(checkpoint):
    (checkpoint / "1_Pooling").mkdir()
    (checkpoint / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    (checkpoint / "sentence_bert_config.json").write_text('{"max_seq_length": 3}')
    engine = TransformerEngine(checkpoint, backend="numpy")

    def first(*row: int) -> np.ndarray:
        hidden = engine.run([row])[0, 0]
        return hidden / np.linalg.norm(hidden)

    with pytest.warns(StofWarning, match="1 of 2 are longer than 3 tokens") as caught:
        vectors = engine.encode(["w7 w1 w2 w3 w4", "w8"])
    assert [w.filename for w in caught] == [__file__]
    assert np.abs(vectors - [first(7, 1, 2), first(8)]).max() < 1e-6
    whole = engine.encode(["w7 w1 w2 w3 w4"], max_length=5)
    assert np.abs(whole - first(7, 1, 2, 3, 4)).max() < 1e-6
    assert engine.run(np.zeros((1, 150), int)).shape == (1, 150, 24)


def test_sentence_files_beyond_this_matter_to_encode_alone(checkpoint):
    (checkpoint / "1_Pooling").mkdir()
    (checkpoint / "1_Pooling" / "config.json").write_text('{"pooling_mode_max_tokens": true}')
    (checkpoint / "sentence_bert_config.json").write_text('{"max_seq_length": 512}')
    engine = TransformerEngine(checkpoint, backend="numpy")
    assert engine.run([[1, 2]]).shape == (1, 2, 24)
    with pytest.raises(ConfigError, match="max_tokens"):
        engine.encode(["w1"])
    (checkpoint / "1_Pooling" / "config.json").unlink()
    with pytest.warns(StofWarning, match="longer than 150 tokens"):  # 512 is more than it takes
        engine.encode(["w1 " * 151])


@pytest.mark.parametrize("dtype", [np.float16, np.dtype("float16"), "float16", np.dtype("<f2")])
def test_dtype_by_name_or_object(weights, config, dtype):
    engine = TransformerEngine(weights, config=config, backend="numpy", dtype=dtype)
    assert engine.dtype == "float16" and type(engine.dtype) is str


def test_float32_weights_are_shared_as_documented(weights, config, ids):
    own = {name: array.copy() for name, array in weights.items()}
    engine = TransformerEngine(own, config=config, backend="numpy")
    table = engine.graph.constants["embeddings.word_embeddings.weight"]
    assert np.shares_memory(table, own["embeddings.word_embeddings.weight"])
    assert "not copied" in TransformerEngine.__doc__


def test_missing_directory():
    with pytest.raises(CheckpointNotFoundError, match="/nowhere"):
        TransformerEngine("/nowhere", backend="numpy")


def test_missing_extra_is_named(checkpoint, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'stof-cupy\[models\]'"):
        TransformerEngine(checkpoint, backend="numpy")


def test_config_replaces_that_of_the_directory(checkpoint, config):
    with pytest.raises(ConfigError, match="relu"):
        TransformerEngine(checkpoint, config=config | {"hidden_act": "relu"}, backend="numpy")
