from __future__ import annotations

from collections.abc import Iterator

import pytest

from stof_cupy import env
from stof_cupy.errors import CompileError, DeviceError, MissingDependencyError
from stof_cupy.jit import nvrtc

OPTIONS = ("-arch=sm_80", "-std=c++17")


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget the libraries loaded so far, and the variable that names one."""
    monkeypatch.delenv(env.NVRTC.name, raising=False)
    nvrtc._load.cache_clear()
    yield
    nvrtc._load.cache_clear()


def test_library_describes_itself(library: nvrtc.Library) -> None:
    assert library.version >= (12, 4)
    assert {80, 86, 89, 90} <= set(library.archs) and list(library.archs) == sorted(library.archs)
    assert f"{library.version[0]}.{library.version[1]}" in repr(library)


def test_compile_returns_an_elf_and_the_log(library: nvrtc.Library) -> None:
    source = 'extern "C" __global__ void k(int* p) { int unused; *p = 1; }'
    image, log = library.compile(source, "k.cu", OPTIONS)
    assert image.startswith(b"\x7fELF") and b"k\0" in image
    assert "unused" in log and not log.endswith("\0")


def test_compiling_again_gives_the_log_again(library: nvrtc.Library) -> None:
    source = 'extern "C" __global__ void again(int* p) { *p = 1; }'
    for _ in range(3):  # where there is a driver NVRTC keeps cubins, and would come back silent
        _, log = library.compile(source, "k.cu", (*OPTIONS, "--ptxas-options=-v"))
        assert "registers" in log


def test_syntax_error_carries_the_log(library: nvrtc.Library) -> None:
    with pytest.raises(CompileError, match=r"(?s)broken\.cu does not compile\n.*broken\.cu\(2\)"):
        library.compile("int a;\nint b", "broken.cu", OPTIONS)


def test_bad_option_says_which(library: nvrtc.Library) -> None:
    with pytest.raises(CompileError, match=r"(?s)INVALID_OPTION.*--no-such-option"):
        library.compile("", "k.cu", (*OPTIONS, "--no-such-option"))


def test_named_library_that_is_none(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.NVRTC.name, "/nowhere/libnvrtc.so")
    with pytest.raises(DeviceError, match=r"/nowhere/libnvrtc\.so"):
        nvrtc.load()


def test_variable_and_argument_name_the_library(
    fresh: None, library: nvrtc.Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvrtc, "_candidates", lambda: iter(()))
    assert nvrtc.load(library.path).version == library.version
    monkeypatch.setenv(env.NVRTC.name, library.path)
    assert nvrtc.load() is nvrtc.load(library.path)


def test_candidates_are_tried_in_turn(
    fresh: None, library: nvrtc.Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvrtc, "_candidates", lambda: iter(("/nowhere/a.so", library.path)))
    assert nvrtc.load().path == library.path


def test_none_found_names_the_extras(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "_candidates", lambda: iter(()))
    with pytest.raises(MissingDependencyError, match=r"cuda13.*cuda12.*STOF_NVRTC"):
        nvrtc.load()
