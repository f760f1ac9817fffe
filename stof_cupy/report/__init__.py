"""The report room: benchmark results as tables and pictures, and what moved between two of them."""

from __future__ import annotations

from stof_cupy.report.compare import Comparison, compare
from stof_cupy.report.document import report_markdown, report_text, rewritten, write_report
from stof_cupy.report.files import read_directory, read_file
from stof_cupy.report.results import Results

__all__ = [
    "Comparison",
    "Results",
    "compare",
    "read_directory",
    "read_file",
    "report_markdown",
    "report_text",
    "rewritten",
    "write_report",
]
