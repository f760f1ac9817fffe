from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stof_cupy.jit import nvrtc
from stof_cupy.jit.__main__ import main
from stof_cupy.jit.catalogue import catalogue

GREP = ("--grep", "^gelu_f16$")


def test_names_in_the_catalogue_are_unique() -> None:
    names = [spec.name for spec in catalogue()]
    assert len(set(names)) == len(names) <= 128


def test_each_template_of_the_catalogue_compiles(
    library: nvrtc.Library, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first instance for the oldest architecture; `make kernels` compiles all for all."""
    specs = {spec.type.partition("<")[0]: spec for spec in reversed(catalogue())}.values()
    assert main(["--arch", "80"], list(specs)) == 0
    expected = sum(spec.supports("80") for spec in specs)
    out = capsys.readouterr().out
    assert f"{expected} of {expected} compiled" in out and out.count(" sm_80 ") == expected


def test_table_and_left_out(library: nvrtc.Library, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--arch", "80", "999", "89", *GREP]) == 0
    lines = capsys.readouterr().out.splitlines()
    version = f"{library.version[0]}.{library.version[1]}"
    assert lines[0] == f"NVRTC {version}  {library.path}"
    assert lines[1] == f"left out: sm_999 (not known to NVRTC {version})"
    assert lines[2].split() == ["kernel", "arch", "ms", "registers", "smem", "bytes"]
    assert [line.split()[:2] for line in lines[3:5]] == [
        ["gelu_f16", "sm_80"],
        ["gelu_f16", "sm_89"],
    ]
    assert all(0 < int(line.split()[3]) <= 255 for line in lines[3:5])
    assert lines[5].startswith("2 of 2 compiled in ")


def test_out_keeps_cubins(
    library: nvrtc.Library, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for note in (False, True):
        assert main(["--arch", "80", "--out", str(tmp_path), "--library", library.path, *GREP]) == 0
        assert ("(was there)" in capsys.readouterr().out) is note
    assert [path.name for path in tmp_path.glob("gelu_f16-sm_80-*/*.cubin")] == ["kernel.cubin"]


def test_failure_sets_the_status_and_shows_the_log(
    library: nvrtc.Library, capsys: pytest.CaptureFixture[str]
) -> None:
    good = next(spec for spec in catalogue() if spec.name == "gelu_f16")
    bad = replace(good, name="bad", threads=good.threads + 1)
    assert main(["--arch", "80"], [bad, good]) == 1
    captured = capsys.readouterr()
    assert "1 of 2 compiled" in captured.out and "failed" in captured.out
    assert f"host: {good.threads + 1} threads" in captured.err


def test_nothing_selected_is_a_failure(
    library: nvrtc.Library, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--grep", "no such kernel"]) == 1
    assert "nothing to compile" in capsys.readouterr().out


def test_library_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--library", "/nowhere/libnvrtc.so"]) == 1
    assert "/nowhere/libnvrtc.so" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--arch", "sm_80"], ["--grep", "("], ["--jobs", "0"]])
def test_bad_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert arguments[0] in capsys.readouterr().err
