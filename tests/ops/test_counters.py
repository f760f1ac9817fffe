"""Words that kernels count in: in turn, or one's own for as long as a graph may run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from stof_cupy.errors import UnsupportedError
from stof_cupy.ops import _counters
from stof_cupy.ops._counters import Counters, counters, give_back, taking


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Return the current stream of a CuPy that is none; what was `done`, on it and on others."""
    one = SimpleNamespace(capturing=False, strict=False, done=[])
    one.is_capturing = lambda: one.capturing

    class Stream:
        entered = False

        def __init__(self, non_blocking: bool) -> None:
            assert non_blocking  # or it would wait for, and be captured with, the default stream

        def __enter__(self) -> Stream:
            Stream.entered = True
            return self

        def __exit__(self, *_: object) -> None:
            Stream.entered = False

        def synchronize(self) -> None:
            one.done.append("waited for another stream")

    def zeros(count: int, dtype: type) -> SimpleNamespace:
        if one.strict:
            raise OSError("cudaErrorStreamCaptureUnsupported")
        one.done.append(f"zeroed on {'another' if Stream.entered else 'the current'} stream")
        return SimpleNamespace(data=SimpleNamespace(ptr=0))

    cuda = SimpleNamespace(
        get_current_stream=lambda: one,
        using_allocator=nullcontext,
        Stream=Stream,
        runtime=SimpleNamespace(CUDARuntimeError=OSError),
    )
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda, zeros=zeros))
    monkeypatch.setattr(_counters, "_made", {})
    yield one


def test_launches_take_them_in_turn(stream: SimpleNamespace) -> None:
    made = counters(0)
    assert counters(0) is made and counters(1) is not made
    assert [made.take(100) for _ in range(3)] == [0, 400, 800]
    addresses = {made.take(2**16) for _ in range(9)}
    turns = {4 * (300 + i * 2**16) for i in range(3)}, {4 * i * 2**16 for i in range(4)}
    assert addresses == turns[0] | turns[1]


@pytest.mark.parametrize("capturing", [False, True])
def test_the_first_may_be_in_a_capture(stream: SimpleNamespace, capturing: bool) -> None:
    stream.capturing = capturing
    assert counters(0).take() == 4 * Counters._TURNS * capturing
    assert stream.done == ["zeroed on another stream", "waited for another stream"]


def test_the_first_in_a_capture_that_allows_no_allocation(stream: SimpleNamespace) -> None:
    stream.strict = stream.capturing = True
    with pytest.raises(
        UnsupportedError, match=r"strict stream capture.*run it once on this device"
    ):
        counters(0)
    stream.capturing = False
    with pytest.raises(OSError):  # which is no fault of the capture
        counters(0)
    stream.strict = False
    assert counters(0).take() == 0


def test_captured_launches_take_their_own(stream: SimpleNamespace) -> None:
    made, stream.capturing = counters(0), True
    first = made.take(3)
    assert first == 4 * Counters._TURNS and made.take(1) == first + 4 * 4
    for _ in range(3):
        made.take(2**18)
    with pytest.raises(UnsupportedError, match="captured launches"):
        made.take(2**18)


def captured(stream: SimpleNamespace, *counts: int) -> tuple[list[int], list[_counters.Taken]]:
    with taking(0) as taken:
        stream.capturing = True
        found = [counters(0).take(count) for count in counts]
        stream.capturing = False
    return found, taken


def test_those_of_a_graph_come_again_once_it_has_run(stream: SimpleNamespace) -> None:
    counters(0)
    kept, _ = captured(stream, 50)
    found, taken = captured(stream, 60, 1, 64)
    event = SimpleNamespace(done=False)
    give_back(taken, event)
    others, _ = captured(stream, 64, 1, 33)
    assert not {*others} & {*found}
    event.done = True
    again, _ = captured(stream, 64, 1, 33, 64)
    assert {*again[:3]} == {*found} and again[3] not in {*found, *others, *kept}


def test_a_capture_that_fails_gives_them_back(stream: SimpleNamespace) -> None:
    counters(0)
    with pytest.raises(ValueError), taking(0):
        stream.capturing = True
        first = counters(0).take(8)
        raise ValueError
    stream.capturing = False
    assert captured(stream, 8)[0] == [first]


def test_graphs_one_after_another_never_run_out(stream: SimpleNamespace) -> None:
    counters(0)
    for _ in range(300):
        _, taken = captured(stream, *np.random.default_rng(0).integers(1, 2**14, 9).tolist())
        give_back(taken, None)
