"""The typed errors: one base, the builtin a caller would reach for, one form of sentence."""

from __future__ import annotations

import ast
import pickle
from pathlib import Path

import pytest

from stof_cupy import errors

PACKAGE = Path(errors.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
BUILTINS = {
    "ArgumentError": ValueError,
    "ShapeError": ValueError,
    "DTypeError": TypeError,
    "DeviceError": RuntimeError,
    "UnsupportedError": NotImplementedError,
    "MaskError": ValueError,
    "OutOfBoundsError": IndexError,
    "OutOfMemoryError": MemoryError,
    "GraphError": ValueError,
    "CheckpointError": ValueError,
    "CheckpointNotFoundError": FileNotFoundError,
    "ConfigError": ValueError,
    "WeightError": ValueError,
    "MissingDependencyError": ImportError,
    "CompileError": RuntimeError,
}


@pytest.mark.parametrize("name, builtin", BUILTINS.items())
def test_caught_by_base_and_builtin(name: str, builtin: type[Exception]) -> None:
    error = getattr(errors, name)
    for expected in (errors.StofError, builtin):
        with pytest.raises(expected, match="said"):
            raise error("said")


@pytest.mark.parametrize("name", BUILTINS)
def test_survives_a_process_boundary(name: str) -> None:
    error = pickle.loads(pickle.dumps(getattr(errors, name)("said")))
    assert type(error).__name__ == name and str(error) == "said"


def test_every_error_is_listed() -> None:
    defined = {name: value for name, value in vars(errors).items() if isinstance(value, type)}
    classes = {name for name, value in defined.items() if issubclass(value, BaseException)}
    assert set(errors.__all__) == classes | {"mismatch"}
    assert classes == {*BUILTINS, "StofError", "StofWarning"}


def test_the_warning_is_no_error() -> None:
    assert issubclass(errors.StofWarning, UserWarning)
    assert not issubclass(errors.StofWarning, errors.StofError)


@pytest.mark.parametrize(
    "hint, sentence",
    [
        ("", "window: got -1, expected 0 or more"),
        ("use 0 for the diagonal", "window: got -1, expected 0 or more; use 0 for the diagonal"),
    ],
)
def test_mismatch_names_both_sides(hint: str, sentence: str) -> None:
    assert errors.mismatch("window", -1, "0 or more", hint) == sentence


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_assert_in_the_package(module: Path) -> None:
    """``python -O`` drops asserts, and their message says nothing to a user."""
    tree = ast.parse(module.read_text())
    assert [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Assert)] == []
