"""The runtime room: a graph made ready to run again and again.

:class:`Program` fuses and tunes it, records its runs, times its operators and packs its sequences.
"""

from __future__ import annotations

from stof_cupy.runtime.program import Program
from stof_cupy.runtime.ready import Options

__all__ = ["Options", "Program"]
