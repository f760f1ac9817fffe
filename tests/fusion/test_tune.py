"""Tuning real graphs: layers once, results kept, never slower than the rules, all of it told."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stof_cupy import models
from stof_cupy.errors import ArgumentError, StofWarning
from stof_cupy.fusion import structured
from stof_cupy.fusion import tune as tune_module
from stof_cupy.fusion.bench import PieceSpace, Site, wall_clock
from stof_cupy.fusion.chain import Chain
from stof_cupy.fusion.cost import NUMPY, machine_of, work
from stof_cupy.fusion.examples import example_inputs
from stof_cupy.fusion.kernels import KERNELS
from stof_cupy.fusion.pieces import Piece, pieces
from stof_cupy.fusion.scheme import Scheme
from stof_cupy.fusion.store import Found, SchemeStore, shapes_class
from stof_cupy.fusion.tune import MODES, Tuned, tune
from stof_cupy.graph import Executor, Graph, meaning
from stof_cupy.jit.device import DeviceFacts
from tests.fusion.stacks import WIDTH, constant, norm, paper_stack

SIZES = {"batch": 2, "seq": 40}
SITE = Site("numpy", "float32", None, NUMPY, SIZES)
H100 = DeviceFacts(
    "NVIDIA H100", "90a", (9, 0), 132, 232448, 233472, 50 << 20, 1980000, 80 << 30, 2048,
    2619000, 5120,
)  # fmt: skip


def bert(layers: int, model_type: str = "bert") -> Graph:
    config = {
        "model_type": model_type, "hidden_act": "gelu", "layer_norm_eps": 1e-12,
        "num_hidden_layers": layers, "hidden_size": 24, "num_attention_heads": 3,
        "intermediate_size": 40, "vocab_size": 50, "max_position_embeddings": 150,
        "type_vocab_size": 3,
    }  # fmt: skip
    return structured(models.build(config, models.random_weights(config)).graph)


# Pieces


def test_layers_of_a_stack_are_one_piece() -> None:
    assert pieces(Chain(paper_stack(4))) == [Piece(0, 15, 4)]
    assert pieces(Chain(bert(5))) == [Piece(0, 2), Piece(2, 12, 5)]
    assert pieces(Chain(bert(1))) == [Piece(0, 12)]


def test_pieces_cover_the_chain_whatever_it_is() -> None:
    g = Graph("mixed")
    x = g.input("x", ("batch", "seq", WIDTH), "float")
    for i in range(3):
        x = g.gelu(g.gemm(x, constant(g, f"a{i}", WIDTH, WIDTH)))
    x = g.softmax(x)
    for i in range(4):
        x = norm(g, g.add(g.gemm(x, constant(g, f"b{i}", WIDTH, WIDTH)), x), f"n{i}")
    g.output("y", x)
    found = pieces(Chain(g))
    assert [(p.stop - p.start) * p.copies for p in found] == [6, 1, 12]
    assert [p.copies for p in found] == [3, 1, 4]
    starts = [0]
    for piece in found:
        assert piece.start == starts[-1]
        starts.append(piece.start + (piece.stop - piece.start) * piece.copies)
    assert starts[-1] == len(Chain(g))


def tapped_stack(layers: int, taps: tuple[int, ...]) -> Graph:
    """Layers of which some show what is between their operators."""
    g = Graph("tapped")
    x = g.input("x", ("batch", "seq", WIDTH), "float")
    shown = []
    for i in range(layers):
        x = g.relu(g.scale(x, factor=0.5)) if i else g.relu(g.scale(g.add(x, x), factor=0.5))
        inner = g.gemm(x, constant(g, f"w{i}", WIDTH, WIDTH))
        shown += [inner] * (i in taps)
        x = norm(g, g.gelu(inner), f"n{i}")
    w = constant(g, "w", WIDTH, WIDTH)
    for i, inner in enumerate(shown):  # where it is not there, a residual is not missed
        g.output(f"tap{i}", g.gemm(x, w, residual=inner))
    g.output("y", x)
    return g


def test_a_layer_that_shows_its_inside_is_another_piece() -> None:
    chain = Chain(tapped_stack(7, (4,)))
    found = pieces(chain)
    assert max(found, key=lambda piece: piece.copies).copies >= 3
    legal = {tuple(span) for span in chain.segments()}
    for piece in found:
        size = piece.stop - piece.start
        own = [(a, b) for a, b in legal if piece.start <= a and b <= piece.stop]
        for shift in range(0, size * piece.copies, size):
            assert {(a + shift, b + shift) for a, b in own} <= legal
    assert sum((piece.stop - piece.start) * piece.copies for piece in found) == len(chain)


@pytest.mark.parametrize("taps", [(1,), (2,), (0, 1), (3,)])
@pytest.mark.parametrize("mode", ["fast", "full"])
def test_what_a_layer_shows_is_there_when_it_is_tuned(mode: str, taps: tuple[int, ...]) -> None:
    graph = structured(tapped_stack(4, taps))
    inputs = {"x": np.random.default_rng(0).standard_normal((2, 40, WIDTH)).astype(np.float32)}
    exact = meaning.evaluate(graph, inputs)
    got = run(tune(graph, SITE, mode), inputs)
    for name, values in exact.items():
        np.testing.assert_allclose(got[name], values, atol=3e-5)


# The space of a real graph


def test_rules_leave_one_operator_a_segment_and_are_the_exact_rewrites() -> None:
    chain = Chain(bert(2))
    for piece in pieces(chain):
        space = PieceSpace(chain, piece, SITE)
        assert set(space.rules()) <= set(space.segments())
    layer = PieceSpace(chain, Piece(2, 12, 2), SITE)
    assert [layer.names(span) for span in layer.rules()] == [
        "gemm", "attention", "gemm + add", "layer_norm", "gemm + gelu", "gemm + add", "layer_norm",
    ]  # fmt: skip


def test_on_cuda_only_segments_with_a_kernel_are_offered() -> None:
    chain = Chain(bert(1))
    there = PieceSpace(chain, Piece(0, 12), replace(SITE, backend="cuda"))
    here = PieceSpace(chain, Piece(0, 12), SITE)
    assert set(there.segments()) < set(here.segments())
    assert all(there.settings(span) == ((),) for span in there.segments())


def test_every_segment_can_be_timed_and_predicted() -> None:
    chain = Chain(bert(1))
    space = PieceSpace(chain, Piece(0, 12), replace(SITE, stopwatch=lambda run: (run(), 2.5)[1]))
    for span in space.segments():
        for setting in space.settings(span):
            assert space.measure(span, setting) == 2.5
            assert 0 < space.predicted(span, setting) < 1
    assert PieceSpace(chain, Piece(0, 12), SITE).measure((0, 1), ()) == space.predicted((0, 1), ())


def test_what_does_not_run_takes_forever() -> None:
    def out_of_memory(run: Callable[[], Any]) -> float:
        raise MemoryError

    space = PieceSpace(Chain(bert(1)), Piece(0, 12), replace(SITE, stopwatch=out_of_memory))
    assert space.measure((0, 1), ()) == float("inf")


def test_costs_are_what_can_be_counted_by_hand() -> None:
    chain = Chain(bert(1))
    gemm = next(node for node in chain.ops if node.op == "gemm")
    counted = work(gemm, SIZES, 2)
    assert counted.flops == 2 * 2 * 40 * 72 * 24
    assert counted.writes == 2 * 40 * 72 * 2
    assert counted.reads == (2 * 40 * 24 * 2, 72 * 24 * 2, 72 * 2)
    assert machine_of(None) is NUMPY
    gpu = machine_of(H100)
    assert 3e14 < gpu.matrix_flops < 1e15 and 2e12 < gpu.memory_bytes < 3.4e12


def test_the_wall_clock_takes_the_least() -> None:
    seen: list[int] = []
    assert 0 <= wall_clock(lambda: seen.append(1), least=4, enough=0) < 0.1
    assert len(seen) == 5


# Tuning


def run(tuned: Tuned, inputs: dict[str, Any]) -> Any:
    lowered = tuned.lowered
    return Executor(lowered.graph, backend="numpy", fused=lowered.fused).run(inputs)


@pytest.mark.parametrize("mode", MODES)
def test_a_tuned_graph_computes_the_same(mode: str) -> None:
    graph = structured(paper_stack(3))
    site = replace(SITE, stopwatch=wall_clock)
    tuned = tune(graph, site, mode, seconds=0.4)
    rng = np.random.default_rng(0)
    inputs = {"x": rng.standard_normal((2, 40, WIDTH)), "mask": rng.random((40, 40)) < 0.5}
    exact = meaning.evaluate(graph, inputs)["y"]
    got = run(tuned, {**inputs, "x": inputs["x"].astype(np.float32)})["y"]
    np.testing.assert_allclose(got, exact, atol=3e-5)
    assert tuned.report.scheme.count == 3 * tuned.report.pieces[0].scheme.count


def pretend(better: str) -> tuple[Callable[[Callable[[], Any]], float], list[str]]:
    """A stopwatch that does not look at the clock: fused segments are `better`, or not."""
    calls: list[str] = []

    def stopwatch(run: Callable[[], Any]) -> float:
        executor = run.__closure__[0].cell_contents  # type: ignore[index]
        ops = [step.node.op for step in executor._steps if step.node.kind != "view"]
        calls.append(" ".join(ops))
        return (
            len(ops) * 1e-3
            if better == "fused"
            else 1e-3 * sum(1 + 3 * (step.call.__name__ == "run") for step in executor._steps)
        )

    return stopwatch, calls


def test_layers_are_tuned_once_and_the_result_is_kept(tmp_path: Path) -> None:
    store, (stopwatch, calls) = SchemeStore(tmp_path), pretend("fused")
    site = replace(SITE, stopwatch=stopwatch)
    first = tune(bert(2), site, store=store)
    few = len(calls)
    calls.clear()
    assert first.lowered.fused and first.report.seconds < first.report.rules_seconds  # type: ignore[operator]
    again = tune(bert(2), site, store=store)
    assert not calls and all(piece.cached for piece in again.report.pieces)
    assert again.report.scheme == first.report.scheme
    deep = tune(bert(9), site, store=SchemeStore(tmp_path / "other"))
    assert len(calls) == few and deep.report.pieces[1].scheme == first.report.pieces[1].scheme
    deeper = tune(bert(7), site, store=store)  # the layers were tuned in another model
    assert all(piece.cached for piece in deeper.report.pieces)
    # Near shapes share what was found, other ones do not.
    assert (
        tune(bert(2), replace(site, sizes={"batch": 2, "seq": 60}), store=store)
        .report.pieces[1]
        .cached
    )
    assert (
        not tune(bert(2), replace(site, sizes={"batch": 2, "seq": 70}), store=store)
        .report.pieces[1]
        .cached
    )


def test_a_longer_search_is_good_for_a_shorter_one_and_not_the_other_way(tmp_path: Path) -> None:
    store, (stopwatch, _) = SchemeStore(tmp_path), pretend("fused")
    site = replace(SITE, stopwatch=stopwatch)
    assert not tune(bert(1), site, "fast", store=store).report.pieces[0].cached
    assert not tune(bert(1), site, "full", store=store).report.pieces[0].cached
    assert tune(bert(1), site, "fast", store=store).report.pieces[0].cached
    assert tune(bert(1), site, "full", store=store).report.pieces[0].cached


def test_the_whole_is_what_counts(tmp_path: Path) -> None:
    """Segments that win alone and lose together are taken back, in the cache as well."""
    inner, _ = pretend("fused")

    def stopwatch(run: Callable[[], Any]) -> float:
        executor = run.__closure__[0].cell_contents  # type: ignore[index]
        whole = sum(step.node.op == "attention" for step in executor._steps) > 1
        fused = any(step.call.__name__ == "run" for step in executor._steps)
        return (9.0 if fused else 1.0) if whole else inner(run)

    store, site = SchemeStore(tmp_path), replace(SITE, stopwatch=stopwatch)
    tuned = tune(bert(3), site, store=store)
    assert tuned.lowered.fused == () and "it runs by the rules" in str(tuned.report)
    again = tune(bert(3), site, store=store)
    assert again.lowered.fused == () and all(piece.cached for piece in again.report.pieces)


def test_rules_stand_where_fusing_does_not_pay() -> None:
    stopwatch, _ = pretend("apart")
    tuned = tune(bert(2), replace(SITE, stopwatch=stopwatch))
    assert all(piece.scheme == piece.rules for piece in tuned.report.pieces)
    assert tuned.lowered.fused == () and tuned.report.seconds is None


def test_off_searches_nothing() -> None:
    stopwatch, calls = pretend("fused")
    tuned = tune(bert(2), replace(SITE, stopwatch=stopwatch), "off")
    assert not calls and tuned.lowered.fused == ()
    assert "tuned in" not in str(tuned.report)


def test_modes_that_there_are_not() -> None:
    with pytest.raises(ArgumentError, match="tune: got 'max', expected 'off' or 'fast' or 'full'"):
        tune(bert(1), SITE, "max")


def test_progress_and_report(tmp_path: Path) -> None:
    told: list[tuple[float, str]] = []
    stopwatch, _ = pretend("fused")
    tuned = tune(
        bert(2),
        replace(SITE, stopwatch=stopwatch),
        watch=lambda share, text: told.append((share, text)),
    )
    shares = [share for share, _ in told]
    assert shares == sorted(shares) and 0 <= shares[-1] <= 1
    assert told[-1][1].startswith("piece 2 of 2")
    text = str(tuned.report)
    for part in ("bert on numpy, batch 2, seq 40: tune='fast' by the clock", "2 times", "rules",
                 "instead of", "rows", "it runs as tuned", "schemes tried"):  # fmt: skip
        assert part in text
    pytest.importorskip("matplotlib")
    tuned.report.save_plot(tmp_path / "report.png")
    for wrong in (tmp_path / "report.xyz", tmp_path, None):
        with pytest.raises(ArgumentError, match=r"path: got .*, expected one that ends in .*\.png"):
            tuned.report.save_plot(wrong)  # type: ignore[arg-type]
    assert (tmp_path / "report.png").stat().st_size > 5000


# The store


PROBLEM = {"operators": "0123", "device": "numpy", "shapes": shapes_class(SIZES)}
FOUND = Found(Scheme((2, 1)), ((("rows", 64),), ()), 1.5e-4)


def test_what_is_stored_comes_back(tmp_path: Path) -> None:
    store = SchemeStore(tmp_path / "schemes")
    assert store.get(PROBLEM) is None
    store.put(PROBLEM, FOUND)
    assert store.get(PROBLEM) == FOUND
    assert store.get({**PROBLEM, "device": "H100"}) is None
    assert [path.suffix for path in store.root.iterdir()] == [".json"]


def test_another_version_is_ignored_and_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SchemeStore(tmp_path)
    store.put(PROBLEM, FOUND)
    monkeypatch.setattr("stof_cupy.fusion.store.__version__", "9.9")
    with pytest.warns(StofWarning, match="entries of another version") as said:
        assert store.get(PROBLEM) is None
        assert SchemeStore(tmp_path).get(PROBLEM) is None
    assert len(said) == 1
    store.put(PROBLEM, FOUND)
    assert store.get(PROBLEM) == FOUND


@pytest.mark.parametrize("spoil", ["{", "[]", "{}", "scheme", "settings"])
def test_a_damaged_file_counts_as_absent(spoil: str, tmp_path: Path) -> None:
    store = SchemeStore(tmp_path)
    store.put(PROBLEM, FOUND)
    (path,) = tmp_path.iterdir()
    record = json.loads(path.read_text())
    if spoil in record:
        record[spoil] = "3:zz" if spoil == "scheme" else [["rows"]]
        path.write_text(json.dumps(record))
    else:
        path.write_text(spoil)
    with pytest.warns(StofWarning, match="cannot be read"):
        assert store.get(PROBLEM) is None


def test_a_scheme_that_does_not_fit_is_not_used(tmp_path: Path) -> None:
    class Wrong(SchemeStore):
        def get(self, problem: Any) -> Found:
            return Found(Scheme((12,)), ((),), 1e-9)

    tuned = tune(bert(1), SITE, store=Wrong(tmp_path))
    assert not tuned.report.pieces[0].cached


def test_a_store_that_cannot_be_written_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = SchemeStore(tmp_path / "file" / "schemes")
    with pytest.warns(StofWarning, match="cannot be written"):
        store.put(PROBLEM, FOUND)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store.put(PROBLEM, FOUND)


def test_inputs_to_time_with_are_given_or_drawn() -> None:
    mask = np.ones((40, 40), bool)
    inputs = example_inputs(bert(1), SITE.sizes, {"mask.0": mask}, "float32", None)
    assert inputs["mask.0"] is mask and inputs["lengths"] is None
    assert inputs["ids"].shape == (2, 40) and not inputs["ids"].any()
    assert KERNELS[0].name and tune_module
