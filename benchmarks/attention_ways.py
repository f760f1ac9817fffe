"""Calls of ours on a cell of attention_cells.py: as attention chooses, or from fewer kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stof_cupy import attention
from stof_cupy.jit import device
from stof_cupy.ops import attention_sm90 as sm90
from stof_cupy.ops.attention_args import Scores, validate
from stof_cupy.ops.attention_calibration import calibrated
from stof_cupy.ops.attention_candidates import candidates
from stof_cupy.ops.attention_cuda import prepared
from stof_cupy.ops.attention_demand import Case
from stof_cupy.ops.attention_fields import Args
from stof_cupy.ops.attention_model import Estimate, predict

if TYPE_CHECKING:
    from attention_cells import Cell

__all__ = ["WAYS", "NotForError", "call", "chosen"]

WAYS: dict[str, Any] = {
    "ours": "model",
    "ours sm80": "sm80",
    "ours packed": "sm90",
    "ours unpacked": "sm90",
}
"""What is ours, and how it is selected; Hopper's kernel with keys packed, worth it or not, too."""


class NotForError(Exception):
    """There is no such attention."""


def call(cell: Cell, way: str = "ours") -> Callable[[], None]:
    """Return what computes ``cell.out``; raise NotForError if there is no such kernel."""
    if "packed" in way:
        return prepared(chosen(cell, way).candidate, _args(cell))

    def run() -> None:
        attention(cell.q, cell.k, cell.v, cell.mask.ours, out=cell.out, select=WAYS[way])

    return run


def chosen(cell: Cell, way: str = "ours") -> Estimate:
    """Return what that runs."""
    if way == "ours packed":
        return _packed(cell)
    found = attention(
        cell.q, cell.k, cell.v, cell.mask.ours, out=cell.out, select=WAYS[way], explain=True
    )
    if way == "ours unpacked":
        found = [each for each in found if not each.candidate.packed]
    best: Estimate = found[0]
    return best


def _packed(cell: Cell) -> Estimate:
    """Return the best of the kernels with packed keys, of which few are candidates."""
    args, facts = _args(cell), device.facts()
    case = Case(args.problem, args.mask, facts, given=sm90.given(args))
    shapes = dict.fromkeys(each.shape for each in candidates(case, ("sm90",)))
    packed = (sm90.Config(replace(shape, packed=True, halves=False)) for shape in shapes)
    legal = [sm90.whole(each.shape, case) for each in packed if not sm90.legal(each, case)]
    if not legal:
        raise NotForError("packed keys")
    return min((predict(x, case, calibrated(facts)) for x in legal), key=lambda each: each.us)


def _args(cell: Cell) -> Args:
    arrays = cell.q, cell.k, cell.v
    _, problem, mask, scores = validate(*arrays, cell.mask.ours, Scores(), None, cell.out)
    return Args(problem, *arrays, cell.out, None, mask, scores, None)
