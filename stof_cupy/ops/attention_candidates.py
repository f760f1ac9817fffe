"""The kernels that attention may choose among, and which of them can run a case at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

from stof_cupy.ops import attention_config as blockwise
from stof_cupy.ops import attention_rowwise as rowwise
from stof_cupy.ops import attention_sm90 as sm90
from stof_cupy.ops.attention_demand import Case

__all__ = ["KINDS", "SM80", "Candidate", "Kind", "candidates", "legal", "name_of"]

Candidate: TypeAlias = blockwise.Config | rowwise.Config | sm90.Config
"""One way to compute an attention: what has `kernel`, `name`, `spec` and `resident`."""


class Kind(NamedTuple):
    """A kernel's side of the choice; another kernel is one more of `KINDS`.

    Attributes
    ----------
    configs : callable
        Yields the legal candidates of a `Case`.
    legal : callable
        Says why a candidate cannot run a `Case`; empty if it can.
    rule : str
        What the paper's Eq. 1 calls it.
    """

    configs: Callable[[Case], Iterator[Any]]
    legal: Callable[[Any, Case], str]
    rule: str


KINDS = {
    "blockwise": Kind(blockwise.configs, blockwise.legal, "blockwise"),
    "rowwise": Kind(rowwise.configs, rowwise.legal, "rowwise"),
    "sm90": Kind(sm90.configs, sm90.legal, "blockwise"),
}
"""By `Candidate.kernel`."""

SM80 = ("blockwise", "rowwise")
"""Of these, the kernels that run on any GPU from sm_80 on."""


def name_of(candidate: Candidate) -> str:
    """Return what tells a candidate from all others for the same case."""
    return f"{candidate.kernel} {candidate.name}"


def legal(candidate: Candidate, case: Case) -> str:
    """Say why a kernel cannot run a case; empty if it can.

    The one rule for the chooser, the tuner and the tests.

    Examples
    --------
    >>> from stof_cupy.jit.attention_kernels import SHAPES
    >>> from stof_cupy.jit.device import DeviceFacts
    >>> from stof_cupy.ops.attention_args import Problem
    >>> l4 = DeviceFacts("NVIDIA L4", "89", (8, 9), 58, 101376, 102400, 48 << 20, 2040000, 24 << 30)
    >>> case = Case(Problem("float16", 1, 8, 8, 4096, 4096, 256, 256), None, l4)
    >>> legal(blockwise.Config(256, SHAPES[256][-1]), case)
    ''
    >>> legal(rowwise.Config(64, lists="tiles"), case)
    'head dims 256 and 256: at most 64'
    """
    return KINDS[candidate.kernel].legal(candidate, case)


def candidates(case: Case, kinds: Iterable[str] | None = None) -> Iterator[Candidate]:
    """Yield every legal candidate.

    Parameters
    ----------
    case : Case
    kinds : iterable of str, optional
        Of `KINDS`; default: all.

    Raises
    ------
    UnsupportedError
        If the head dim is beyond the kernels'.
    """
    for name in KINDS if kinds is None else kinds:
        yield from KINDS[name].configs(case)
