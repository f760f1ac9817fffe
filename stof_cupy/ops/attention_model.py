"""Which kernel attention runs: the one that the time model (`attention_times`) says is fastest.

The paper's rule (STOF, arXiv 2506.06095, Eq. 1) is there for the record, see `attention_eq1`.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from stof_cupy.errors import ArgumentError, UnsupportedError, mismatch
from stof_cupy.jit.attention_kernels import SHAPES
from stof_cupy.masks.device.built import BuiltMask, UploadedMask
from stof_cupy.masks.stacking import AnyMask
from stof_cupy.ops import attention_config as blockwise
from stof_cupy.ops import attention_sm90 as sm90
from stof_cupy.ops.attention_candidates import KINDS, SM80, Candidate, candidates, name_of
from stof_cupy.ops.attention_constants import Constants
from stof_cupy.ops.attention_demand import Case
from stof_cupy.ops.attention_eq1 import stof_eq1
from stof_cupy.ops.attention_times import Times, time_of

__all__ = ["Estimate", "Select", "check_select", "choose", "explain", "predict"]

_ROUNDING = 1 + 1e-9  # of a bound and what it bounds, which are added up in different orders

Select = Literal["model", "stof-eq1", "stof-eq1-64", "sm80", "sm90"]
"""Who chooses: the model, or Eq. 1 on 16x16 blocks as printed, or on the 64x64 tiles that it counts
elsewhere; Eq. 1 decides row-wise or block-wise, the model then which of those. Or the model among
the kernels for any GPU from sm_80 on, or among what the one for Hopper can be, alone."""

_KERNELS: dict[str, tuple[str, ...]] = {"sm80": SM80, "sm90": ("sm90",)}
"""Those that a `Select` leaves, of `attention_candidates.KINDS`; all, where it is not here."""


@dataclass(frozen=True)
class Estimate:
    """What a candidate is predicted to take.

    Attributes
    ----------
    candidate : Candidate
    us : float
        Microseconds on the GPU, launch included.
    bound : str
        What binds: ``"tensor"``, ``"softmax"``, ``"smem"``, ``"l2"``, ``"dram"``, ``"issue"``,
        ``"latency"`` or ``"longest"``.
    """

    candidate: Candidate
    us: float
    bound: str

    @property
    def name(self) -> str:
        """Kernel, tile and split, e.g. ``"blockwise 4x32s2q1b2 / 8"``: slices of 8 key tiles."""
        return name_of(self.candidate)

    def __str__(self) -> str:
        return f"{self.us:10.1f} us  {self.name} ({self.bound})"


def check_select(select: str) -> None:
    """Raise ArgumentError unless `select` is one."""
    if not isinstance(select, str) or select not in get_args(Select):
        expected = "'model', 'stof-eq1', 'stof-eq1-64', 'sm80' or 'sm90'"
        raise ArgumentError(mismatch("select", repr(select), expected))


def predict(candidate: Candidate, case: Case, constants: Constants | None = None) -> Estimate:
    """Return the predicted time of a legal candidate."""
    return Estimate(candidate, *time_of(candidate, case, constants or Constants()))


def explain(
    case: Case,
    constants: Constants | None = None,
    *,
    select: Select = "model",
    among: Iterable[Candidate] | None = None,
) -> tuple[Estimate, ...]:
    """Return the estimates of all legal candidates; the first is what runs.

    Parameters
    ----------
    case : Case
    constants : Constants, optional
        Calibrated ones, see `attention_calibration`.
    select : {"model", "stof-eq1", "stof-eq1-64", "sm80", "sm90"}
        See `Select`. The fastest come first, with Eq. 1 those of its kernel.
    among : iterable of Candidate, optional
        Legal ones; default: all.

    Raises
    ------
    ArgumentError
        If there is no such `select`.
    UnsupportedError
        If no kernel can run the case.

    Examples
    --------
    >>> from stof_cupy import masks
    >>> from stof_cupy.jit.device import DeviceFacts
    >>> from stof_cupy.ops.attention_args import Problem
    >>> h100 = DeviceFacts("NVIDIA H100 80GB HBM3", "90a", (9, 0), 132, 232448, 233472, 50 << 20,
    ...                    1980000, 80 << 30, 2048, 2619000, 5120)
    >>> problem = Problem("float16", 1, 12, 12, 2048, 2048, 64, 64)
    >>> case = Case(problem, masks.causal(2048).tobsr(), h100)
    >>> [explain(case, select=select)[0].candidate.kernel for select in ("model", "sm80")]
    ['sm90', 'blockwise']
    """
    groups = _preferred(case, select, among)
    return tuple(
        each
        for group in groups
        for each in sorted(
            (predict(candidate, case, constants) for candidate in group),
            key=lambda each: (each.us, each.candidate.name),
        )
    )


def _preferred(
    case: Case, select: Select, among: Iterable[Candidate] | None = None
) -> tuple[Sequence[Candidate], ...]:
    """Return the candidates: those of the kernel that `select` says, if it says one, and the rest.

    The first of these is not empty.
    """
    check_select(select)
    kernels = _KERNELS.get(select)
    if select == "sm90" and case.problem.empty and case.facts.arch == "90a":
        kernels = SM80  # which write zeros
    if among is None:
        among = candidates(case, kernels)
    found = [each for each in among if kernels is None or each.kernel in kernels]
    if not found:
        why = _why_none(case, select)
        if select == "sm90":  # the problem may be of more keys than were given
            hint = f"Hopper's kernel does not go here: {why}"
            raise UnsupportedError(mismatch("select", repr(select), "'model' or 'sm80'", hint))
        raise UnsupportedError(mismatch("problem", case.problem, "one that a kernel takes", why))
    if not select.startswith("stof-eq1"):
        return (found,)
    wanted = stof_eq1(case.problem, case.mask, 64 if select.endswith("64") else 16)
    first = [each for each in found if KINDS[each.kernel].rule == wanted]
    rest = [each for each in found if KINDS[each.kernel].rule != wanted]
    return (first, rest) if first else (rest,)


def _fastest(case: Case, constants: Constants, select: Select) -> Candidate:
    """Return the first of `explain`, without the times of most others."""
    times = Times(case, constants)
    least = [
        (times.of(each, least=True).us, each.name, each) for each in _preferred(case, select)[0]
    ]
    least.sort(key=lambda each: each[:2])
    found = math.inf, "", least[0][2]
    for us, name, each in least:
        if us > found[0] * _ROUNDING:
            break
        found = min(found, (times.of(each).us, name, each), key=lambda x: x[:2])
    return found[2]


def _why_none(case: Case, select: Select) -> str:
    """Return why the kernel that was asked for, or that takes most, does not take a case."""
    if select == "sm90":
        return sm90.legal(sm90.Config(next(sm90.shapes(case))), case)
    shapes = SHAPES[max(SHAPES)]
    return blockwise.legal(blockwise.Config(max(SHAPES), shapes[-1]), case)


def choose(
    case: Case, constants: Constants | None = None, *, select: Select = "model"
) -> Candidate:
    """Return the candidate to run; kept with the mask, so that asking again costs microseconds.

    Depends on nothing that only the GPU knows. Parameters and errors are those of `explain`.
    """
    store, key = _store(case.mask)
    asked = (key, case.problem, case.scores, case.facts, case.nvrtc, case.given, constants, select)
    found: Candidate | None = store.get(asked)
    if found is None:
        found = store[asked] = _fastest(case, constants or Constants(), select)
    return found


class _Recent(OrderedDict[Any, Any]):
    """The last few choices of masks that keep none themselves."""

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        while len(self) > 1024:
            self.popitem(last=False)


_recent = _Recent()


def _store(mask: AnyMask | None) -> tuple[Any, Any]:
    """Return where choices under a mask are kept, and what else they depend on."""
    if mask is None:
        return _recent, "unmasked"
    if isinstance(mask, BuiltMask):
        return _recent, (mask.capacity, mask.lead)
    source: Any = mask.to("cpu") if isinstance(mask, UploadedMask) else mask
    return source._schedules, "choice"
