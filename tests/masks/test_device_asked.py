"""Which lists of a mask a rebuild fills, without a GPU: lists here count how often they are."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, ClassVar

import pytest

from stof_cupy.masks.device import built, mask

FIRST, OTHER = (64, 64), (128, 128)


class Counted:
    """Lists that hold what `now` was when they were filled."""

    now = 0
    prepared: ClassVar[list[bool]] = []

    def __init__(self, *_: Any) -> None:
        self.fault: Exception | None = None
        self.build()

    def build(self, *, prepare: bool = True) -> None:
        if self.fault is not None:
            raise self.fault
        self.schedule = Counted.now
        Counted.prepared.append(prepare)


@pytest.fixture
def device_mask(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(mask, "_current", lambda: 0)
    monkeypatch.setattr(mask, "_on", lambda device: nullcontext())
    monkeypatch.setattr(built, "Lists", Counted)
    monkeypatch.setattr(Counted, "now", 0)
    monkeypatch.setattr(Counted, "prepared", [])
    program: Any = None
    return built.BuiltMask((100, 100), (), program, None)


def test_lists_are_what_they_were_until_a_rebuild(device_mask: Any) -> None:
    """Documents that have changed since are the caller's to tell of, whoever asks first."""
    Counted.now = 1
    assert device_mask.schedule(FIRST) == 0
    device_mask.rebuild()
    Counted.now = 2
    assert device_mask.schedule(FIRST) == 1


def test_lists_that_a_rebuild_left_out_are_built_once_asked_for(device_mask: Any) -> None:
    assert device_mask.schedule(OTHER) == 0
    Counted.now = 1
    device_mask.rebuild(asked=True)
    assert device_mask.schedule(OTHER) == 1 and device_mask._first.schedule == 0
    assert device_mask.schedule(FIRST) == 1
    Counted.now = 2
    device_mask.rebuild(asked=True)
    assert device_mask.schedule(FIRST) == device_mask.schedule(OTHER) == 2


def test_lists_of_a_whole_rebuild_are_not_built_again(device_mask: Any) -> None:
    device_mask.rebuild(asked=True)
    Counted.now = 1
    device_mask.rebuild()
    Counted.now = 2
    assert device_mask.schedule(FIRST) == 1


def test_lists_that_could_not_be_built_are_built_when_asked_again(device_mask: Any) -> None:
    device_mask.rebuild(asked=True)
    Counted.now = 1
    device_mask._first.fault = RuntimeError("no")
    with pytest.raises(RuntimeError):
        device_mask.schedule(FIRST)
    device_mask._first.fault = None
    assert device_mask.schedule(FIRST) == 1


def test_what_all_lists_are_made_of_is_made_once_a_rebuild(device_mask: Any) -> None:
    for tile in (OTHER, (32, 32)):
        device_mask.schedule(tile)
    for asked in (True, False):
        Counted.prepared.clear()
        device_mask.rebuild(asked=asked)
        assert Counted.prepared == [True, *[False] * (1 if asked else 2)]
    device_mask.rebuild(asked=True)
    Counted.prepared.clear()
    device_mask.schedule(FIRST)  # nothing says that others have done it since
    assert Counted.prepared == [True]
