"""Every test starts from the same seeds; ``gpu`` is in the conftest.py above."""

from __future__ import annotations

import random

import numpy as np
import pytest

# Scripts that make committed data. Doctest would import them, and they import what tests lack.
collect_ignore_glob = ["*/make_*.py"]


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Start from the same state of the global generators, whatever ran before."""
    random.seed(0)
    np.random.seed(0)
