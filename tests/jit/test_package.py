from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stof_cupy import jit


def test_names_resolve() -> None:
    for name in jit.__all__:
        assert getattr(jit, name).__name__ == name


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match=r"'stof_cupy\.jit' has no attribute 'compile_ptx'"):
        _ = jit.compile_ptx


def test_import_is_lazy() -> None:
    code = "import sys, stof_cupy.jit; print([m for m in sys.modules if 'stof_cupy.jit.' in m])"
    root = Path(__file__).parents[2]
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root
    )
    assert out.stdout.strip() == "[]"
