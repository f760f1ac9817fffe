"""BERT encoders: a checkpoint's names to the graph of its hidden states.

Post-LN, learned positions, token types; Devlin et al., arXiv 1810.04805. The graph holds primitive
nodes only; :mod:`stof_cupy.fusion` folds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stof_cupy.errors import ConfigError, mismatch
from stof_cupy.models import LayerMask, Model, shown
from stof_cupy.models.fields import INERT, Fields
from stof_cupy.models.layers import tied_matrix
from stof_cupy.models.pooling import pooler_of

if TYPE_CHECKING:
    from stof_cupy.graph import Graph, Node
    from stof_cupy.models.weights import Weights

__all__ = ["PREFIX", "UNUSED", "BertConfig", "BertLayers", "build"]

_GELU = {"gelu": "none", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}
"""``hidden_act`` -> the `approximate` of the gelu op."""

_FIXED: dict[str, tuple[Any, ...]] = {
    "position_embedding_type": ("absolute", None),
    "is_decoder": (False, None),
    "is_encoder_decoder": (False, None),
    "add_cross_attention": (False, None),
    "pruned_heads": ({}, None),
}
"""Fields that change the mathematics, with the values that leave it as it is here."""

PREFIX = "bert."

_HEAD = "cls.predictions"
"""The head that guesses masked tokens; its output is there where its weights are."""

UNUSED = ("embeddings.position_ids", "pooler.*", "cls.*", "classifier.*", "qa_outputs.*")
"""Weights of parts after the hidden states."""


@dataclass(frozen=True)
class BertConfig:
    """The fields of ``config.json`` that shape the encoder, under their Hugging Face names."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    type_vocab_size: int
    layer_norm_eps: float
    hidden_act: str

    @classmethod
    def parse(
        cls, config: Mapping[str, Any], family: str = "BERT", *own: str, model_type: str = "bert"
    ) -> BertConfig:
        """Check `config` field by field.

        Parameters
        ----------
        config : mapping
        family, model_type : str
            Its name for people and for machines.
        *own : str
            Fields that the family reads itself.

        Raises
        ------
        ConfigError
            Naming the first field that is missing, unknown, of a wrong type or unsupported.
        """
        for field, allowed in {**_FIXED, "model_type": (model_type,)}.items():
            if field in config and config[field] not in allowed:
                raise ConfigError(
                    mismatch(f"config[{field!r}]", repr(config[field]), repr(allowed[0]))
                )
        fields = Fields(config, family)
        sizes = {
            name: fields.size(name, least=0 if name == "num_hidden_layers" else 1)
            for name in cls.__dataclass_fields__
            if name not in ("layer_norm_eps", "hidden_act")
        }
        eps = fields.number("layer_norm_eps")
        if eps >= 1:
            raise fields.error("layer_norm_eps", "a number in (0, 1)")
        act = config.get("hidden_act")
        if not isinstance(act, str) or act not in _GELU:
            expected = f"one of {', '.join(map(repr, _GELU))}"
            raise ConfigError(
                mismatch("config['hidden_act']", shown(config, "hidden_act"), expected)
            )
        if sizes["hidden_size"] % sizes["num_attention_heads"]:
            raise ConfigError(
                mismatch(
                    "config['hidden_size']",
                    sizes["hidden_size"],
                    f"a multiple of config['num_attention_heads'] = {sizes['num_attention_heads']}",
                )
            )
        known = {*cls.__dataclass_fields__, *_FIXED, *INERT.split(), "model_type", *own}
        unknown = sorted(set(config) - known, key=str)
        if unknown:
            raise ConfigError(
                mismatch(
                    f"config[{unknown[0]!r}]",
                    repr(config[unknown[0]]),
                    f"only fields that a {family} config has",
                    "remove it if it does not change the model",
                )
            )
        return cls(layer_norm_eps=eps, hidden_act=act, **sizes)


def build(config: Mapping[str, Any], weights: Weights) -> Model:
    """Build the graph of a BERT encoder's last hidden states.

    Parameters
    ----------
    config : mapping
        A Hugging Face BERT config.
    weights : Weights
        Under Hugging Face names, without the prefix ``bert.``.

    Raises
    ------
    ConfigError, WeightError
        Naming the field or weight that is wrong.
    """
    from stof_cupy.graph import Graph

    c = BertConfig.parse(config)
    head = weights.has(f"{_HEAD}.transform.dense.weight")
    graph = Graph("bert", ("batch", "seq", "picked") if head else ("batch", "seq"))
    layers = BertLayers(graph, weights, c)
    x = layers.embeddings()
    lengths = graph.input("lengths", ("batch",), "lengths")
    for i in range(c.num_hidden_layers):
        mask = graph.input(f"mask.{i}", ("seq", "seq"), "mask")
        x = layers.encoder(f"encoder.layer.{i}", x, mask, lengths)
    graph.output("hidden", x)
    if head:
        graph.output("logits", layers.head(x))
    return Model(
        graph,
        vocab_size=c.vocab_size,
        max_positions=c.max_position_embeddings,
        token_types=c.type_vocab_size,
        hidden_size=c.hidden_size,
        heads=c.num_attention_heads,
        layer_masks=(LayerMask(),) * c.num_hidden_layers,
        pooler=pooler_of(weights, "pooler.dense", c.hidden_size),
    )


@dataclass(frozen=True)
class BertLayers:
    """The parts of an encoder of BERT's kind, each adding its nodes to one graph."""

    graph: Graph
    weights: Weights
    config: BertConfig

    def constant(self, name: str, *shape: int) -> Node:
        """Take a weight as it is."""
        return self.graph.constant(name, self.weights.take(name, shape))

    def linear(self, name: str, x: Node, rows: int, columns: int, *, bias: bool = True) -> Node:
        """``x @ weight.T + bias``."""
        y = self.graph.gemm(x, self.constant(f"{name}.weight", rows, columns))
        return self.graph.add(y, self.constant(f"{name}.bias", rows)) if bias else y

    def norm(self, name: str, x: Node) -> Node:
        """LayerNorm."""
        size = self.config.hidden_size
        weight, bias = (self.constant(f"{name}.{part}", size) for part in ("weight", "bias"))
        return self.graph.layer_norm(x, weight, bias, eps=self.config.layer_norm_eps)

    def embeddings(self, *, first: int = 0, scale: float | None = None) -> Node:
        """Sum of token, position and type, normalised.

        Parameters
        ----------
        first : int
            The row of the position table that the first token has.
        scale : float, optional
            Factor of the token's row.
        """
        c, g = self.config, self.graph
        ids = g.input("ids", ("batch", "seq"), "int")
        types = g.input("token_types", ("batch", "seq"), "int")
        words, positions, kinds = (
            self.weights.take(f"embeddings.{table}_embeddings.weight", (rows, c.hidden_size))
            for table, rows in (
                ("word", c.vocab_size),
                ("position", first + c.max_position_embeddings),
                ("token_type", c.type_vocab_size),
            )
        )
        if scale is not None:
            words = words.astype(np.float32) * np.float32(scale)
        x = g.embedding(
            ids,
            g.constant("embeddings.word_embeddings.weight", words),
            position_table=g.constant("embeddings.position_embeddings.weight", positions[first:]),
            token_types=types,
            type_table=g.constant("embeddings.token_type_embeddings.weight", kinds),
        )
        return self.norm("embeddings.LayerNorm", x)

    def heads(self, name: str, x: Node, *, bias: bool = True) -> Node:
        """One projection, split into heads."""
        c = self.config
        y = self.linear(name, x, c.hidden_size, c.hidden_size, bias=bias)
        return self.graph.split_heads(y, heads=c.num_attention_heads)

    @property
    def scale(self) -> float:
        """Of attention scores."""
        return float((self.config.hidden_size // self.config.num_attention_heads) ** -0.5)

    def after(self, name: str, context: Node, x: Node) -> Node:
        """Return the layer that follows from its attention."""
        c, g = self.config, self.graph
        y = g.merge_heads(context)
        y = self.linear(f"{name}.attention.output.dense", y, c.hidden_size, c.hidden_size)
        x = self.norm(f"{name}.attention.output.LayerNorm", g.add(y, x))
        h = self.linear(f"{name}.intermediate.dense", x, c.intermediate_size, c.hidden_size)
        h = g.gelu(h, approximate=_GELU[c.hidden_act])
        y = self.linear(f"{name}.output.dense", h, c.hidden_size, c.intermediate_size)
        return self.norm(f"{name}.output.LayerNorm", g.add(y, x))

    def head(self, x: Node) -> Node:
        """Return the logits of the rows asked for: what tokens a masked one may be."""
        c, g = self.config, self.graph
        picked = g.take_rows(x, g.input("rows", ("batch", "picked"), "int"))
        y = self.linear(f"{_HEAD}.transform.dense", picked, c.hidden_size, c.hidden_size)
        y = self.norm(f"{_HEAD}.transform.LayerNorm", g.gelu(y, approximate=_GELU[c.hidden_act]))
        table = "embeddings.word_embeddings.weight"
        table_node = g.constant(table, g.constants[table])
        y = g.gemm(y, tied_matrix(g, self.weights, f"{_HEAD}.decoder.weight", table_node))
        # Saved under one name or both; transformers adds the second.
        bias = f"{_HEAD}.decoder.bias"
        bias = bias if self.weights.has(bias) else f"{_HEAD}.bias"
        return g.add(y, self.constant(bias, c.vocab_size))

    def encoder(self, name: str, x: Node, mask: Node, lengths: Node) -> Node:
        """Return a whole layer."""
        q, k, v = (
            self.heads(f"{name}.attention.self.{part}", x) for part in ("query", "key", "value")
        )
        context = self.graph.attention(q, k, v, mask, lengths, scale=self.scale)
        return self.after(name, context, x)
