"""Packed sequences on a GPU: what is a mask of documents, and how far tokens are padded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stof_cupy import masks
from stof_cupy.errors import ArgumentError, ShapeError
from stof_cupy.fusion import structured
from stof_cupy.graph import Graph
from stof_cupy.runtime import documents
from stof_cupy.runtime.documents import PackedProgram, lengths_of, padded_tokens
from stof_cupy.runtime.packing import (
    DOCUMENTS,
    POSITIONS,
    Packed,
    Sequences,
    pack_graph,
    packed_mask,
    positions,
)
from stof_cupy.runtime.program import Program
from stof_cupy.runtime.ready import Options
from tests.fusion.stacks import WIDTH, paper_stack
from tests.runtime.fake import FakeRecorder


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 9), max_size=8), st.sampled_from([None, "causal"]))
def test_lengths_are_those_of_the_mask(lengths: list[int], spec: str | None) -> None:
    found = lengths_of(packed_mask(spec, tuple(lengths)))
    assert found is not None
    assert [*found.lengths] == lengths and found.causal == (spec == "causal")
    # With padding behind, of which nothing sees or is seen.
    ids = np.append(np.repeat(np.arange(len(lengths)), lengths), [-1] * 3)
    dense = masks.document_ids(ids, causal=found.causal).toarray()
    np.testing.assert_array_equal(dense[:-3, :-3], packed_mask(spec, tuple(lengths)).toarray())
    assert not dense[-3:].any() and not dense[:, -3:].any()


@pytest.mark.parametrize(
    "mask",
    [
        None,
        masks.causal(5),
        masks.document([3, 2], window=1),
        masks.document([3, 2], [2, 3]),
        masks.document([3, 2], [4, 5], causal=True, align="bottom-right"),
        masks.document([3, 2]).tobsr(),
        packed_mask("sliding:w=1", (3, 2)),
    ],
    ids=repr,
)
def test_other_masks_are_none_of_documents(mask: object) -> None:
    assert lengths_of(mask) is None


def test_tokens_are_padded_a_little_and_to_few_numbers() -> None:
    sizes = {tokens: padded_tokens(tokens) for tokens in range(1, 40_000)}
    assert all(n <= size <= max(n * 33 / 32 + 1, n + 63) for n, size in sizes.items())
    assert all(size % 64 == 0 for size in sizes.values())
    assert len({size for n, size in sizes.items() if 16_384 < n <= 32_768}) == 32
    assert sorted(sizes.values()) == [*sizes.values()]


def test_masks_of_layers_are_told_apart() -> None:
    g = Graph("two")
    x = g.split_heads(g.input("x", ("batch", "seq", WIDTH), "float"), heads=2)
    for name in ("mask.0", "mask.1", "mask.2"):
        x = g.attention(x, x, x, g.input(name, ("seq", "seq"), "mask"))
    g.output("y", g.merge_heads(x))
    program, plain = PackedProgram(g), packed_mask(None, (3, 4))
    given = {"mask.0": plain, "mask.1": packed_mask("causal", (3, 4)), "mask.2": plain}
    found = program._documents(given)
    assert found is not None and found[0] == (3, 4)
    assert found[1] == {"mask.0": False, "mask.1": True, "mask.2": False}
    for other in (None, packed_mask(None, (4, 3)), packed_mask("sliding:w=1", (3, 4))):
        assert program._documents(given | {"mask.2": other}) is None


def test_arrays_and_lengths_are_those_of_the_masks() -> None:
    """Else a run is as any: what is wrong is said there."""
    graph = pack_graph(structured(paper_stack(1)))
    assert graph is not None
    program = PackedProgram(graph)
    mask, x = packed_mask(None, (3, 4)), np.zeros((1, 7, WIDTH), np.float32)
    given = {"x": x, "mask": mask}
    assert program._documents(given) is not None
    assert program._documents(given, [3, 4]) is not None
    for lengths in ([4, 3], [3, 4, 0], [7]):
        assert program._documents(given, lengths) is None
    for other in (x[:, 1:], x[0], np.zeros((2, 7, WIDTH)), x.tolist(), 3):
        assert program._documents(given | {"x": other}) is None
    with pytest.raises(ShapeError):
        program.run(given | {"x": x[:, 1:]})


def embeddings() -> Graph:
    """Return a packed graph of tokens and their places."""
    g = Graph("places")
    tables = np.random.default_rng(1).standard_normal((3, 12, WIDTH)).astype(np.float32)
    ids, types = (g.input(name, ("batch", "seq"), "int") for name in ("ids", "token_types"))
    tokens, places, kinds = (g.constant(f"table.{i}", table) for i, table in enumerate(tables))
    named = {"position_table": places, "type_table": kinds, "token_types": types}
    x = g.split_heads(g.embedding(ids, tokens, **named), heads=2)
    g.output("y", g.merge_heads(g.attention(x, x, x)))
    packed = pack_graph(g)
    assert packed is not None
    return packed


@pytest.mark.parametrize("dtypes", [["int64"] * 3, ["int32", "uint8", "uint64"], ["int16"] * 3])
def test_sequences_become_one_array_that_is_looked_at(dtypes: list[str]) -> None:
    program, lengths = PackedProgram(embeddings()), (3, 0, 5, 1)
    ids = np.random.default_rng(0).integers(0, 12, 9)
    parts = [ids[:3], ids[3:8], ids[8:]]
    rows: list[Any] = [part.astype(each) for part, each in zip(parts, dtypes, strict=True)]
    rows.insert(1, None)
    seen = []

    def look(whole: Any) -> Any:
        seen.append(whole.tolist())
        return whole.astype(np.int32)

    mask, types = packed_mask(None, lengths), np.zeros((1, 9), np.int32)
    given = {"ids": ids[None], "token_types": types, DOCUMENTS: mask}
    want = program.run({**given, POSITIONS: positions(lengths)})["y"]
    got = program.run({**given, "ids": Sequences(rows, look)}, lengths=lengths)["y"]
    np.testing.assert_array_equal(got, want)
    assert seen == [[ids.tolist()]]
    with pytest.raises(ArgumentError, match=r"packed\.positions"):
        program.run(given)


def test_rows_are_of_one_width() -> None:
    def widths(*dtypes: str) -> list[str]:
        rows = [np.zeros(2, each) for each in dtypes]
        return [
            row.dtype.name
            for row in Sequences([None, *rows], lambda x: x).alike()
            if row is not None
        ]

    assert widths("int32", "uint32") == ["int32", "uint32"]
    assert widths("int64", "uint64") == ["int64", "uint64"]
    assert widths("int8", "uint16", "uint32") == ["int32", "int32", "uint32"]
    assert widths("uint32", "int64", "int16") == ["int64", "int64", "int64"]


@pytest.mark.parametrize("causal", [False, True])
def test_lengths_alone_stand_for_a_mask(causal: bool) -> None:
    graph = pack_graph(structured(paper_stack(1)))
    assert graph is not None
    program, lengths = PackedProgram(graph), (3, 0, 4)
    packed, mask = Packed(lengths, causal), packed_mask("causal" if causal else None, lengths)
    assert Packed.of("causal" if causal else "full", lengths) == packed
    assert Packed.of("sliding:w=1", lengths) is packed_mask("sliding:w=1", lengths)
    assert packed.made() is mask and lengths_of(packed) is packed and lengths_of(mask) == packed
    x = np.random.default_rng(0).standard_normal((1, 7, WIDTH)).astype(np.float32)
    assert program._documents({"x": x, "mask": packed}) == (lengths, {"mask": causal})
    want = program.run({"x": x, "mask": mask})["y"]
    np.testing.assert_array_equal(program.run({"x": x, "mask": packed})["y"], want)


def test_without_a_gpu_packed_programs_run_as_any() -> None:
    graph = pack_graph(structured(paper_stack(1)))
    assert graph is not None
    options = Options(record=True, recorder=FakeRecorder())
    program, plain = PackedProgram(graph, options=options), PackedProgram(graph)
    for lengths in ((3, 4), (5, 2)):
        x = np.random.default_rng(0).standard_normal((1, 7, WIDTH)).astype(np.float32)
        inputs = {"x": x, "mask": packed_mask(None, lengths)}
        want = plain.run(inputs)["y"]
        for _ in range(3):
            np.testing.assert_array_equal(program.run(inputs)["y"], want)
    program.close()


def test_a_capture_is_looked_for_on_the_device_of_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of which the stream may be captured while another device is the current one."""
    graph = pack_graph(structured(paper_stack(1)))
    assert graph is not None
    program = PackedProgram(graph, options=Options(record=True, recorder=FakeRecorder()))
    current = [0]

    @contextmanager
    def on_device(device: int) -> Iterator[None]:
        current.append(device)
        yield
        current.pop()

    monkeypatch.setattr(program, "device", 1)
    monkeypatch.setattr(documents, "on_device", on_device)
    monkeypatch.setattr(documents, "is_capturing", lambda _: current[-1] == 1)
    monkeypatch.setattr(documents, "to_device", lambda x, _: x)
    monkeypatch.setattr(Program, "run", lambda _, inputs, finish: {"as any program": inputs})
    x = np.zeros((1, 7, WIDTH), np.float32)
    assert [*program.run({"x": x, "mask": Packed((3, 4))})] == ["as any program"]
