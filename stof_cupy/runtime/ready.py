"""What runs one class of shapes, and what a run's inputs say of its sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stof_cupy.fusion.bench import Site
from stof_cupy.fusion.tune import Tuned
from stof_cupy.graph import Executor, Graph
from stof_cupy.masks.expression import Pattern

__all__ = ["Ready", "sizes_of", "stays", "where"]


@dataclass(frozen=True)
class Ready:
    """What was tuned, and what runs it: as it is, and in an arena, for recording.

    Attributes
    ----------
    tuned : Tuned
    plain, placed : Executor
    """

    tuned: Tuned
    plain: Executor
    placed: Executor

    @classmethod
    def of(cls, tuned: Tuned, site: Site) -> Ready:
        """Make the executors; they share the weights that `site` holds."""
        plain, placed = (
            Executor(
                tuned.lowered.graph,
                backend=site.backend,
                dtype=site.dtype,
                device=site.device,
                fused=tuned.lowered.fused,
                arena=arena,
                uploads=site.uploads,
            )
            for arena in (False, True)
        )
        return cls(tuned, plain, placed)


def sizes_of(graph: Graph, inputs: Mapping[str, Any]) -> dict[str, int]:
    """Return what the symbolic dims are as far as the shapes of `inputs` say.

    Examples
    --------
    >>> import numpy as np
    >>> g = Graph("one")
    >>> x = g.input("x", ("batch", "seq", 4), "float")
    >>> sizes_of(g, {"x": np.zeros((2, 3, 4))})
    {'batch': 2, 'seq': 3}
    """
    sizes: dict[str, int] = {}
    for name, node in graph.inputs.items():
        shape = tuple(getattr(inputs.get(name), "shape", ()))
        shape = shape[-2:] if node.dtype == "mask" else shape
        if len(shape) == len(node.shape):
            pairs = zip(node.shape, shape, strict=True)
            sizes |= {dim: size for dim, size in pairs if isinstance(dim, str)}
    return sizes


def stays(value: Any) -> bool:
    """Whether what an object holds is the same as long as it is the same object: masks of ours."""
    return isinstance(value, Pattern) or hasattr(value, "schedule")


def where(array: Any) -> int:
    """Return the number of an array's CUDA device; -1 on the host."""
    device = getattr(array, "device", None)
    return -1 if device is None or isinstance(device, str) else int(device.id)
