"""Recordings: what is recorded, what is kept, and that a replay is a run of its own inputs."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stof_cupy.errors import ShapeError, StofWarning
from stof_cupy.graph import cuda_recorder
from stof_cupy.graph.recorder import Recordings
from stof_cupy.ops._counters import Taken
from tests.runtime.fake import FakeRecorder


class Held:
    """What a run reads beside its inputs."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> Any:
        return np.array([True, False])  # as masks compare


def double(inputs: Any) -> dict[str, Any]:
    return {"y": inputs["x"] * 2}


def run(recordings: Recordings, x: Any, **options: Any) -> Any:
    return recordings.run((x.shape, x.dtype.name), {"x": x}, double, **options)["y"]


def test_the_second_run_is_recorded_and_the_third_replayed() -> None:
    recorder = FakeRecorder()
    recordings = Recordings(recorder)
    kept = []
    for i in range(5):
        y = run(recordings, np.full(3, i))
        assert (y == 2 * i).all()
        kept.append(y)
    assert [y[0] for y in kept] == [0, 2, 4, 6, 8]  # results stay the caller's
    assert len(recorder.made) == 1 == len(recordings)
    assert recordings.replayed == 4 and recorder.made[0].replays == 4


def test_another_shape_or_type_is_another_run() -> None:
    recorder = FakeRecorder()
    recordings = Recordings(recorder)
    for x in (np.zeros(3), np.zeros(4), np.zeros(3, np.float32)):
        for _ in range(3):
            assert run(recordings, x).dtype == x.dtype
    assert len(recorder.made) == 3


def test_recordings_are_bounded_in_number() -> None:
    recorder = FakeRecorder()
    recordings = Recordings(recorder, most=2)
    for size in (1, 2, 1, 3):
        for _ in range(2):
            run(recordings, np.zeros(size))
    assert len(recordings) == 2 and recordings.dropped == 1 and len(recorder.made) == 3
    run(recordings, np.zeros(1))  # used later than the run of 2
    assert recorder.made[0].replays == 4
    run(recordings, np.zeros(2))
    assert len(recorder.made) == 4  # was seen often enough already


class Telling:
    """Says when it is gone."""

    def __init__(self, name: str, gone: list[str]) -> None:
        self.name, self.gone = name, gone

    def __del__(self) -> None:
        self.gone.append(self.name)


def test_a_recording_goes_after_the_outputs_that_lie_in_its_memory() -> None:
    """Its end frees that memory, and can do so only where nothing lies any more."""
    gone: list[str] = []

    class Output(np.ndarray[Any, Any]):
        told: Any

    class Recorder(FakeRecorder):
        def record(self, run: Any) -> Any:
            made, result = super().record(run)
            made.told = Telling("recording", gone)  # type: ignore[attr-defined]
            output = result["y"].view(Output)
            output.told = Telling("output", gone)
            self.made.clear()
            return made, {"y": output}

    recordings = Recordings(Recorder())
    for _ in range(2):
        run(recordings, np.zeros(3))
    gone.clear()
    recordings.close()
    assert gone == ["output", "recording"]


class Event:
    """As CuPy's: one that was finalised, by whomever, is none."""

    done = True

    def __init__(self) -> None:
        self.destroyed = False

    def __del__(self) -> None:
        self.destroyed = True


def test_a_recording_in_a_cycle_gives_counters_back_with_an_event_that_is_there() -> None:
    """Python finalises what is in a cycle in any order, before or after the recording itself."""
    returned: list[tuple[int, int, Any]] = []
    freed: list[Any] = []
    taken = [Taken(SimpleNamespace(_returned=returned), 3, 8)]  # type: ignore[arg-type]
    pool = SimpleNamespace(free_all_blocks=lambda: freed.append(held().graph))
    kept = cuda_recorder._Held(Telling("graph", []), pool, None, taken)
    held = weakref.ref(kept)
    recording, kept.used = cuda_recorder._CudaRecording(kept), Event()
    cycle: list[Any] = [recording, kept.used]
    cycle.append(cycle)
    del recording, kept, cycle
    gc.collect()
    ((first, size, event),) = returned
    assert (first, size, event.destroyed) == (3, 8, False)
    assert freed == [None]  # the graph goes before its memory
    assert held() is None


def test_what_a_run_reads_may_be_written_instead_of_copied() -> None:
    recordings = Recordings(FakeRecorder())
    written: list[Any] = []
    empty = np.full(3, -1)

    def successor(given: Any) -> dict[str, Any]:
        return {"y": given["x"] + 1}

    def write(number: int, into: Any) -> None:
        written.append(into["x"])
        into["x"][...] = number

    for number in range(4):
        made = recordings.run("key", {"x": empty}, successor, write=partial(write, number))
        assert made["y"].tolist() == [number + 1] * 3
    # The caller's own while nothing is recorded; then the recording's, as it is made and each time.
    assert written[0] is empty and (empty == 0).all()
    assert len(written) == 5 and all(each is written[1] for each in written[1:])


def test_recordings_are_bounded_in_bytes() -> None:
    recordings = Recordings(FakeRecorder(nbytes=400), most_bytes=1000)
    for size in range(1, 5):
        for _ in range(2):
            assert (run(recordings, np.ones(size)) == 2).all()
    assert len(recordings) == 2 and recordings.nbytes == 2 * 400 + 3 * 8 + 4 * 8  # with inputs
    large = Recordings(FakeRecorder(nbytes=4000), most_bytes=1000)
    for _ in range(4):
        assert (run(large, np.ones(2)) == 2).all()
    assert len(large) == 0 == large.nbytes


def test_what_a_run_reads_beside_its_inputs_is_part_of_what_it_is() -> None:
    recorder = FakeRecorder()
    recordings = Recordings(recorder)
    masks = [Held(2), Held(3)]
    for _ in range(3):
        for mask in masks:
            x = np.ones(3)
            got = recordings.run(
                "run", {"x": x}, lambda given, m=mask: {"y": given["x"] * m.factor}, [mask]
            )
            assert (got["y"] == mask.factor).all()
    assert len(recorder.made) == 2


def test_an_id_that_comes_back_is_another_object() -> None:
    recorder = FakeRecorder()
    recordings = Recordings(recorder)
    for i in range(50):
        mask = Held(i)
        got = recordings.run(
            "run", {"x": np.ones(1)}, lambda given, m=mask: {"y": given["x"] * m.factor}, [mask]
        )
        assert got["y"][0] == i
        del mask
    assert not recorder.made


def test_what_cannot_be_watched_is_not_recorded() -> None:
    recorder = FakeRecorder()
    recordings = Recordings(recorder)
    text = "a str has no weak references"
    for _ in range(4):
        run(recordings, np.ones(2), kept=[text])
    assert not recorder.made


def test_a_run_that_cannot_be_recorded_is_run_and_said_once() -> None:
    recordings = Recordings(FakeRecorder(fails=RuntimeError("stream is capturing")))
    run(recordings, np.ones(2))
    with pytest.warns(StofWarning, match="could not be recorded .*stream is capturing") as said:
        for size in (2, 2, 3, 3, 3):
            assert (run(recordings, np.ones(size)) == 2).all()
    assert len(said) == 1 and len(recordings) == 0


def test_an_error_of_the_run_is_the_callers() -> None:
    def wrong(inputs: Any) -> Any:
        raise ShapeError("x: got this, expected that")

    recordings = Recordings(FakeRecorder())
    for _ in range(4):
        with pytest.raises(ShapeError):
            recordings.run("run", {"x": np.ones(1)}, wrong)


def test_none_are_kept_when_none_are_wanted_or_all_is_closed() -> None:
    for recordings in (Recordings(FakeRecorder(), most=0), Recordings(FakeRecorder())):
        recordings.close() if recordings._most else None
        for _ in range(4):
            assert (run(recordings, np.ones(2)) == 2).all()
        assert len(recordings) == 0
    open_one = Recordings(FakeRecorder())
    for _ in range(3):
        run(open_one, np.ones(2))
    open_one.close()
    assert len(open_one) == 0 == open_one.nbytes
    assert (run(open_one, np.ones(2)) == 2).all()


def test_threads_take_turns() -> None:
    recorder = FakeRecorder()
    recordings = Recordings(recorder)
    wrong: list[Any] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(200):
            x = rng.integers(0, 9, int(rng.integers(1, 4)))
            try:
                if not np.array_equal(run(recordings, x), 2 * x):
                    wrong.append(x)
            except AssertionError as error:
                wrong.append(error)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert not wrong and len(recorder.made) == 3


@pytest.mark.gpu
def test_cuda_graphs_replay_new_inputs_on_any_stream() -> None:
    import cupy

    from stof_cupy.graph.cuda_recorder import CudaRecorder

    recordings = Recordings(CudaRecorder(cupy.cuda.Device().id))

    def call(inputs: Any) -> dict[str, Any]:
        scratch = inputs["x"] * 3  # memory that only the recording has
        return {"y": scratch + inputs["x"]}

    for i in range(6):
        x = cupy.full(1 << 20, i, cupy.float32)
        with cupy.cuda.Stream(non_blocking=True) as stream:
            stream.wait_event(cupy.cuda.Stream.null.record())
            y = recordings.run("run", {"x": x}, call)["y"]
            stream.synchronize()
        cupy.empty(1 << 22)[...] = 7  # nobody else gets the recording's memory
        assert bool((y == 4 * i).all())
    assert recordings.replayed == 5 and recordings.nbytes >= 3 * 4 << 20


@pytest.mark.gpu
def test_counters_of_a_dropped_cuda_graph_are_another_ones() -> None:
    """Once what was launched of it has run; those of a graph that is there are its own."""
    import cupy

    from stof_cupy.graph.cuda_recorder import CudaRecorder
    from stof_cupy.ops._counters import counters

    device = cupy.cuda.Device().id
    x, taken = cupy.zeros(4, np.float32), []

    def call() -> dict[str, Any]:
        taken.append(counters(device).take(2**13))  # as many as nobody else asks for
        return {"y": x + 1}

    def recorded() -> tuple[Any, int]:
        recording, _ = CudaRecorder(device).record(call)
        return recording, taken[-1]

    first, address = recorded()
    second, other = recorded()
    assert other != address
    with first.turn():
        first.replay()
    cupy.cuda.get_current_stream().synchronize()
    del first
    third, again = recorded()
    assert again == address
    fourth, last = recorded()
    assert last not in {address, other}
    del second, third, fourth  # they were there until now
