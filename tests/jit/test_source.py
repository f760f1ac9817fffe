from __future__ import annotations

from pathlib import Path

import pytest

from stof_cupy.errors import CompileError
from stof_cupy.jit.source import closure_digest, cuda_root, include_closure, stub
from stof_cupy.jit.spec import KernelSpec


def names(root: Path, header: str) -> list[str]:
    return [str(file.relative_to(root)) for file in include_closure(header, root)]


def test_cuda_root_holds_device_code() -> None:
    assert list(cuda_root().rglob("*.cuh"))
    assert not list(cuda_root().rglob("*.py"))  # cuda/__init__.py would break `import cupy`


def test_closure_follows_includes_as_nvrtc_does(root: Path) -> None:
    (root / "a.cuh").write_text(
        '#include "detail/b.cuh"\n  #  include <detail/load.cuh>\n#include <cuda_fp16.h>\n'
        '// #include "axpy.cuh"\n'
    )
    # Beside the including file comes first; then below the root.
    (root / "detail" / "b.cuh").write_text('#include "c.cuh"\n#include "d.cuh"\n')
    (root / "detail" / "c.cuh").write_text('#include "../a.cuh"\n')
    (root / "c.cuh").write_text("")
    (root / "d.cuh").write_text("")
    found = names(root, "a.cuh")
    assert found == ["a.cuh", "d.cuh", "detail/b.cuh", "detail/c.cuh", "detail/load.cuh"]


def test_closure_stays_below_the_root(root: Path) -> None:
    (root.parent / "outside.cuh").write_text("")
    (root / "a.cuh").write_text('#include "../outside.cuh"\n')
    assert names(root, "a.cuh") == ["a.cuh"]


def test_missing_header(root: Path, spec: KernelSpec) -> None:
    (root / "axpy.cuh").unlink()
    with pytest.raises(CompileError, match=r"axpy\.cuh not found"):
        stub(spec, root)


@pytest.mark.parametrize("file", ["axpy.cuh", "detail/load.cuh"])
def test_digest_and_stub_change_with_every_header(root: Path, spec: KernelSpec, file: str) -> None:
    digest, text = closure_digest("axpy.cuh", root), stub(spec, root)
    with (root / file).open("a") as header:
        header.write("// one more line\n")
    assert closure_digest("axpy.cuh", root) != digest
    assert stub(spec, root) != text


def test_files_are_read_again_only_when_one_has_changed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, read_bytes = list[Path](), Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda file: read.append(file) or read_bytes(file))
    digest = closure_digest("axpy.cuh", root)
    first = len(read)
    assert first > 1
    assert closure_digest("axpy.cuh", root) == digest and len(read) == first
    other = root / "detail" / "other.cuh"
    other.write_bytes((root / "detail" / "load.cuh").read_bytes() + b"\n")
    other.replace(root / "detail" / "load.cuh")
    assert closure_digest("axpy.cuh", root) != digest
    (root / "axpy.cuh").unlink()
    with pytest.raises(CompileError, match="not found"):
        closure_digest("axpy.cuh", root)


def test_digest_ignores_other_headers_and_the_place(root: Path, tmp_path: Path) -> None:
    digest = closure_digest("axpy.cuh", root)
    (root / "other.cuh").write_text("int other;")
    assert closure_digest("axpy.cuh", root) == digest
    moved = root.rename(tmp_path / "moved")
    assert closure_digest("axpy.cuh", moved) == digest


def test_digest_covers_names(root: Path) -> None:
    digest = closure_digest("axpy.cuh", root)
    (root / "detail" / "load.cuh").rename(root / "load.cuh")
    assert closure_digest("axpy.cuh", root) != digest


def test_stub_text(root: Path, spec: KernelSpec) -> None:
    expected = """\
#include <axpy.cuh>
using Kernel = toy::Axpy<float>;
using Params = Kernel::Params;
static_assert(Kernel::kThreads == 128, "host: 128 threads");
static_assert(Kernel::kSmemBytes == 1024, "host: 1024 B of smem");
static_assert(sizeof(Params) == 32, "host: Params has 32 B");
#define OFFSET(field) __INTADDR__(&((Params*)0)->field)
static_assert(OFFSET(x) == 0 && sizeof(Params::x) == 8, "host: x is u8 at 0");
"""
    first, text = stub(spec, root).split("\n", 1)
    assert first == f"// axpy_f32 (axpy.cuh, closure {closure_digest('axpy.cuh', root)})"
    assert text.startswith(expected)
    assert text.count("static_assert") == 3 + len(spec.params)
    assert text.count('extern "C" __global__') == 1
    assert "stof_axpy_f32(const __grid_constant__ Params params)" in text
