"""What an engine tells of its runs: where the time goes, how they were tuned, what they do."""

from __future__ import annotations

from types import TracebackType
from typing import Any, TypeVar

from stof_cupy.fusion.report import Report
from stof_cupy.graph import Graph
from stof_cupy.interop import import_array
from stof_cupy.models import Model
from stof_cupy.models.inputs import model_inputs
from stof_cupy.models.target import Target
from stof_cupy.runtime import Program
from stof_cupy.runtime.profile import Profile

__all__ = ["Inspection"]

Self = TypeVar("Self", bound="Inspection")


class Inspection:
    """The part of :class:`stof_cupy.TransformerEngine` that explains, times and ends."""

    config: dict[str, Any]
    graph: Graph
    _model: Model
    _target: Target
    _program: Program

    def profile(
        self,
        x: Any,
        *,
        lengths: Any = None,
        mask: Any = None,
        token_types: Any = None,
        repeat: int = 5,
    ) -> Profile:
        """Time a run operator by operator; ``print`` shows it. Arguments are those of `run`.

        On CUDA every operator is an NVTX range too, for Nsight Systems.
        """
        ids, _ = import_array(x, "x")
        with self._target.active():
            inputs = model_inputs(self._model, self._target, ids, lengths, mask, token_types)
            return self._program.profile(inputs, repeat=repeat)

    def report(self, x: Any, *, mask: Any = None) -> Report:
        """Return how runs like this one are tuned, which it does if it was not done yet.

        ``print`` shows what was tried and why the winner won, ``save_plot(path)`` draws it.
        """
        ids, _ = import_array(x, "x")
        with self._target.active():
            inputs = model_inputs(self._model, self._target, ids, None, mask, None)
            return self._program.tuned(inputs)

    def explain(self) -> str:
        """Return as text what a run does: where, in which type, and the graph's nodes.

        And how it was tuned, as far as runs were, and what is recorded.
        """
        size = sum(array.size for array in self.graph.constants.values()) / 1e6
        head = f"{self.config['model_type']}, {size:.1f} M weights, on {self._target}"
        return f"{head}\n{self._program.explain()}"

    def close(self) -> None:
        """Free what the engine holds."""
        raise NotImplementedError

    def __enter__(self: Self) -> Self:
        """Return the engine, to be closed at the end of a ``with`` block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
