"""Shapes that operators give, and the message where inputs do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stof_cupy.errors import GraphError
from stof_cupy.graph import Graph, Node
from stof_cupy.graph.registry import OPS

HIDDEN = ("batch", "seq", 6)
HEADS = ("batch", 4, "seq", 5)


def build(op: str, shapes: dict[str, tuple[int | str, ...]], attrs: dict[str, Any]) -> Node:
    g = Graph("one", dims=("batch", "seq", "memory"))
    dtypes = {port.name: port.dtype for port in OPS[op].ports}
    inputs = {name: value(g, name, shape, dtypes[name]) for name, shape in shapes.items()}
    return g.apply(op, **inputs, **attrs)


def value(g: Graph, name: str, shape: tuple[int | str, ...], dtype: str) -> Node:
    """Return an input, or what there are no inputs of."""
    if dtype != "told":
        return g.input(name, shape, dtype)
    rows = g.input(name, (*shape[:-1], 3), "float")
    return g.told_gemm(rows, g.constant("told", np.ones((shape[-1], 3))))


PAIRS, SEVEN = ("batch", "seq", 2), ("batch", "seq", 7)

TURNED = {"x": HIDDEN, "w": (14, 6), "positions": ("batch", "seq")}
TURN = {"frequency": (1, 0.5), "heads": 3, "head_dim": 4}

GOOD = [
    ("gemm", {"x": HIDDEN, "w": (7, 6)}, {}, ("batch", "seq", 7)),
    ("gemm", {"x": (3, 6), "w": (7, 6), "bias": (7,), "residual": (3, 7)}, {}, (3, 7)),
    (
        "gemm",
        {"x": HIDDEN, "w": (8, 6), "bias": (8,), "residual": ("batch", "seq", 4)},
        {"activation": "silu", "gated": True},
        ("batch", "seq", 4),
    ),
    ("add", {"x": HIDDEN, "y": HIDDEN}, {}, HIDDEN),
    ("add", {"x": HIDDEN, "y": ("seq", 6)}, {}, HIDDEN),
    ("add", {"x": HIDDEN, "y": (6,)}, {}, HIDDEN),
    ("gelu", {"x": HIDDEN}, {}, HIDDEN),
    ("layer_norm", {"x": HIDDEN, "weight": (6,), "bias": (6,)}, {"eps": 1e-5}, HIDDEN),
    ("embedding", {"ids": ("batch", "seq"), "table": (9, 6)}, {}, HIDDEN),
    (
        "embedding",
        {
            "ids": ("batch", 8),
            "table": (9, 6),
            "position_table": (8, 6),
            "token_types": ("batch", 8),
            "type_table": (2, 6),
        },
        {},
        ("batch", 8, 6),
    ),
    ("split_heads", {"x": HIDDEN}, {"heads": 3}, ("batch", 3, "seq", 2)),
    ("merge_heads", {"x": HEADS}, {}, ("batch", "seq", 20)),
    ("attention", {"q": HEADS, "k": HEADS, "v": HEADS}, {}, HEADS),
    (
        "attention",
        {
            "q": HEADS,
            "k": ("batch", 2, "memory", 5),
            "v": ("batch", 2, "memory", 3),
            "mask": ("seq", "memory"),
            "lengths": ("batch",),
        },
        {"scale": 0.5, "softcap": 30},
        ("batch", 4, "seq", 3),
    ),
    ("matmul", {"x": HEADS, "y": ("batch", 4, 5, "memory")}, {}, ("batch", 4, "seq", "memory")),
    ("matmul", {"x": HIDDEN, "y": (6, 9)}, {}, ("batch", "seq", 9)),
    ("scale", {"x": HIDDEN}, {"factor": -2}, HIDDEN),
    ("softmax", {"x": HIDDEN}, {}, HIDDEN),
    (
        "masked",
        {"x": ("batch", 4, "seq", 9), "mask": ("seq", 9), "lengths": ("batch",)},
        {},
        ("batch", 4, "seq", 9),
    ),
    ("transpose", {"x": HEADS}, {"axes": [0, 2, 1, 3]}, ("batch", "seq", 4, 5)),
    ("columns", {"x": HIDDEN}, {"start": 0, "stop": 4}, ("batch", "seq", 4)),
    (
        "attention",
        {"q": HEADS, "k": HEADS, "v": HEADS, "relative_bias": (32, 4), "query_at": ("seq",)},
        {"bidirectional": False, "max_distance": 64},
        HEADS,
    ),
    ("rms_norm", {"x": HEADS, "weight": (5,)}, {"eps": 1e-5}, HEADS),
    ("mul", {"x": HIDDEN, "y": (6,)}, {}, HIDDEN),
    ("gated", {"x": HIDDEN, "y": HIDDEN}, {"activation": "gelu"}, HIDDEN),
    ("silu", {"x": HIDDEN}, {}, HIDDEN),
    ("relu", {"x": HIDDEN}, {}, HIDDEN),
    ("softcap", {"x": HIDDEN, "cap": (6,)}, {}, HIDDEN),
    ("rotary", {"x": HEADS, "positions": ("batch", "seq")}, {"frequency": (1, 0.5)}, HEADS),
    ("kv_cache", {"x": HEADS, "positions": ("batch", "seq")}, {"ring": True}, HEADS),
    (
        "kv_cache",
        {"x": HEADS, "positions": ("batch", "seq"), "cache": ("batch", 4, "memory", 5)},
        {},
        ("batch", 4, "memory", 5),
    ),
    ("take_rows", {"x": HIDDEN, "rows": ("batch", 2)}, {}, ("batch", 2, 6)),
    ("turned_gemm", {**TURNED, "bias": (14,)}, TURN, ("batch", "seq", 14)),
    ("turned_gemm", {**TURNED, "statistics": PAIRS}, TURN, ("batch", "seq", 14)),
    ("gemm", {"x": HIDDEN, "w": (7, 6), "statistics": PAIRS}, {}, ("batch", "seq", 7)),
    ("row_statistics", {"x": HIDDEN}, {"eps": 1e-5}, PAIRS),
    ("told_gemm", {"x": HIDDEN, "w": (7, 6), "residual": ("batch", "seq", 7)}, {}, SEVEN),
    ("told_rows", {"x": HIDDEN}, {}, HIDDEN),
    ("told_statistics", {"x": HIDDEN}, {"eps": 1e-5, "centred": False}, PAIRS),
]


@pytest.mark.parametrize(("op", "shapes", "attrs", "expected"), GOOD)
def test_shape(op, shapes, attrs, expected) -> None:  # type: ignore[no-untyped-def]
    node = build(op, shapes, attrs)
    assert node.shape == expected
    assert node.dtype == ("told" if op == "told_gemm" else "float")


def test_every_operator_is_tried() -> None:
    assert {op for op, *_ in GOOD} == set(OPS)


BAD = [
    ("gemm", {"x": HIDDEN, "w": (7, 6), "statistics": HIDDEN}, {}, r"statistics: got .* seq, 2\)"),
    ("turned_gemm", {**TURNED, "statistics": SEVEN}, TURN, r"statistics: got .* seq, 2\)"),
    ("turned_gemm", {**TURNED, "w": (8, 6)}, TURN, r"heads: got 3 of 4, expected .* 8 columns"),
    ("turned_gemm", TURNED, {**TURN, "head_dim": 3}, r"heads: got 3 of 3, expected .* even size"),
    ("turned_gemm", TURNED, {**TURN, "head_dim": 2}, r"frequency: got 2 numbers, .* at most 1"),
    ("turned_gemm", {**TURNED, "positions": ("batch", 3)}, TURN, r"positions: got \(batch, 3\)"),
    ("turned_gemm", {**TURNED, "bias": (6,)}, TURN, r"bias: got \(6,\), expected \(14,\)"),
    ("gemm", {"x": HIDDEN, "w": (6, 7)}, {}, r"w: got \(6, 7\), expected \(any, 6\); x has .*\(N"),
    ("gemm", {"x": (6,), "w": (7, 6)}, {}, r"x: got \(6,\), expected at least 2 dims"),
    ("gemm", {"x": HIDDEN, "w": (7, 6), "bias": (6,)}, {}, r"bias: got \(6,\), expected \(7,\)"),
    (
        "gemm",
        {"x": HIDDEN, "w": (6, 6), "residual": ("seq", "batch", 6)},
        {},
        r"residual: got \(seq, batch, 6\), expected \(batch, seq, 6\)",
    ),
    ("gemm", {"x": HIDDEN, "w": (8, 6)}, {"gated": True}, r"activation: got None, expected one"),
    (
        "gemm",
        {"x": HIDDEN, "w": (7, 6)},
        {"gated": True, "activation": "relu"},
        r"w: got \(7, 6\), expected an even number of rows",
    ),
    ("gemm", {"x": ("batch", "seq"), "w": (7, 6)}, {}, r"w: got \(7, 6\), expected \(any, seq\)"),
    ("add", {"x": (6,), "y": HIDDEN}, {}, r"y: got \(batch, seq, 6\), expected \(6,\)"),
    ("add", {"x": HIDDEN, "y": (1,)}, {}, r"y: got \(1,\), expected \(6,\)"),
    ("add", {"x": HIDDEN, "y": ("batch", 6)}, {}, r"y: got \(batch, 6\), expected \(seq, 6\)"),
    ("layer_norm", {"x": HIDDEN, "weight": (6,), "bias": (5,)}, {"eps": 1}, r"bias: got \(5,\)"),
    ("embedding", {"ids": (2,), "table": (9, 6)}, {}, r"ids: got \(2,\), expected 2 dims"),
    (
        "embedding",
        {"ids": (2, 9), "table": (9, 6), "position_table": (8, 6)},
        {},
        r"position_table: got 8 positions, expected at least 9",
    ),
    (
        "embedding",
        {"ids": (2, 9), "table": (9, 6), "token_types": (2, 9)},
        {},
        r"got only token_types, expected both or neither",
    ),
    ("split_heads", {"x": HIDDEN}, {"heads": 4}, r"got \(batch, seq, 6\), expected .* heads=4"),
    ("split_heads", {"x": ("batch", 6, "seq")}, {"heads": 2}, r"last dim of x: got seq"),
    ("merge_heads", {"x": HIDDEN}, {}, r"expected 4 dims"),
    (
        "attention",
        {"q": HEADS, "k": ("batch", 3, "seq", 5), "v": ("batch", 3, "seq", 5)},
        {},
        r"k: got 3 heads, expected a divisor of the 4 heads of q",
    ),
    (
        "attention",
        {"q": HEADS, "k": HEADS, "v": ("batch", 4, "memory", 5)},
        {},
        r"v: got \(batch, 4, memory, 5\), expected \(batch, 4, seq, any\)",
    ),
    (
        "attention",
        {"q": HEADS, "k": HEADS, "v": HEADS, "mask": ("seq", "memory")},
        {},
        r"mask: got \(seq, memory\), expected \(seq, seq\)",
    ),
    (
        "attention",
        {"q": HEADS, "k": HEADS, "v": HEADS, "lengths": ("seq",)},
        {},
        r"lengths: got \(seq,\), expected \(batch,\)",
    ),
    ("matmul", {"x": HIDDEN, "y": HIDDEN}, {}, r"y: got .*, expected \(batch, 6, any\)"),
    ("matmul", {"x": HIDDEN, "y": (5, 2)}, {}, r"y: got \(5, 2\), expected \(6, any\)"),
    ("masked", {"x": HEADS, "mask": ("seq", 6)}, {}, r"mask: got \(seq, 6\), expected \(seq, 5\)"),
    ("transpose", {"x": HIDDEN}, {"axes": (1, 0)}, r"x: got .*, expected 2 dims"),
    ("columns", {"x": HIDDEN}, {"start": 2, "stop": 7}, r"got 2:7, expected a part of 0:6"),
    ("columns", {"x": HIDDEN}, {"start": 2, "stop": 2}, r"columns: got 2:2"),
    (
        "attention",
        {"q": HEADS, "k": HEADS, "v": HEADS, "relative_bias": (32, 2)},
        {},
        r"relative_bias: got \(32, 2\), expected \(any, 4\)",
    ),
    (
        "attention",
        {"q": HEADS, "k": HEADS, "v": HEADS, "relative_bias": (32, 4), "query_at": ("batch",)},
        {},
        r"query_at: got \(batch,\), expected \(seq,\)",
    ),
    (
        "attention",
        {"q": HEADS, "k": HEADS, "v": HEADS, "query_at": ("seq",)},
        {},
        r"query_at: got an input, expected None: there is no relative_bias",
    ),
    (
        "attention",
        {"q": HEADS, "k": HEADS, "v": HEADS, "relative_bias": (7, 4)},
        {},
        r"relative_bias: got \(7, 4\), expected \(buckets, heads\), an even number of buckets",
    ),
    (
        "attention",
        {"q": HEADS, "k": HEADS, "v": HEADS, "relative_bias": (32, 4)},
        {"bidirectional": False, "max_distance": 16},
        r"max_distance: got 16, expected more than 16; distances below 16 have a bucket each",
    ),
    ("rms_norm", {"x": HEADS, "weight": (4,)}, {"eps": 1}, r"weight: got \(4,\), expected \(5,\)"),
    ("gated", {"x": HIDDEN, "y": (6,)}, {}, r"y: got \(6,\), expected \(batch, seq, 6\)"),
    ("softcap", {"x": HIDDEN, "cap": (5,)}, {}, r"cap: got \(5,\), expected \(6,\)"),
    (
        "rotary",
        {"x": HEADS, "positions": ("batch", "seq")},
        {"frequency": (1, 2, 3)},
        r"frequency: got 3 numbers, expected at most 2",
    ),
    (
        "rotary",
        {"x": HEADS, "positions": ("seq", "batch")},
        {"frequency": (1,)},
        r"positions: got \(seq, batch\), expected \(batch, seq\)",
    ),
    (
        "kv_cache",
        {"x": HEADS, "positions": ("batch", "seq"), "cache": ("batch", 2, "memory", 5)},
        {},
        r"cache: got \(batch, 2, memory, 5\), expected \(batch, 4, any, 5\)",
    ),
    ("take_rows", {"x": HIDDEN, "rows": ("seq", 2)}, {}, r"rows: got \(seq, 2\)"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "shapes", "attrs", "message"), BAD)
def test_clash_names_node_and_shapes(op, shapes, attrs, message):  # type: ignore[no-untyped-def]
    with pytest.raises(GraphError, match=rf"^%\d+ = {op}\(.*\): .*{message}"):
        build(op, shapes, attrs)


def test_the_failing_node_is_shown_as_it_was_written() -> None:
    g = Graph("named")
    x = g.input("x", ("batch", "seq", 384), "float")
    w = g.constant("encoder.layer.0.intermediate.dense.weight", np.zeros((1536, 768), np.float32))
    with pytest.raises(GraphError) as caught:
        g.gemm(x, w)
    assert str(caught.value) == (
        '%1 = gemm(%0, w:"encoder.layer.0.intermediate.dense.weight"): w: got (1536, 768), '
        "expected (any, 384); x has shape (batch, seq, 384); weights are stored (N, K)"
    )
