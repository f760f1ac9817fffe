"""A decoder's attention with its caches, positions and norms of heads: one piece, for one token.

In a run of one token of each sequence one kernel turns the query and the key that a product gives,
keeps key and value, and attends (:mod:`stof_cupy.ops.attention_token`). Every other run goes
through the operators as without it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, cast

from stof_cupy.graph import Graph, Node
from stof_cupy.graph.calls import CALLS
from stof_cupy.graph.frequencies import array_of
from stof_cupy.graph.node import topological
from stof_cupy.graph.steps import Fused
from stof_cupy.jit.attention_token import TOKEN_HEAD_DIMS
from stof_cupy.ops._arrays import is_cupy
from stof_cupy.ops.attention_token import HeadNorms, Token, Turn, attend_token
from stof_cupy.ops.epilogue import Epilogue
from stof_cupy.ops.gemm import gemm
from stof_cupy.ops.normed_gemm import normed_gemm

__all__ = ["constant_weights", "token_piece"]

Array: TypeAlias = Any
Values: TypeAlias = "dict[Node | None, Array]"
Calls: TypeAlias = "Mapping[Node, Callable[[Values], Array]]"

_WHOLE = {
    "rotary": ((), ("split_heads", "merge_heads"), ("split_heads", "columns", "merge_heads")),
    "turned_gemm": (("split_heads", "columns"),),
}
"""The views, the last first, in which heads that an operator turns can stay what they are."""


@dataclass(frozen=True)
class _Rows:
    """Where queries, or keys, come from, as far as the kernel does that.

    Attributes
    ----------
    turn, norm : Node or None
        A rotary embedding or a product that turns; RMSNorm of each head before a rotary.
    views : tuple of Node
        After the turn.
    """

    turn: Node | None = None
    norm: Node | None = None
    views: tuple[Node, ...] = ()

    @classmethod
    def of(cls, node: Node) -> _Rows:
        """Look at what is below queries or keys."""
        views, turn = _views(node)
        if not _leave_heads(views, turn, node):
            return cls()
        norm = turn.inputs[0] if turn.op == "rotary" and not views else None
        return cls(turn, norm if norm is not None and norm.op == "rms_norm" else None, views)


def _views(node: Node) -> tuple[tuple[Node, ...], Node]:
    """Return the views that a value is of another, and that one."""
    found = list[Node]()
    while node.kind == "view" and node.inputs[0] is not None:
        found.append(node)
        node = node.inputs[0]
    return tuple(found), node


def _leave_heads(views: tuple[Node, ...], turn: Node, node: Node) -> bool:
    """Whether `node`, these views of a turn, has heads as they were turned, and nothing else."""
    if tuple(each.op for each in views) not in _WHOLE.get(turn.op, ()):
        return False
    size = turn.shape[3] if turn.op == "rotary" else dict(turn.attrs)["head_dim"]
    starts = [dict(each.attrs)["start"] for each in views if each.op == "columns"]
    return node.shape[3] == size and all(start % size == 0 for start in starts)


def token_piece(
    graph: Graph,
    node: Node,
    cached: Fused,
    readers: Mapping[Node, int],
    products: Mapping[Node, Fused],
) -> Fused | None:
    """Return an attention with what is below it as a piece; None if there is no kernel for it.

    Parameters
    ----------
    graph : Graph
    node : Node
        An attention.
    cached : Fused
        It and its two caches as one piece.
    readers : mapping of Node to int
        How often each value is read, outputs of the graph included.
    products : mapping of Node to Fused
        Products with the RMSNorm before them, as one piece each.
    """
    if any(node.inputs[5:]) or not _fits(node):
        return None
    for piece in (_Piece.of(node, cached, products), _Piece(node, cached)):
        if piece is not None and piece.alone(readers):
            order = tuple(each for each in graph.nodes() if each in piece.inside)
            reads = dict.fromkeys(each for one in order for each in one.inputs)
            outside = tuple(n for n in reads if n is not None and n not in piece.inside)
            return Fused(order, outside, piece.call(outside, readers))
    return None


def constant_weights(*nodes: Node | None) -> bool:
    """Whether these, as far as there are any, are the same in all runs."""
    return all(each is None or each.op == "constant" for each in nodes)


def _fits(node: Node) -> bool:
    """Whether the kernel takes heads of this size, turned in this way, if at all."""
    q, k, v = node.inputs[:3]
    if q is None or k is None or v is None or k.inputs[2] is None or v.inputs[2] is None:
        return False
    turn, head_dim = _Rows.of(q).turn, q.shape[3]
    attrs = {} if turn is None else dict(turn.attrs)
    whole = not attrs or attrs["interleaved"] or len(attrs["frequency"]) % 8 == 0
    known = isinstance(head_dim, int) and head_dim % 8 == 0 and head_dim <= TOKEN_HEAD_DIMS[-1]
    return known and whole and v.shape[3] == head_dim


class _Piece:
    """An attention of new keys and values, and how these and queries are turned and normalised."""

    def __init__(
        self,
        node: Node,
        cached: Fused,
        rows: tuple[_Rows, _Rows] = (_Rows(), _Rows()),
        below: tuple[Node, ...] = (),
        normed: Fused | None = None,
    ) -> None:
        q, k, v = cast("tuple[Node, Node, Node]", node.inputs[:3])  # as `_fits` has seen
        self.node, self.cached, self.normed = node, cached, normed
        self.q, self.k, self.v, self.caches = q, k.inputs[0], v.inputs[0], (k, v)
        self.positions, self.lengths, self.mask = k.inputs[1], node.inputs[4], node.inputs[3]
        self.turn, self.norms = rows[0].turn, (rows[0].norm, rows[1].norm)
        self.inside = {node, k, v, *below}

    @classmethod
    def of(cls, node: Node, cached: Fused, products: Mapping[Node, Fused]) -> _Piece | None:
        """Return it with all that the kernel may do, if queries and keys are alike."""
        plain = cls(node, cached)
        if plain.k is None or plain.v is None:
            return None
        q, k = _Rows.of(plain.q), _Rows.of(plain.k)
        if q.turn is None or k.turn is None or q.turn.attrs != k.turn.attrs:
            return None
        turns = [q.turn, k.turn]
        below, normed = [*q.views, *k.views, *turns], products.get(q.turn)
        if q.turn.op == "turned_gemm":
            views, product = _views(plain.v)
            turned = dict(q.turn.attrs)["heads"] * dict(q.turn.attrs)["head_dim"]
            ends = [_columns(each)[1] <= turned for each in (q.views, k.views)]
            apart = all(ends) and _columns(views)[0] >= turned
            if k.turn is not q.turn or product is not q.turn or not apart or q.turn.inputs[4]:
                return None
            below += [*views, *(() if normed is None else normed.nodes)]
        port = 2 if q.turn.op == "turned_gemm" else 1
        if any(each.inputs[port] is not plain.positions for each in turns):
            return None
        if q.norm is None or k.norm is None or q.norm.attrs != k.norm.attrs:
            q, k = _Rows(q.turn, None, q.views), _Rows(k.turn, None, k.views)
        norms = [each for each in (q.norm, k.norm) if each is not None]
        done = {*turns, *norms}
        if turns[0].op == "rotary" and not _apart(norms or turns, plain.v, done):
            return None
        return cls(node, cached, (q, k), (*below, *norms), normed)

    def alone(self, readers: Mapping[Node, int]) -> bool:
        """Whether nothing else reads what is between its operators."""
        read = Counter(each for one in self.inside for each in one.inputs)
        return all(read[each] == readers[each] for each in self.inside - {self.node})

    def settled(self, readers: Mapping[Node, int]) -> bool:
        """Whether what wrote what is read early has ended when the kernel begins.

        Caches, positions and lengths are what the run is given, and no other operator writes to
        these caches. So who wrote them did before this run, in another launch where runs are
        recorded. Where they are not, the run's embedding, which the new keys are made of, comes
        between them: its kernel lets the next one begin only when all before itself have ended, as
        products of few rows do not (`jit.dependent`).
        """
        given = [*(each.inputs[2] for each in self.caches), self.positions, self.lengths]
        inputs = all(each is None or each.op == "input" for each in given)
        once = all(readers[each.inputs[2]] == 1 for each in self.caches if each.inputs[2])
        made = () if self.k is None else topological((self.k,))
        return inputs and once and any(each.op == "embedding" for each in made)

    def call(self, outside: tuple[Node, ...], readers: Mapping[Node, int]) -> Callable[..., Array]:
        """Return what runs it on the arrays of `outside`."""
        settled = self.settled(readers)
        product: Calls = {}
        if self.normed is not None:
            whole = self.normed
            product = {whole.nodes[-1]: lambda x: whole.call(*(_value(n, x) for n in whole.inputs))}

        def run(*arrays: Array, out: Array | None = None) -> Array:
            values: Values = {None: None, **dict(zip(outside, arrays, strict=True))}
            cached = all(values[each.inputs[2]] is not None for each in self.caches)
            if cached and values[self.positions].shape[1] == 1 and values[self.mask] is None:
                return attend_token(self._token(values, settled), out=out)
            given = [_value(each, values, product) for each in self.cached.inputs]
            return self.cached.call(*given, out=out)

        return run

    def _token(self, values: Values, settled: bool) -> Token:
        calls = self._unturned()
        q, k, v = (_value(each, values, calls) for each in (self.q, self.k, self.v))
        attrs, device = dict(self.node.attrs), q.device.id if is_cupy(q) else None
        turn = norms = None
        if self.turn is not None:
            how = dict(self.turn.attrs)
            turn = Turn(array_of(how["frequency"], device), how["interleaved"], how["magnitude"])
        if self.norms[0] is not None and self.norms[1] is not None:
            weights = [values[each.inputs[1]] for each in self.norms if each is not None]
            norms = HeadNorms(weights[0], weights[1], dict(self.norms[0].attrs)["eps"])
        keys, kept = (values[each.inputs[2]] for each in self.caches)
        at, ring = values[self.positions], dict(self.caches[0].attrs)["ring"]
        how = {"scale": attrs["scale"], "softcap": attrs["softcap"], "ring": ring}
        given: Any = {"lengths": values[self.lengths], "settled": settled, **how}
        return Token(q, k, v, keys, kept, at, turn, norms, **given)

    def _unturned(self) -> Calls:
        """Return how the operators are run that the kernel stands for: as if they did nothing."""
        calls: dict[Node, Callable[[Values], Array]] = {}
        for each in self.inside:
            if each is self.turn and each.op == "turned_gemm":
                calls[each] = partial(self._product, each)
            elif each.op == "rotary" or each in self.norms:
                calls[each] = partial(_passed_on, each, calls)
        return calls

    def _product(self, node: Node, values: Values) -> Array:
        x, w, _, bias, _ = node.inputs
        norm = None if self.normed is None else self.normed.nodes[0]
        how: dict[str, Any] = {"epilogue": Epilogue(_value(bias, values))}
        how["constant"] = constant_weights(w, bias, None if norm is None else norm.inputs[1])
        if norm is None:
            return gemm(_value(x, values), _value(w, values).T, **how)
        rows, weight = (_value(each, values) for each in norm.inputs)
        return normed_gemm(rows, weight, _value(w, values).T, eps=dict(norm.attrs)["eps"], **how)


def _passed_on(node: Node, calls: Calls, values: Values) -> Array:
    return _value(node.inputs[0], values, calls)


def _apart(firsts: list[Node], v: Node, done: set[Node]) -> bool:
    """Whether values, and what the first operators read, are made without what the kernel does."""
    reads = [each.inputs[0] for each in firsts]
    return done.isdisjoint(topological((v, *(each for each in reads if each is not None))))


def _columns(views: tuple[Node, ...]) -> tuple[int, int]:
    """Return which columns heads are, if they are columns; else none and all."""
    if [each.op for each in views] != ["split_heads", "columns"]:
        return -1, 1 << 62
    start, stop = dict(views[1].attrs).values()
    return start, stop


def _value(node: Node | None, values: Values, calls: Calls | None = None) -> Array:
    """Compute a value of those that are there; `calls` are for operators that are run otherwise."""
    if node is not None and node not in values:  # None always is
        call = (calls or {}).get(node)
        if call is None:
            operands = [_value(each, values, calls) for each in node.inputs]
            values[node] = CALLS[node.op](*operands, **dict(node.attrs))
        else:
            values[node] = call(values)
    return values[node]
