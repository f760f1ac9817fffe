"""Packed sequences give what each gives alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stof_cupy import masks, models
from stof_cupy.fusion import structured
from stof_cupy.graph import Graph, meaning
from stof_cupy.graph.registry import OPS
from stof_cupy.runtime.packing import (
    ANYWHERE,
    DOCUMENTS,
    POSITIONS,
    pack_graph,
    packed_mask,
    positions,
)
from tests.fusion.stacks import WIDTH, constant, paper_stack

LENGTHS = (5, 1, 0, 70, 64, 3)
SPECS = [None, "full", "causal", "sliding:w=3", "sliding:w=3,causal=1", "longformer:w=2,g=1",
         "dilated:w=2,d=3"]  # fmt: skip


def dense(mask: Any, length: int) -> Any:
    if mask is None:
        return np.ones((length, length), bool)
    made = masks.from_spec(mask, length) if isinstance(mask, str) else mask(length)
    return made.toarray() if hasattr(made, "toarray") else made


@pytest.mark.parametrize("mask", [*SPECS, lambda n: np.tri(n) > 0, lambda n: masks.causal(n)])
def test_the_mask_of_packed_sequences(mask: Any) -> None:
    got = packed_mask(mask, LENGTHS)
    expected = np.zeros((sum(LENGTHS),) * 2, bool)
    at = 0
    for length in LENGTHS:
        if length:
            expected[at : at + length, at : at + length] = dense(mask, length)
        at += length
    assert got.shape == expected.shape
    assert (got.toarray() == expected).all()


def test_masks_by_spec_are_kept() -> None:
    assert packed_mask("longformer:w=2,g=1", (9, 4)) is packed_mask("longformer:w=2,g=1", (9, 4))


def bert() -> Graph:
    config = {
        "model_type": "bert", "hidden_act": "gelu", "layer_norm_eps": 1e-12,
        "num_hidden_layers": 2, "hidden_size": 24, "num_attention_heads": 3,
        "intermediate_size": 40, "vocab_size": 50, "max_position_embeddings": 150,
        "type_vocab_size": 3,
    }  # fmt: skip
    return models.build(config, models.random_weights(config)).graph


def of_layers(mask: Any) -> dict[str, Any]:
    return dict.fromkeys(("mask.0", "mask.1"), mask)


@pytest.mark.parametrize("prepare", [lambda g: g, structured])
@pytest.mark.parametrize("mask", [None, "causal", "longformer:w=2,g=1"])
def test_a_packed_encoder_is_its_sequences_one_by_one(prepare: Any, mask: Any) -> None:
    graph = prepare(bert())
    packed = pack_graph(graph)
    assert packed is not None
    rng = np.random.default_rng(0)
    ids = [rng.integers(0, 50, length) for length in LENGTHS]
    types = [rng.integers(0, 3, length) for length in LENGTHS]
    got = meaning.evaluate(
        packed,
        {
            "ids": np.concatenate(ids)[None],
            "token_types": np.concatenate(types)[None],
            **of_layers(packed_mask(mask, LENGTHS)),
            POSITIONS: positions(LENGTHS),
        },
    )["hidden"]
    at = 0
    for one, kind in zip(ids, types, strict=True):
        if len(one):
            given = {"ids": one[None], "token_types": kind[None]}
            alone = meaning.evaluate(graph, given | of_layers(dense(mask, len(one))))["hidden"]
            np.testing.assert_allclose(got[:, at : at + len(one)], alone, atol=1e-9)
        at += len(one)


def test_attention_without_a_mask_gets_the_one_of_documents() -> None:
    g = Graph("bare")
    x = g.input("x", ("batch", "seq", WIDTH), "float")
    lengths = g.input("lengths", ("batch",), "lengths")
    heads = g.split_heads(x, heads=2)
    g.output("y", g.merge_heads(g.attention(heads, heads, heads, None, lengths)))
    packed = pack_graph(g)
    assert packed is not None and DOCUMENTS in packed.inputs and POSITIONS not in packed.inputs
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal((1, length, WIDTH)) for length in LENGTHS]
    given = {"x": np.concatenate(parts, axis=1), DOCUMENTS: packed_mask(None, LENGTHS)}
    got = meaning.evaluate(packed, given)["y"]
    alone = [meaning.evaluate(g, {"x": part})["y"] for part in parts if part.size]
    np.testing.assert_allclose(got, np.concatenate(alone, axis=1), atol=1e-12)


def test_what_depends_on_where_a_token_lies_is_not_packed() -> None:
    assert pack_graph(structured(paper_stack(1))) is not None
    assert pack_graph(paper_stack(1)) is None  # scores of all tokens

    def stands(g: Graph, x: Any) -> Any:
        at = g.input("at", ("seq",), "int")
        seen = g.input("mask", ("seq", "seq"), "mask")
        return g.attention(x, x, x, seen, None, constant(g, "bias", 8, 2), at)

    def of(build: Any, dims: Any = ("batch", "seq")) -> Graph:
        g = Graph("one", dims)
        g.output("y", build(g, g.input("x", ("batch", "seq", WIDTH), "float")))
        return g

    wrong = [
        of(lambda g, x: g.add(x, g.input("p", ("seq", WIDTH), "float"))),
        of(lambda g, x: g.gelu(g.transpose(x, axes=(1, 0, 2)))),
        of(lambda g, x: g.gelu(x), ("batch", "seq", "memory")),
        of(lambda g, x: g.gemm(g.input("z", ("seq", "batch", WIDTH), "float"),
                               constant(g, "w", WIDTH, WIDTH))),
        of(lambda g, x: g.softmax(x)),
        of(lambda g, x: stands(g, g.split_heads(x, heads=2))),
    ]  # fmt: skip
    assert [pack_graph(each) for each in wrong] == [None] * len(wrong)


def test_the_table_names_operators() -> None:
    assert set(OPS) >= ANYWHERE
