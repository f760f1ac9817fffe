"""``STOF_*`` variables: read in env.py alone, and the README lists them all."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from stof_cupy import env

ROOT = Path(__file__).parents[1]
OTHERS = sorted(set((ROOT / "stof_cupy").rglob("*.py")) - {ROOT / "stof_cupy" / "env.py"})


def readme_table() -> list[tuple[str, str, str]]:
    rows = re.findall(
        r"^\| `(STOF_\w+)` \| (.*?) \| (.*) \|$", (ROOT / "README.md").read_text(), re.M
    )
    return [
        (name, "" if default == "unset" else default.strip("`"), text)
        for name, default, text in rows
    ]


def test_readme_lists_every_variable() -> None:
    assert readme_table() == [(v.name, v.default, v.meaning) for v in env.VARIABLES]


def test_variables_are_those_defined() -> None:
    defined = [value for value in vars(env).values() if isinstance(value, env.Variable)]
    assert sorted(defined, key=env.VARIABLES.index) == list(env.VARIABLES)
    assert len({v.name for v in defined}) == len(defined)


def test_read_when_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(env.BACKEND.name, raising=False)
    assert env.BACKEND.get() == env.BACKEND.default
    monkeypatch.setenv(env.BACKEND.name, "numpy")
    assert env.BACKEND.get() == "numpy"
    monkeypatch.setenv(env.BACKEND.name, "")
    assert env.BACKEND.get() == env.BACKEND.default


def test_cache_dir_is_below_the_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(env.CACHE_DIR.name, str(tmp_path / "absent"))
    assert env.cache_dir("kernels", "x") == tmp_path / "absent" / "kernels" / "x"
    assert not (tmp_path / "absent").exists()
    monkeypatch.setenv(env.CACHE_DIR.name, "~/somewhere")
    assert env.cache_dir() == Path.home() / "somewhere"


def reads_of_stof_variables(source: str) -> list[str]:
    """Expressions that ask ``os.environ`` or ``os.getenv`` for a ``STOF_`` name."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call | ast.Subscript):
            text = ast.unparse(node)
            if re.search(r"\b(environb?|getenvb?)\b.*['\"]STOF_", text):
                found.append(text)
    return found


@pytest.mark.parametrize("module", OTHERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_nobody_else_reads_them(module: Path) -> None:
    source = module.read_text()
    assert reads_of_stof_variables(source) == []
    assert set(re.findall(r"\bSTOF_[A-Z_]*[A-Z]\b", source)) <= {v.name for v in env.VARIABLES}


@pytest.mark.parametrize(
    "source",
    [
        "os.environ['STOF_X']",
        "os.environ.get('STOF_X')",
        "getenv('STOF_X', '')",
        "os.getenv('STOF_X')",
    ],
)
def test_the_rule_itself(source: str) -> None:
    assert reads_of_stof_variables(source) == [source]
