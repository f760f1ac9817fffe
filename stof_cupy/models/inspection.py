"""What an engine tells of its runs: where the time goes, how they were tuned, what they do."""

from __future__ import annotations

import threading
from typing import Any

from stof_cupy.fusion.report import Report
from stof_cupy.graph import Graph
from stof_cupy.interop import import_array
from stof_cupy.models import Model
from stof_cupy.models.inputs import image_inputs, model_inputs, refuse_for_images
from stof_cupy.models.session import Sessions
from stof_cupy.models.target import Target
from stof_cupy.runtime import Program
from stof_cupy.runtime.closing import Closing
from stof_cupy.runtime.profile import Profile

__all__ = ["Inspection"]


class Inspection(Closing):
    """The part of :class:`stof_cupy.TransformerEngine` that explains, times and ends."""

    config: dict[str, Any]
    graph: Graph
    _model: Model
    _target: Target
    _program: Program
    _others: dict[str, Program]
    _sessions: Sessions
    _lock: threading.Lock
    _closed: bool

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
        with self._target.active():
            inputs = self._inputs(x, lengths, mask, token_types)
            return self._program.profile(inputs, repeat=repeat)

    def report(self, x: Any, *, mask: Any = None) -> Report:
        """Return how runs like this one are tuned, which it does if it was not done yet.

        ``print`` shows what was tried and why the winner won, ``save_plot(path)`` draws it.
        """
        with self._target.active():
            return self._program.tuned(self._inputs(x, None, mask, None))

    def _inputs(self, x: Any, lengths: Any, mask: Any, token_types: Any) -> dict[str, Any]:
        """Return the graph's inputs for token ids, or for the pixels of an image encoder."""
        vision = self._model.vision
        if vision is not None:
            refuse_for_images(lengths=lengths, token_types=token_types)
            return image_inputs(self._model, vision, self._target, x, mask, None)
        ids, _ = import_array(x, "x")
        return model_inputs(self._model, self._target, ids, lengths, mask, token_types)

    def explain(self) -> str:
        """Return as text what a run does: where, in which type, and the graph's nodes.

        And how it was tuned, as far as runs were, and what is recorded.
        """
        size = sum(array.size for array in self.graph.constants.values()) / 1e6
        head = f"{self.config['model_type']}, {size:.1f} M weights, on {self._target}"
        return f"{head}\n{self._program.explain()}"

    def close(self) -> None:
        """Free the weights and recorded runs; the engine cannot be run after it."""
        with self._lock:
            self._closed = True
            programs, self._others = [self._program, *self._others.values()], {}
            # Runs that are under way in other threads keep what they need until they end.
            self._model, self.graph = self._model.emptied(), self.graph.emptied()
        self._sessions.clear()
        for program in programs:
            program.close()
