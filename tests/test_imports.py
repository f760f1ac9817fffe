"""Importing is cheap, and imports between rooms go one way."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "stof_cupy"
MODULES = sorted(PACKAGE.rglob("*.py"))

# A room may import itself and rooms of a lower layer, nothing beside or above it.
LAYERS = {
    "errors": 0,
    **dict.fromkeys(("env", "dlpack", "dtypes", "files", "terminal"), 1),
    **dict.fromkeys(("interop", "jit", "report"), 2),
    "masks": 3,
    "ops": 4,
    **dict.fromkeys(("testing", "graph"), 5),
    "fusion": 6,
    "runtime": 7,
    "models": 8,
    **dict.fromkeys(("engine", "cli_calibrate", "cli_mask", "cli_report"), 9),
    **dict.fromkeys(("cli_cache", "cli_named"), 10),
    "cli_models": 11,
    "cli": 12,
}
HEAVY = {
    *("cupy", "cupyx", "scipy", "ml_dtypes", "safetensors", "tokenizers", "gguf", "onnx"),
    *("tqdm", "matplotlib", "torch", "jax", "PIL", "nvmath"),
}


def room_of(module: Path) -> str:
    return module.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(node: ast.AST, module: Path) -> Iterator[str]:
    """Yield the dotted names that an import, or ``import_module`` of a constant, asks for."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            package = ("stof_cupy", *module.relative_to(PACKAGE).parent.parts)
            base = ".".join((*package[: len(package) - node.level + 1], *filter(None, [base])))
        yield from (f"{base}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Call):
        function = getattr(node.func, "attr", getattr(node.func, "id", ""))
        constant = node.args and isinstance(node.args[0], ast.Constant)
        if function in ("import_module", "__import__") and constant:
            yield str(node.args[0].value)


def rooms_imported(source: str, module: Path) -> set[str]:
    names = (name for node in ast.walk(ast.parse(source)) for name in imported(node, module))
    return {name.split(".")[1] for name in names if name.startswith("stof_cupy.")}


def upward(source: str, module: Path) -> list[str]:
    """Rooms beside or above its own that a module imports; public names count as the top."""
    room = room_of(module)
    return sorted(
        other
        for other in rooms_imported(source, module) - {room, "__version__"}
        if LAYERS.get(other, 99) >= LAYERS[room] or other == "testing"
    )


def run(code: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent
    )
    return result.stdout.strip()


def test_import_loads_nothing_heavy() -> None:
    loaded = run("import stof_cupy, sys; print(*{name.split('.')[0] for name in sys.modules})")
    assert "stof_cupy" in loaded.split()
    assert HEAVY.isdisjoint(loaded.split())


def test_import_takes_less_than_150_ms() -> None:
    code = "import time; t = time.perf_counter(); import stof_cupy; print(time.perf_counter() - t)"
    assert min(float(run(code)) for _ in range(5)) < 0.15


def test_every_room_has_a_layer() -> None:
    assert {room_of(module) for module in MODULES} - {"__init__", "__main__"} <= set(LAYERS)


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down(module: Path) -> None:
    if room_of(module) not in ("__init__", "__main__"):
        assert upward(module.read_text(), module) == []


@pytest.mark.parametrize(
    "module, source, found",
    [
        ("jit/launch.py", "from stof_cupy.masks import bsr", ["masks"]),
        ("masks/bsr.py", "def f():\n    from stof_cupy import ops", ["ops"]),
        ("masks/bsr.py", "from ..graph.ir import Node", ["graph"]),
        ("ops/cpu.py", "import importlib\nimportlib.import_module('stof_cupy.engine')", ["engine"]),
        ("ops/cpu.py", "from stof_cupy import attention", ["attention"]),
        ("engine.py", "from stof_cupy import testing", ["testing"]),
        ("ops/cpu.py", "from stof_cupy import errors, masks\nfrom . import epilogue", []),
    ],
)
def test_the_rule_itself(module: str, source: str, found: list[str]) -> None:
    assert upward(source, PACKAGE / module) == found


def test_the_oracle_stands_alone() -> None:
    module = PACKAGE / "ops" / "reference.py"
    tree = ast.parse(module.read_text())
    names = [name for node in ast.walk(tree) for name in imported(node, module)]
    assert [name for name in names if name.startswith("stof_cupy.ops")] == []


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_heavy_packages_are_imported_inside_functions(module: Path) -> None:
    inside: set[ast.AST] = set()
    tree = ast.parse(module.read_text())
    for node in ast.walk(tree):
        guard = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        if guard or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            inside.update(ast.walk(node))
    at_import = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if node not in inside
        for name in imported(node, module)
    }
    assert at_import & HEAVY == set()


def test_raw_module_is_named_in_jit_launch_alone() -> None:
    naming = {
        str(module.relative_to(PACKAGE))
        for module in MODULES
        for node in ast.walk(ast.parse(module.read_text()))
        if "RawModule" in (getattr(node, "id", ""), getattr(node, "attr", ""))
        or (isinstance(node, ast.alias) and "RawModule" in node.name)
    }
    assert naming == {"jit/launch.py"}
