"""The ``gpu`` marker of tests and benchmarks: skipped, with the reason, without a GPU."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--require-gpu``, for machines where a skipped GPU test would go unnoticed."""
    parser.addoption(
        "--require-gpu", action="store_true", help="fail at once where GPU tests would be skipped"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what is marked ``gpu``; CuPy is looked for only if something is."""
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    reason = why_no_gpu() if on_gpu or config.getoption("--require-gpu") else ""
    if not reason:
        return
    if config.getoption("--require-gpu"):
        raise pytest.UsageError(f"--require-gpu: {reason}")
    for item in on_gpu:
        item.add_marker(pytest.mark.skip(reason=reason))


def why_no_gpu() -> str:
    """Say why GPU tests cannot run here; empty when they can."""
    try:
        import cupy
    except ImportError:
        return "CuPy is not installed (extra cuda12 or cuda13)"
    return "" if cupy.cuda.is_available() else "CuPy finds no NVIDIA GPU and driver"
