"""Programs: right results recorded or not, tuned or not, from any thread; errors say enough."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stof_cupy import masks
from stof_cupy.errors import (
    ArgumentError,
    DTypeError,
    GraphError,
    OutOfMemoryError,
    ShapeError,
    StofWarning,
)
from stof_cupy.fusion.store import SchemeStore
from stof_cupy.graph import Executor, Graph, meaning
from stof_cupy.graph.registry import OPS
from stof_cupy.runtime import Options, Program, bound, ready
from stof_cupy.runtime.ready import Ready
from tests.fusion.stacks import WIDTH, paper_stack
from tests.runtime.fake import FakeRecorder


@pytest.fixture
def store(tmp_path: Path) -> SchemeStore:
    return SchemeStore(tmp_path)


def feeds(batch: int = 2, seq: int = 21, seed: int = 0, mask: Any = None) -> dict[str, Any]:
    x = np.random.default_rng(seed).standard_normal((batch, seq, WIDTH)).astype(np.float32)
    return {"x": x, "mask": mask}


def exact(inputs: dict[str, Any]) -> Any:
    return meaning.evaluate(paper_stack(2), inputs)["y"]


@pytest.mark.parametrize("tune", ["off", "fast", "full"])
@pytest.mark.parametrize("record", [False, True])
def test_results_are_those_of_the_graph(tune: str, record: bool, store: SchemeStore) -> None:
    recorder = FakeRecorder()
    program = Program(
        paper_stack(2),
        options=Options(tune=tune, tune_seconds=0.3, record=record, recorder=recorder, store=store),
    )
    window = masks.sliding_window(21, window=3)
    for seed in range(4):
        for mask in (None, window):
            inputs = feeds(seed=seed, mask=mask)
            np.testing.assert_allclose(program.run(inputs)["y"], exact(inputs), atol=3e-5)
    assert len(recorder.made) == 2 * record
    for seq in (1, 7, 40):
        inputs = feeds(1, seq)
        np.testing.assert_allclose(program.run(inputs)["y"], exact(inputs), atol=3e-5)


def test_masks_that_may_change_are_not_recorded() -> None:
    recorder = FakeRecorder()
    program = Program(paper_stack(2), options=Options(record=True, recorder=recorder))
    dense = np.eye(21, dtype=bool)
    for i in range(5):
        dense[i] = True
        inputs = feeds(mask=dense)
        np.testing.assert_allclose(program.run(inputs)["y"], exact(inputs), atol=3e-5)
    assert not recorder.made


def test_one_mask_read_by_another_operator_is_another_run() -> None:
    g = Graph("two")
    heads = g.split_heads(g.input("x", ("batch", "seq", WIDTH), "float"), heads=2)
    for name in ("mask.0", "mask.1"):
        mask = g.input(name, ("seq", "seq"), "mask")
        heads = g.add(g.attention(heads, heads, heads, mask), heads)
    g.output("y", g.merge_heads(heads))
    recorder = FakeRecorder()
    program = Program(g, options=Options(record=True, recorder=recorder))
    window, x = masks.sliding_window(21, window=3).tobsr(), feeds()["x"]
    given = [(window, None), (None, window), (window, window), (None, None)]
    for _ in range(3):
        for each in given:
            own = dict(zip(("mask.0", "mask.1"), each, strict=True))
            want = meaning.evaluate(g, {"x": x, **own})["y"]
            np.testing.assert_allclose(program.run({"x": x, **own})["y"], want, atol=3e-5)
    assert len(recorder.made) == len(given)


def test_finish_is_recorded_with_the_rest() -> None:
    program = Program(paper_stack(2), options=Options(record=True, recorder=FakeRecorder()))

    def first_row(inputs: Any, outputs: Any) -> Any:
        return {"row": outputs["y"][:, 0] + inputs["x"][:, 0]}

    for seed in range(4):
        inputs = feeds(seed=seed)
        got = program.run(inputs, finish=first_row)
        assert list(got) == ["row"]
        expected = exact(inputs)[:, 0] + inputs["x"][:, 0]
        np.testing.assert_allclose(got["row"], expected, atol=3e-5)


def test_tuning_is_done_once_a_class_of_shapes_and_shares_weights(store: SchemeStore) -> None:
    told: list[str] = []
    program = Program(
        paper_stack(2),
        options=Options(tune="fast", store=store, watch=lambda share, text: told.append(text)),
    )
    program.run(feeds(2, 20))
    once = len(told)
    program.run(feeds(2, 30))
    assert once and len(told) == once
    program.run(feeds(2, 40))
    assert len(told) > once
    ready = list(program._ready.values())
    arrays = [each.plain._constants.values() for each in ready]
    assert {id(x) for x in arrays[0]} == {id(x) for x in arrays[1]}
    report = program.tuned(feeds(2, 20))
    assert report.mode == "fast" and str(report) in program.explain()
    again = Program(paper_stack(2), options=Options(tune="fast", store=store))
    assert all(piece.cached for piece in again.tuned(feeds(2, 20)).pieces)


def test_threads_and_programs_side_by_side(store: SchemeStore) -> None:
    programs = [
        Program(
            paper_stack(2),
            options=Options(tune=tune, record=True, recorder=FakeRecorder(), store=store),
        )
        for tune in ("off", "fast")
    ]
    inputs = [feeds(1 + i % 2, 9 + i, seed=i) for i in range(3)]
    expected = [exact(each) for each in inputs]
    wrong: list[Any] = []

    def work(which: int) -> None:
        for turn in range(12):
            i = (which + turn) % 3
            got = programs[(which + turn) % 2].run(inputs[i])["y"]
            if not np.allclose(got, expected[i], atol=3e-5):
                wrong.append((which, turn))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert not wrong


def test_too_little_memory_says_how_much_and_can_be_used_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = Program(paper_stack(2), options=Options(record=True, recorder=FakeRecorder()))
    inputs = feeds(2, 64)
    expected = program.run(inputs)["y"]

    def full(*args: Any, **options: Any) -> Any:
        raise MemoryError("Out of memory allocating 1,024 bytes")

    plain = program._ready[()].plain
    with monkeypatch.context() as patch:
        patch.setattr(plain, "run", full)
        patch.setattr(program._ready[()].placed, "run", full)
        wanted = program.plan(inputs).arena_bytes / 2**20
        match = rf"run: got too little memory \(Out of .*\), expected about {wanted:.1f} MiB"
        with pytest.raises(OutOfMemoryError, match=match), pytest.warns(StofWarning):
            program.run(inputs)
    np.testing.assert_array_equal(program.run(inputs)["y"], expected)


def test_too_little_memory_for_the_weights_says_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **how: Any) -> Any:
        raise MemoryError("Out of it")

    monkeypatch.setattr(Executor, "_upload", full)
    count = sum(array.size for array in paper_stack(2).constants.values())
    match = rf"expected about {count * 4 / 2**20:.1f} MiB for the weights"
    with pytest.raises(OutOfMemoryError, match=match):
        Program(paper_stack(2))


def test_a_class_that_is_being_tuned_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    made, begun, go_on = Ready.made.__func__, threading.Event(), threading.Event()  # type: ignore[attr-defined]
    program = Program(paper_stack(1), options=Options(tune="fast"))
    program.run(feeds(seq=8))
    count: list[int] = []

    def slow(cls: Any, *args: Any) -> Any:
        count.append(1)
        begun.set()
        assert go_on.wait(20)
        return made(cls, *args)

    monkeypatch.setattr(Ready, "made", classmethod(slow))
    threads = [threading.Thread(target=program.run, args=(feeds(seq=60),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert begun.wait(20)
    program.run(feeds(seq=7))  # of the class that is there
    go_on.set()
    for thread in threads:
        thread.join(20)
    assert count == [1] and len(program._ready) == 2


def test_a_closed_program_frees_and_refuses() -> None:
    program = Program(paper_stack(2), options=Options(record=True, recorder=FakeRecorder()))
    for _ in range(3):
        program.run(feeds())
    assert len(program._recordings) == 1  # type: ignore[arg-type]
    program.close()
    assert not program._uploads and not len(program._recordings)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="program: got one that is closed"):
        program.run(feeds())
    program.close()


def test_profile_adds_up() -> None:
    program = Program(paper_stack(2))
    profile = program.profile(feeds(), repeat=3)
    ops = [line.node.op for line in profile.lines if line.node.kind != "view"]
    assert ops == [
        node.op for node in program._ready[()].plain.graph.nodes() if node.kind in ("CI", "MI")
    ]
    assert 0 < sum(line.seconds for line in profile.lines) <= profile.seconds
    assert sum(profile.by_op().values()) == pytest.approx(sum(x.seconds for x in profile.lines))
    text = str(profile)
    assert "ms a run" in text and "2 x attention" in text and "attention(" in text
    for wrong in (0, 1.5, "3"):
        with pytest.raises(ArgumentError, match=f"repeat: got {wrong!r}"):
            program.profile(feeds(), repeat=wrong)  # type: ignore[arg-type]


def test_profile_names_what_runs_as_one(store: SchemeStore) -> None:
    program = Program(paper_stack(2), options=Options(tune="fast", store=store))
    inputs = feeds(2, 300)
    pieces = program._for(inputs).tuned.lowered.fused
    assert pieces
    profile = program.profile(inputs, repeat=2)
    run = [node for line in profile.lines for node in (*line.before, line.node)]
    graph = program._for(inputs).plain.graph
    assert set(run) == {node for node in graph.nodes() if node.op in OPS} and len(run) == len(
        {*run}
    )
    assert sum(bool(line.before) for line in profile.lines) == len(pieces)
    first = " + ".join(node.op for node in pieces[0].nodes)
    assert profile.by_op()[first] > 0 and f" x {first}" in str(profile)


def test_memory_is_planned_for_the_sizes_of_a_run() -> None:
    program = Program(paper_stack(2))
    small, large = (program.plan(feeds(2, seq)) for seq in (16, 64))
    assert 0 < small.arena_bytes < large.arena_bytes < large.total_bytes


def test_errors_are_typed() -> None:
    with pytest.raises(GraphError, match="no output"):
        Program(Graph("empty"))
    for name in ("record", "fold_norms"):
        with pytest.raises(ArgumentError, match=f"{name}: got 'yes'"):
            Options(**{name: "yes"})  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="tune: got "):
        Options(tune=["fast"])  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="tune: got 'most'"):
        Program(paper_stack(1), options=Options(tune="most"))
    program = Program(
        paper_stack(1), options=Options(record=True, recorder=FakeRecorder(), tune="fast")
    )
    for _ in range(3):
        with pytest.raises(ArgumentError, match="input 'x': got nothing"):
            program.run({})
        with pytest.raises(ShapeError, match="input 'x'"):
            program.run({"x": np.zeros((2, 3), np.float32)})
        with pytest.raises(ArgumentError, match="input: got 'z'"):
            program.run({**feeds(), "z": np.zeros(3)})


def test_explain_shows_graph_and_recordings() -> None:
    program = Program(
        paper_stack(1), options=Options(record=True, recorder=FakeRecorder(nbytes=1 << 20))
    )
    assert program.explain().startswith("paper (batch, seq)")
    for _ in range(3):
        program.run(feeds())
    text = program.explain()
    assert "tune='off'" in text and "1 recorded runs in 1.0 MiB, replayed 2 times" in text
    assert "memory at batch 2, seq 21: " in text and "in place" in text


def test_a_run_that_writes_to_its_inputs_is_not_run_on_copies(store: SchemeStore) -> None:
    g = Graph("cached", ("batch", "seq", "keys"))
    x = g.split_heads(g.input("x", ("batch", "seq", WIDTH), "float"), heads=2)
    at = g.input("at", ("batch", "seq"), "int")
    cache = g.input("cache", ("batch", 2, "keys", WIDTH // 2), "cache")
    keys = g.kv_cache(x, at, cache)
    g.output("y", g.merge_heads(g.attention(x, keys, keys)))
    options = Options(tune="fast", record=True, recorder=FakeRecorder(), store=store)
    program = Program(g, options=options)
    held = np.zeros((1, 2, 9, WIDTH // 2), np.float32)
    for step in range(6):
        row = np.random.default_rng(step).standard_normal((1, 1, WIDTH)).astype(np.float32)
        given = {"x": row, "at": np.array([[step]]), "cache": held[:, :, : step + 1]}
        exact = meaning.evaluate(g, given)["y"]
        np.testing.assert_allclose(program.run(given)["y"], exact, atol=1e-5)
        assert held[0, :, step].any() and not held[0, :, step + 1 :].any()
    assert not options.recorder.made and len(program._ready) == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("recorder", [None, FakeRecorder(), FakeRecorder(fails=OSError("no"))])
def test_a_bound_run_leaves_the_next_its_inputs(recorder: FakeRecorder | None) -> None:
    program = Program(paper_stack(2), options=Options(record=True, recorder=recorder))
    x, count = feeds(seed=5)["x"], np.zeros(1, np.int32)
    expected, want = [], x.copy()
    for _ in range(4):
        want = exact({"x": want, "mask": None}).astype(np.float32)
        expected.append(want)

    def finish(inputs: Any, outputs: Any) -> Any:
        inputs["x"][...] = outputs["y"]
        count[...] += 1
        return {"y": outputs["y"], "count": count.copy()}

    def made_of() -> Any:
        return bound.bind(program, {"x": x}, finish=finish, changes=(x, count))

    if recorder is not None and recorder.fails:
        with pytest.warns(StofWarning, match=r"could not be recorded .*\(no\)"):
            run = made_of()
    else:
        run = made_of()
    assert not count.any()
    for i in range(4):
        made = run()
        np.testing.assert_allclose(made["y"], expected[i], atol=1e-4)
        np.testing.assert_allclose(x, expected[i], atol=1e-4)
        assert count == made["count"] == i + 1
    x[...] = feeds(seed=5)["x"]  # a run reads what is there by then
    np.testing.assert_allclose(run()["y"], expected[0], atol=1e-4)
    if recorder is not None and not recorder.fails:
        assert [each.replays for each in recorder.made] == [5]


def test_a_bound_run_holds_what_was_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording reads arrays that only executors hold, and says nothing of that."""
    recorded = SimpleNamespace(turn=nullcontext, replay=lambda: None)
    recorder = SimpleNamespace(record=lambda run: (recorded, run()))
    program = Program(paper_stack(2), options=Options(record=True, recorder=recorder))
    made: list[Any] = []

    def executor(*args: Any) -> Any:
        found = plain(*args)
        made.append(weakref.ref(found))
        return found

    plain = ready._executor
    monkeypatch.setattr(ready, "_executor", executor)

    class Holder:
        def __init__(self) -> None:
            inputs = feeds(seed=5)
            self.array = weakref.ref(inputs["x"])
            self.run = bound.bind(program, inputs, finish=self.finish)

        def finish(self, _: Any, outputs: Any) -> Any:
            return outputs

    holder = Holder()
    array = holder.array
    gc.collect()
    assert len(made) == 3 and all(each() is not None for each in made)
    assert array() is not None
    gc.disable()  # it is no part of a cycle
    try:
        del holder
        assert made[2]() is None and array() is None
    finally:
        gc.enable()


def test_what_does_not_fit_is_refused_when_it_is_bound_or_run() -> None:
    for recorder in (None, FakeRecorder()):
        program = Program(paper_stack(1), options=Options(record=True, recorder=recorder))
        with pytest.raises(ShapeError, match="input 'x'"):
            if recorder is None:
                bound.bind(program, {"x": np.zeros((2, 3), np.float32)})()
            else:
                with pytest.warns(StofWarning):
                    run = bound.bind(program, {"x": np.zeros((2, 3), np.float32)})
                run()


def test_a_program_is_a_context_and_refuses_what_is_none() -> None:
    graph = paper_stack(1)
    with Program(graph) as program:
        for wrong in (None, [1], np.ones(3)):
            with pytest.raises(ArgumentError, match=r"inputs: got .*expected a mapping of input"):
                program.run(wrong)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="closed"):
        program.run({})
    with pytest.raises(GraphError, match="graph: got str, expected a Graph"):
        Program("block")  # type: ignore[arg-type]
    for other in ("fast", "", {}, Options):
        with pytest.raises(DTypeError, match=r"options: got \w+, expected Options$"):
            Program(graph, options=other)  # type: ignore[arg-type]
    for wrong in (-1, "many", float("nan")):
        with pytest.raises(ArgumentError, match=r"graphs: got .*expected a number of 0 or more"):
            Options(graphs=wrong)  # type: ignore[arg-type]
