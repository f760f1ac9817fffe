"""Wheel and sdist carry the CUDA sources, and each kind of install finds them."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CUDA = ROOT / "cuda"
HEADERS = {path.relative_to(CUDA) for path in CUDA.rglob("*.cuh")}
WHERE = (
    "import stof_cupy, stof_cupy.jit.source as s;"
    "print(stof_cupy.__version__, stof_cupy.__file__, s.cuda_root(), sep='\\n')"
)


def python(*args: str | Path, cwd: Path, executable: str | Path = sys.executable) -> str:
    command = [str(executable), *map(str, args)]
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if result.returncode:
        pytest.fail(f"{' '.join(command)}\n{result.stdout}{result.stderr}")
    return result.stdout


def build(kind: str, tree: Path, out: Path) -> Path:
    """Build ``"wheel"`` or ``"sdist"`` with the setuptools at hand and no package index."""
    code = f"import sys, setuptools.build_meta as b; b.build_{kind}(sys.argv[1])"
    python("-c", code, out, cwd=tree)
    (built,) = out.iterdir()
    return built


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of what a build reads, so that none leaves anything in the checkout."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in ("pyproject.toml", "setup.cfg", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for name in ("cuda", "stof_cupy"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.fixture(scope="module")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", tree, tmp_path_factory.mktemp("wheel"))


def contents(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def located(output: str) -> tuple[str, Path, Path]:
    version, package, cuda_root = output.split("\n")[:3]
    return version, Path(package).parent.resolve(), Path(cuda_root).resolve()


def found_in(root: Path) -> set[Path]:
    return {path.relative_to(root) for path in root.rglob("*.cuh")}


def test_cuda_holds_no_python() -> None:
    """``cuda/__init__.py`` would hide NVIDIA's namespace package, and CuPy would not import."""
    assert HEADERS
    assert [path for path in CUDA.rglob("*.py*") if path.is_file()] == []


def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    sources = {p.relative_to(ROOT).as_posix() for p in (ROOT / "stof_cupy").rglob("*.py")}
    headers = {f"stof_cupy/_cuda/{path.as_posix()}" for path in HEADERS}
    assert contents(wheel) == sources | headers | {"stof_cupy/py.typed"}


def test_sdist_makes_the_same_wheel(tree: Path, wheel: Path, tmp_path: Path) -> None:
    for name in ("sdist", "unpacked", "wheel"):
        (tmp_path / name).mkdir()
    sdist = build("sdist", tree, tmp_path / "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    assert contents(build("wheel", unpacked, tmp_path / "wheel")) == contents(wheel)


def test_metadata(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (name for name in archive.namelist() if name.endswith("METADATA"))
        lines = archive.read(path).decode().splitlines()
        (entry,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
        assert "stof-cupy = stof_cupy.cli:main" in archive.read(entry).decode()
    extras = {line.split()[-1] for line in lines if line.startswith("Provides-Extra:")}
    assert extras == {"cuda12", "cuda13", "models", "images", "vendor", "plot", "test", "dev"}
    required = {
        line.split()[1].split(">")[0]
        for line in lines
        if line.startswith("Requires-Dist:") and "extra" not in line
    }
    assert {name.replace("-", "_") for name in required} == {"numpy", "scipy", "ml_dtypes"}
    assert "License-Expression: Apache-2.0" in lines


def test_sources_are_found_from_a_wheel(wheel: Path, tmp_path: Path) -> None:
    pip = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-index")
    python(*pip, "--target", tmp_path / "site", wheel, cwd=tmp_path)
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); {WHERE}"
    version, package, cuda_root = located(python("-c", code, cwd=tmp_path))
    assert package == tmp_path / "site" / "stof_cupy"
    assert cuda_root == package / "_cuda"
    assert found_in(cuda_root) == HEADERS
    assert f"-{version}-" in wheel.name


def test_sources_are_found_from_an_editable_install(tree: Path, tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    venv.create(environment, with_pip=False, symlinks=True)
    executable = environment / "bin" / "python"
    site = python(
        "-c", "import site; print(site.getsitepackages()[0])", cwd=tmp_path, executable=executable
    ).strip()
    (tmp_path / "out").mkdir()
    editable = build("editable", tree, tmp_path / "out")
    pip = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-index")
    python(*pip, "--target", site, editable, cwd=tmp_path)
    # NumPy comes from the environment of this test, whose own stof_cupy is found last.
    others = next(path for path in sys.path if path.endswith("site-packages"))
    code = f"import sys; sys.path.append({others!r}); {WHERE}"
    _, package, cuda_root = located(python("-c", code, cwd=tmp_path, executable=executable))
    assert (package, cuda_root) == (tree / "stof_cupy", tree / "cuda")
    assert found_in(cuda_root) == HEADERS


def test_sources_are_found_from_a_plain_checkout(tree: Path) -> None:
    _, package, cuda_root = located(python("-c", WHERE, cwd=tree))
    assert (package, cuda_root) == (tree / "stof_cupy", tree / "cuda")
    assert found_in(cuda_root) == HEADERS
