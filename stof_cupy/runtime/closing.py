"""What holds memory until it is closed, as a context: ``with Program(graph) as program:``."""

from __future__ import annotations

from types import TracebackType
from typing import TypeVar

__all__ = ["Closing"]

Self = TypeVar("Self", bound="Closing")


class Closing:
    """Something that is closed at the end of a ``with`` block.

    Examples
    --------
    >>> class Door(Closing):
    ...     def close(self):
    ...         print("closed")
    >>> with Door() as door:
    ...     print("open")
    open
    closed
    """

    def close(self) -> None:
        """Free what it holds."""
        raise NotImplementedError

    def __enter__(self: Self) -> Self:
        """Return it, to be closed at the end of the block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
