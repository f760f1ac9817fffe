"""Every error the package raises on purpose, and the one sentence they are all made of.

An error says what was given, what was expected and, where that helps, what to do. Each class also
derives from the builtin that a caller would reach for (``ValueError``, ``TypeError``, ...), so code
that knows nothing of this module still works.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "ArgumentError",
    "CheckpointError",
    "CheckpointNotFoundError",
    "CompileError",
    "ConfigError",
    "DTypeError",
    "DeviceError",
    "GraphError",
    "MaskError",
    "MissingDependencyError",
    "OutOfBoundsError",
    "OutOfMemoryError",
    "ShapeError",
    "StofError",
    "StofWarning",
    "UnsupportedError",
    "WeightError",
    "mismatch",
]


class StofError(Exception):
    """Base of all errors raised by stof_cupy."""


class ArgumentError(StofError, ValueError):
    """A value outside its domain: a negative window, a token id beyond the vocabulary."""


class ShapeError(StofError, ValueError):
    """An array whose shape does not fit the call or another array."""


class DTypeError(StofError, TypeError):
    """An array or object of a type that the call does not take."""


class DeviceError(StofError, RuntimeError):
    """No usable device, or arrays that lie on different ones."""


class UnsupportedError(StofError, NotImplementedError):
    """A request that nothing here serves: float32 on CUDA, a head dim above 256, an old GPU."""


class MaskError(StofError, ValueError):
    """A mask that contradicts itself or the call: not boolean, of another size."""


class OutOfBoundsError(StofError, IndexError):
    """An index beyond the rows, columns or leading axes of a mask."""


class OutOfMemoryError(StofError, MemoryError):
    """Not enough memory for a run; says how much it needs. What raised it can be used on."""


class GraphError(StofError, ValueError):
    """A graph that does not verify: unknown op, shapes that clash, an undefined input."""


class CheckpointError(StofError, ValueError):
    """A checkpoint that cannot be read or does not describe a model known here."""


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """A checkpoint directory, or a file in it, that does not exist."""


class ConfigError(CheckpointError):
    """A config field that is missing, of the wrong type, or of a value that is not supported."""


class WeightError(CheckpointError):
    """A weight that is missing, unexpected, or of the wrong shape."""


class MissingDependencyError(StofError, ImportError):
    """An optional package is needed; the message names the extra that brings it."""


class CompileError(StofError, RuntimeError):
    """NVRTC refused a kernel; carries the compiler's log."""


class StofWarning(UserWarning):
    """Something works but not as well as it could: an unwritable cache, NaN in the weights."""


def mismatch(name: str, got: Any, expected: Any, hint: str = "") -> str:
    """Return the sentence every argument error uses.

    Parameters
    ----------
    name : str
        The argument, as the caller spelled it.
    got, expected : object
        What was given and what would have been right; formatted with ``str``.
    hint : str, optional
        What to do about it.

    Examples
    --------
    >>> mismatch("k", (2, 3, 8, 64), "(2, 3, any, 32)", "q has head_dim 32")
    'k: got (2, 3, 8, 64), expected (2, 3, any, 32); q has head_dim 32'
    """
    return f"{name}: got {got}, expected {expected}" + (f"; {hint}" if hint else "")
