"""The scheme code: every form reads back as what was written."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stof_cupy.errors import ArgumentError
from stof_cupy.fusion.scheme import Scheme

SIZES = st.lists(st.integers(1, 9), max_size=30).map(tuple)


@settings(max_examples=200, derandomize=True)
@given(SIZES)
def test_all_forms_read_back(sizes: tuple[int, ...]) -> None:
    scheme = Scheme(sizes)
    assert Scheme.from_bits(scheme.bits) == scheme
    assert Scheme.from_bits(str(scheme)) == scheme
    assert Scheme.from_bits([1 - bit for bit in scheme.bits]) == scheme
    assert Scheme.parse(scheme.hex) == Scheme.parse(scheme.hex.upper()) == scheme
    assert Scheme.from_spans(scheme.spans()) == scheme
    assert len(scheme.bits) == scheme.count == sum(sizes)


@settings(max_examples=200, derandomize=True)
@given(st.lists(st.integers(0, 1), min_size=1, max_size=40))
def test_digits_change_at_boundaries_and_nowhere_else(bits: list[int]) -> None:
    scheme = Scheme.from_bits(bits)
    boundaries = {start for start, _ in scheme.spans()} - {0}
    assert boundaries == {i for i in range(1, len(bits)) if bits[i] != bits[i - 1]}
    assert scheme.bits[0] == 0
    assert [bit ^ bits[0] for bit in bits] == list(scheme.bits)


def test_two_schemes_of_one_length_have_two_codes() -> None:
    every = {Scheme.from_bits(f"0{number:07b}") for number in range(2**7)}
    assert len({scheme.hex for scheme in every}) == 2**7


@pytest.mark.parametrize(
    ("printed", "segments"),
    [
        ("0 1 00000 111 000 11", [(0, 1), (1, 2), (2, 7), (7, 10), (10, 13), (13, 15)]),
        ("00 11111 000 1111 0", [(0, 2), (2, 7), (7, 10), (10, 14), (14, 15)]),
    ],
)
def test_figures_of_the_paper(printed: str, segments: list[tuple[int, int]]) -> None:
    scheme = Scheme.from_bits(printed)
    assert scheme.spans() == segments
    assert str(scheme) == printed


@pytest.mark.parametrize("text", ["", "15", "15:", "x:1", "3:7", "3:g", "-1:0", "15:20e3 ", "0:1"])
def test_what_is_no_code(text: str) -> None:
    with pytest.raises(ArgumentError, match="scheme: got"):
        Scheme.parse(text)


def test_what_is_no_scheme() -> None:
    for sizes in ((0,), (1, -2), (1.5,), (True,)):
        with pytest.raises(ArgumentError, match="sizes: got"):
            Scheme(sizes)
    with pytest.raises(ArgumentError, match="bits: got '2', expected 0 or 1"):
        Scheme.from_bits("012")
    for spans in ([(0, 2), (3, 4)], [(1, 2)], [(0, 2), (1, 3)]):
        with pytest.raises(ArgumentError, match="without gap"):
            Scheme.from_spans(spans)
    assert Scheme(()).hex == "0:0" and Scheme.parse("0:0") == Scheme(())
    assert Scheme.single(3).sizes == (1, 1, 1)
