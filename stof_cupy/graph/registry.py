"""Every operator of the graph, in one table: class, inputs, attributes, shape rule and meaning.

A new operator is one entry of :data:`OPS` (the builder method of `Graph` comes from it) and one in
the executor's table of calls. The classes are those of the paper (STOF, arXiv 2506.06095, section
4.3), compute-intensive and memory-intensive; a ``view`` moves no data and a ``leaf`` is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from stof_cupy.graph import meaning, meaning_decoder, primitives, shapes, shapes_decoder
from stof_cupy.graph.frequencies import Frequencies
from stof_cupy.graph.opdef import (
    DTYPES,
    REQUIRED,
    Attr,
    OpDef,
    Port,
    count,
    finite,
    finite_or_none,
    flag,
    one_of,
    ports,
    positive_float,
    positive_int,
    positive_or_none,
)

__all__ = ["DTYPES", "OPS", "REQUIRED", "Attr", "OpDef", "Port"]

_TABLE = (
    OpDef(
        "gemm", "CI", ports("x w", "bias residual statistics"),
        (
            Attr("activation", *one_of(None, "gelu", "gelu_tanh", "relu", "silu"), default=None),
            Attr("gated", "True or False", flag, default=False),
        ),
        shapes.gemm, meaning.gemm,
        "``activation(x @ w.T + bias) + residual``; w is stored (N, K). Gated, the activation of "
        "the first half of the columns multiplies the second. With the statistics of x, rows of "
        "``x @ w.T`` are divided by their deviation.",
    ),
    OpDef(
        "turned_gemm", "CI", ports("x w positions:int", "bias statistics"),
        (
            Attr("frequency", "finite numbers, one a pair", Frequencies),
            Attr("heads", "an int of at least 1", positive_int),
            Attr("head_dim", "an int of at least 1", positive_int),
            Attr("interleaved", "True or False", flag, default=False),
            Attr("magnitude", "a positive number", positive_float, default=1.0),
        ),
        shapes_decoder.turned_gemm, meaning_decoder.turned_gemm,
        "``x @ w.T + bias``, of whose columns the leading heads are turned as by rotary; w is "
        "stored (N, K). Statistics are as of gemm.",
    ),
    OpDef(
        "row_statistics", "MI", ports("x"),
        (
            Attr("eps", "a positive number", positive_float),
            Attr("centred", "True or False", flag, default=True),
        ),
        shapes.row_statistics, meaning.row_statistics,
        "Mean of the last axis, and ``1 / sqrt(variance + eps)``; not centred, the mean is 0.",
    ),
    OpDef(
        "told_gemm", "CI", ports("x w", "bias residual statistics"),
        (Attr("activation", *one_of(None, "gelu", "gelu_tanh", "relu", "silu"), default=None),),
        shapes.told_gemm, meaning.told_gemm,
        "As gemm, with what it tells of its rows: for told_rows and told_statistics alone.",
        dtype="told",
    ),
    OpDef(
        "told_rows", "view", ports("x:told"), (),
        shapes.elementwise, meaning.told_rows,
        "The rows of a told_gemm.",
    ),
    OpDef(
        "told_statistics", "MI", ports("x:told"),
        (
            Attr("eps", "a positive number", positive_float),
            Attr("centred", "True or False", flag, default=True),
        ),
        shapes.row_statistics, meaning.told_statistics,
        "The row_statistics of a told_gemm, without another look at its rows.",
    ),
    OpDef(
        "attention", "CI", ports("q k v", "mask:mask lengths:lengths relative_bias query_at:int"),
        (
            Attr("scale", "a finite number, or None: 1 / sqrt(head_dim)", finite_or_none, None),
            Attr("softcap", "a positive number, or None", positive_or_none, None),
            Attr("bidirectional", "True or False", flag, default=True),
            Attr("max_distance", "an int of at least 1", positive_int, default=128),
        ),
        shapes.attention, meaning.attention,
        "``softmax(scale * q @ k.T) @ v`` over the kept elements; a row that keeps none is 0. With "
        "a softcap, scores are ``softcap * tanh(scores / softcap)``; relative_bias is T5's, see "
        "`stof_cupy.ops.relative_bias.RelativeBias`, which the last two attributes belong to. It "
        "counts from the keys at which queries stand, ``query_at``, without which they are the "
        "last ones; on a GPU nobody looks whether there are such keys.",
    ),
    OpDef(
        "matmul", "CI", ports("x y"), (),
        primitives.matmul_shape, primitives.matmul,
        "``x @ y``, batched over leading axes that are equal; a y of two axes is for all of them.",
    ),
    OpDef(
        "scale", "MI", ports("x"), (Attr("factor", "a finite number", finite),),
        shapes.elementwise, primitives.scale,
        "``x * factor``.",
    ),
    OpDef(
        "masked", "MI", ports("x", "mask:mask lengths:lengths"), (),
        primitives.masked_shape, primitives.masked,
        "Scores where a query may attend to a key, -inf elsewhere.",
    ),
    OpDef(
        "softmax", "MI", ports("x"), (),
        shapes.elementwise, primitives.softmax,
        "Softmax over the last axis; a row of nothing but -inf is 0.",
    ),
    OpDef(
        "transpose", "view", ports("x"),
        (Attr("axes", "the axes in their new order", primitives.to_axes),),
        primitives.transpose_shape, primitives.transpose,
        "View x with its axes in another order.",
    ),
    OpDef(
        "columns", "view", ports("x"),
        (
            Attr("start", "an int of at least 0", count),
            Attr("stop", "an int of at least 1", positive_int),
        ),
        primitives.columns_shape, primitives.columns,
        "View ``x[..., start:stop]``.",
    ),
    OpDef(
        "layer_norm", "MI", ports("x weight bias"),
        (Attr("eps", "a positive number", positive_float),),
        shapes.layer_norm, meaning.layer_norm,
        "Normalise the last axis to mean 0 and variance 1, then ``* weight + bias``.",
    ),
    OpDef(
        "add", "MI", ports("x y"), (),
        shapes.add, meaning.add,
        "``x + y``; y broadcasts over the leading axes of x.",
    ),
    OpDef(
        "gelu", "MI", ports("x"),
        (Attr("approximate", *one_of("none", "tanh"), default="none"),),
        shapes.elementwise, meaning.gelu,
        "The Gaussian error linear unit, by erf or by its tanh approximation.",
    ),
    OpDef(
        "embedding", "MI",
        ports("ids:int table", "position_table token_types:int type_table"), (),
        shapes.embedding, meaning.embedding,
        "``table[ids] + position_table[arange(seq)] + type_table[token_types]``.",
    ),
    OpDef(
        "rms_norm", "MI", ports("x weight"),
        (Attr("eps", "a positive number", positive_float),),
        shapes_decoder.rms_norm, meaning_decoder.rms_norm,
        "Divide the last axis by the root of its mean square, then ``* weight``.",
    ),
    OpDef(
        "mul", "MI", ports("x y"), (),
        shapes.add, meaning_decoder.mul,
        "``x * y``; y broadcasts over the leading axes of x.",
    ),
    OpDef(
        "gated", "MI", ports("x y"),
        (Attr("activation", *one_of("silu", "gelu", "gelu_tanh", "relu"), default="silu"),),
        shapes_decoder.pair, meaning_decoder.gated,
        "``activation(x) * y``.",
    ),
    OpDef(
        "silu", "MI", ports("x"), (),
        shapes.elementwise, meaning_decoder.silu,
        "``x / (1 + exp(-x))``.",
    ),
    OpDef(
        "relu", "MI", ports("x"), (),
        shapes.elementwise, meaning_decoder.relu,
        "``max(x, 0)``.",
    ),
    OpDef(
        "softcap", "MI", ports("x cap"), (),
        shapes_decoder.softcap, meaning_decoder.softcap,
        "``cap * tanh(x / cap)``.",
    ),
    OpDef(
        "rotary", "MI", ports("x positions:int"),
        (
            Attr("frequency", "finite numbers, one a pair", Frequencies),
            Attr("interleaved", "True or False", flag, default=False),
            Attr("magnitude", "a positive number", positive_float, default=1.0),
        ),
        shapes_decoder.rotary, meaning_decoder.rotary,
        "Turn pairs of elements of each head by ``position * frequency``: (i, i + half) or, "
        "interleaved, (2i, 2i + 1).",
    ),
    OpDef(
        "kv_cache", "MI", ports("x positions:int", "cache:cache"),
        (Attr("ring", "True or False", flag, False),),
        shapes_decoder.kv_cache, meaning_decoder.kv_cache,
        "The cache after x has been written into it at its positions; without one, x. A run writes "
        "into the array it is given. In a ring a position is taken modulo the keys.",
    ),
    OpDef(
        "take_rows", "MI", ports("x rows:int"), (),
        shapes_decoder.take_rows, meaning_decoder.take_rows,
        "The tokens of x numbered ``rows``, counted across the batch.",
    ),
    OpDef(
        "split_heads", "view", ports("x"),
        (Attr("heads", "an int of at least 1", positive_int),),
        shapes.split_heads, meaning.split_heads,
        "View (batch, seq, heads * head_dim) as (batch, heads, seq, head_dim).",
    ),
    OpDef(
        "merge_heads", "view", ports("x"), (),
        shapes.merge_heads, meaning.merge_heads,
        "View (batch, heads, seq, head_dim) as (batch, seq, heads * head_dim).",
    ),
)  # fmt: skip

OPS: Mapping[str, OpDef] = MappingProxyType({op.name: op for op in _TABLE})
"""All computed operators by name; the leaves, ``input`` and ``constant``, are not among them."""
