from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stof_cupy.errors import CompileError, UnsupportedError
from stof_cupy.jit import nvrtc
from stof_cupy.jit.compile import compile_cubin
from stof_cupy.jit.spec import KernelSpec

SPILL = """\
struct Spill {
    struct Params { float* x; long long n; };
    static constexpr int kThreads = 1024, kSmemBytes = 0, kMinBlocks = 2;  // so 32 registers
    static __device__ void run(const Params& p, char*) {
        float a[64];
#pragma unroll
        for (int i = 0; i < 64; ++i) a[i] = p.x[i * p.n + threadIdx.x];
        for (int k = 0; k < p.n; ++k)
#pragma unroll
            for (int i = 0; i < 64; ++i) a[i] = a[i] * a[(i * 7 + 3) % 64] + k;
#pragma unroll
        for (int i = 0; i < 64; ++i) p.x[i * p.n + threadIdx.x] = a[i];
    }
};
"""

# The accumulator is touched while a wgmma that writes it is in flight.
SERIALISED = """\
struct Wgmma {
    struct Params { float* x; unsigned long long a; unsigned long long b; };
    static constexpr int kThreads = 128, kSmemBytes = 0, kMinBlocks = 1;
    static __device__ void mma(float (&d)[4], unsigned long long a, unsigned long long b) {
        asm volatile(
            "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 "
            "{%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, 0;"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a), "l"(b));
    }
    static __device__ void run(const Params& p, char*) {
        float d[4] = {0, 0, 0, 0};
        asm volatile("wgmma.fence.sync.aligned;");
        mma(d, p.a, p.b);
        d[0] += 1.0f;
        mma(d, p.a, p.b);
        asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;");
        for (int i = 0; i < 4; ++i) p.x[threadIdx.x * 4 + i] = d[i];
    }
};
"""


@pytest.mark.parametrize("arch", ["80", "86", "89", "90a", "100", "120"])
def test_compiles_for_every_architecture(
    root: Path, spec: KernelSpec, library: nvrtc.Library, arch: str
) -> None:
    if int(arch.rstrip("a")) not in library.archs:
        pytest.skip(f"{library} does not know sm_{arch}")
    cubin = compile_cubin(spec, arch, library, root=root)
    assert cubin.image.startswith(b"\x7fELF") and b"stof_axpy_f32\0" in cubin.image
    assert f"for 'sm_{arch}'" in cubin.log
    assert 0 < cubin.registers < 64 and cubin.spill_bytes == 0 and cubin.smem_bytes == 1024


def test_static_smem_counts(root: Path, spec: KernelSpec, library: nvrtc.Library) -> None:
    header = root / "axpy.cuh"
    staged = "T* staged = reinterpret_cast<T*>(smem);"
    assert staged in header.read_text()
    header.write_text(header.read_text().replace(staged, "__shared__ T staged[kThreads];"))
    assert compile_cubin(spec, "80", library, root=root).smem_bytes == 1024 + 128 * 4


FIELDS = (("x", "u8"), ("y", "u8"), ("n", "i8"), ("alpha", "f4"), ("shift", "i4"))


def fields(**changed: Any) -> tuple[tuple[str, str], ...]:
    return tuple((name, changed.get(name, code)) for name, code in FIELDS)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"threads": 256}, "host: 256 threads"),
        ({"smem_bytes": 0}, "host: 0 B of smem"),
        ({"params": (*FIELDS, ("more", "i4"))}, "host: Params has 40 B"),
        ({"params": (*FIELDS[:3], ("shift", "i4"), ("alpha", "f4"))}, "host: shift is i4 at 24"),
        ({"params": fields(n="u4")}, "host: n is u4 at 16"),
        ({"params": fields(alpha="i4")}, "host: alpha is i4 at 24"),
        ({"params": fields(shift="f4")}, "host: shift is f4 at 28"),
        ({"params": (*FIELDS[:4], ("offset", "i4"))}, "host: offset is i4 at 28"),
        ({"type": "toy::Axpy<float, 2>"}, r"axpy_f32\.cu\(3\).*toy::Axpy"),
    ],
)
def test_wrong_claims_do_not_compile(
    root: Path, spec: KernelSpec, library: nvrtc.Library, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(CompileError, match=message):
        compile_cubin(replace(spec, **change), "80", library, root=root)


def test_member_in_padding_is_noticed(root: Path, spec: KernelSpec, library: nvrtc.Library) -> None:
    """The size is right and so is every offset; only the number of members is not."""
    with pytest.raises(CompileError, match="all_of_them"):
        compile_cubin(replace(spec, params=FIELDS[:-1]), "80", library, root=root)


def test_current_directory_is_not_searched(
    root: Path, spec: KernelSpec, library: nvrtc.Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = root.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "axpy.cuh").write_text("#error taken from the current directory")
    monkeypatch.chdir(elsewhere)
    assert compile_cubin(spec, "80", library, root=root).registers > 0


def test_spill_is_an_error(root: Path, library: nvrtc.Library) -> None:
    (root / "spill.cuh").write_text(SPILL)
    spec = KernelSpec("spill", "spill.cuh", "Spill", (("x", "u8"), ("n", "i8")), 1024, 0)
    with pytest.raises(CompileError, match=r"(?s)sm_80: spills registers, [1-9]\d* bytes\nptxas"):
        compile_cubin(spec, "80", library, root=root)
    assert compile_cubin(spec, "80", library, root=root, strict=False).spill_bytes > 0


def test_serialised_wgmma_is_an_error(root: Path, library: nvrtc.Library) -> None:
    (root / "wgmma.cuh").write_text(SERIALISED)
    params = (("x", "u8"), ("a", "u8"), ("b", "u8"))
    spec = KernelSpec("wgmma", "wgmma.cuh", "Wgmma", params, 128, 0, arch="90a")
    with pytest.raises(CompileError, match=r"(?s)sm_90a: ptxas serialised wgmma.*\(C75\d\d\)"):
        compile_cubin(spec, "90a", library, root=root)
    assert "C75" in compile_cubin(spec, "90a", library, root=root, strict=False).log


def test_error_in_a_header_carries_the_log(
    root: Path, spec: KernelSpec, library: nvrtc.Library
) -> None:
    with (root / "detail" / "load.cuh").open("a") as header:
        header.write("int broken = ;\n")
    with pytest.raises(CompileError, match=r"(?s)axpy_f32\.cu does not compile.*load\.cuh\(\d+\)"):
        compile_cubin(spec, "80", library, root=root)


def test_architectures_that_do_not_fit(
    root: Path, spec: KernelSpec, library: nvrtc.Library
) -> None:
    with pytest.raises(UnsupportedError, match=r"arch of axpy_f32: got sm_80, expected sm_90a"):
        compile_cubin(replace(spec, arch="90a"), "80", library, root=root)
    with pytest.raises(
        UnsupportedError, match=r"arch: got sm_999, expected one of NVRTC \d+\.\d+: "
    ):
        compile_cubin(spec, "999", library, root=root)


class SilentLibrary:
    """An NVRTC that says nothing of registers, and remembers its options."""

    archs = (80,)
    version = (99, 0)
    options: tuple[str, ...] = ()

    def compile(self, source: str, name: str, options: tuple[str, ...]) -> tuple[bytes, str]:
        self.options = options
        return b"", ""


def test_log_without_a_report_is_an_error_not_a_pass(root: Path, spec: KernelSpec) -> None:
    with pytest.raises(CompileError, match="no register count"):
        compile_cubin(spec, "80", SilentLibrary(), root=root)


def test_no_option_is_given_twice(root: Path, spec: KernelSpec) -> None:
    library = SilentLibrary()
    with pytest.raises(CompileError):
        compile_cubin(spec, "80", library, root=root)
    switches = [option.split("=")[0] for option in library.options]
    assert len(switches) == len(set(switches))
    assert {"-arch=sm_80", "-ftz=true", f"-I{root}"} <= set(library.options)
