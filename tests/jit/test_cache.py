from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stof_cupy.errors import CompileError, StofWarning
from stof_cupy.jit import cache, nvrtc
from stof_cupy.jit.cache import Store
from stof_cupy.jit.spec import KernelSpec


@pytest.fixture
def store(root: Path, tmp_path: Path) -> Store:
    return Store(tmp_path / "kernels", device_code=root)


def snapshot(folder: Path) -> dict[str, int]:
    """Every file and directory with its modification time."""
    return {str(path): path.stat().st_mtime_ns for path in [folder, *folder.rglob("*")]}


def test_miss_then_hit(store: Store, spec: KernelSpec, library: nvrtc.Library) -> None:
    first = store.get(spec, "80", library)
    second = store.get(spec, "80", library)
    assert (first.hit, second.hit) == (False, True)
    assert second.cubin == first.cubin and second.path == first.path
    assert first.path.read_bytes() == first.cubin.image


def test_layout_is_readable(
    store: Store, root: Path, spec: KernelSpec, library: nvrtc.Library
) -> None:
    folder = store.get(spec, "90a", library).path.parent
    assert folder.parent == store.root
    assert folder.name.startswith("axpy_f32-sm_90a-") and len(folder.name.split("-")[2]) == 16
    assert {file.name for file in folder.iterdir()} == {"kernel.cubin", "stub.cu", "kernel.json"}
    assert [entry.name for entry in store.root.iterdir()] == [folder.name]
    record = json.loads((folder / "kernel.json").read_text())
    assert record["symbol"] == "stof_axpy_f32" and record["nvrtc"] == list(library.version)
    assert (folder / "stub.cu").read_text().startswith("// axpy_f32")


def change_header(store: Store, root: Path, spec: KernelSpec) -> KernelSpec:
    with (root / "detail" / "load.cuh").open("a") as header:
        header.write("// changed\n")
    return spec


def change_nothing(store: Store, root: Path, spec: KernelSpec) -> KernelSpec:
    return spec


def change_type(store: Store, root: Path, spec: KernelSpec) -> KernelSpec:
    return replace(spec, type="toy::Axpy<double>")


@pytest.mark.parametrize(
    "change, arch, version, flags",
    [
        (change_header, "80", (13, 0), ("-a",)),
        (change_type, "80", (13, 0), ("-a",)),
        (change_nothing, "86", (13, 0), ("-a",)),
        (change_nothing, "80", (13, 1), ("-a",)),
        (change_nothing, "80", (13, 0), ("-a", "-b")),
    ],
    ids=["header", "stub", "arch", "nvrtc", "flags"],
)
def test_key_covers(
    store: Store,
    root: Path,
    spec: KernelSpec,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Store, Path, KernelSpec], KernelSpec],
    arch: str,
    version: tuple[int, int],
    flags: tuple[str, ...],
) -> None:
    monkeypatch.setattr(cache, "FLAGS", ("-a",))
    before = store.key(spec, "80", SimpleNamespace(version=(13, 0)))
    assert store.key(spec, "80", SimpleNamespace(version=(13, 0))) == before
    spec = change(store, root, spec)
    monkeypatch.setattr(cache, "FLAGS", flags)
    assert store.key(spec, arch, SimpleNamespace(version=version)) != before


def test_changed_header_is_compiled_again(
    store: Store, root: Path, spec: KernelSpec, library: nvrtc.Library
) -> None:
    old = store.get(spec, "80", library)
    load = root / "detail" / "load.cuh"
    load.write_text(load.read_text().replace("*p", "*p + T(1)"))
    new = store.get(spec, "80", library)
    assert not new.hit and new.path != old.path and new.cubin.image != old.cubin.image


def test_failures_are_not_stored(store: Store, spec: KernelSpec, library: nvrtc.Library) -> None:
    for _ in range(2):
        with pytest.raises(CompileError):
            store.get(replace(spec, threads=7), "80", library)
    assert not store.root.exists()


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def flip_a_bit(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize(
    "file, damage",
    [
        ("kernel.cubin", truncate),
        ("kernel.cubin", flip_a_bit),
        ("kernel.cubin", Path.unlink),
        ("kernel.json", lambda file: file.write_bytes(file.read_bytes()[:40])),
        ("kernel.json", lambda file: file.write_text("[]")),
        ("kernel.json", lambda file: file.write_text("{}")),
        ("kernel.json", lambda file: file.write_bytes(b"\xff\xfe")),
        ("kernel.json", Path.unlink),
    ],
)
def test_damaged_entry_is_rebuilt(
    store: Store,
    spec: KernelSpec,
    library: nvrtc.Library,
    file: str,
    damage: Callable[[Path], Any],
) -> None:
    sound = store.get(spec, "80", library)
    damage(sound.path.parent / file)
    rebuilt = store.get(spec, "80", library)
    assert not rebuilt.hit and rebuilt.path == sound.path
    assert rebuilt.path.read_bytes() == rebuilt.cubin.image
    assert store.get(spec, "80", library).hit
    assert len(list(store.root.iterdir())) == 1


def test_entry_of_another_key_is_not_taken(
    store: Store, spec: KernelSpec, library: nvrtc.Library
) -> None:
    """As would happen if sixteen digits of two keys agreed, or someone renamed a directory."""
    mine, other = store.get(spec, "80", library), store.get(spec, "86", library)
    for file in other.path.parent.iterdir():
        file.replace(mine.path.parent / file.name)
    again = store.get(spec, "80", library)
    assert not again.hit and "sm_80" in again.cubin.log


def test_unwritable_root_warns_once_and_works(
    root: Path, tmp_path: Path, spec: KernelSpec, library: nvrtc.Library
) -> None:
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "kernels", device_code=root)
    with pytest.warns(StofWarning, match=r"file/kernels cannot be written.*STOF_CACHE_DIR"):
        first = store.get(spec, "80", library)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second = store.get(spec, "80", library)
        other = store.get(spec, "86", library)
    assert (first.hit, second.hit, other.hit) == (False, True, False)
    assert first.path.read_bytes() == first.cubin.image == second.cubin.image
    private = first.path.parents[1]
    del store
    assert not private.exists()


def test_threads_fall_back_to_one_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second directory would take the first one's place, and delete it under its user."""
    make = tempfile.TemporaryDirectory

    def make_slowly(**how: Any) -> Any:
        time.sleep(0.1)  # for the other thread to get here, if it can
        return make(**how)

    monkeypatch.setattr(tempfile, "TemporaryDirectory", make_slowly)
    store = Store(tmp_path / "kernels")
    with pytest.warns(StofWarning) as caught, ThreadPoolExecutor(2) as pool:
        first, second = pool.map(store._fall_back, [OSError()] * 2)
    assert first == second and first.is_dir()
    assert len(caught) == 1


def test_full_disk_leaves_no_half_entry(
    store: Store, spec: KernelSpec, library: nvrtc.Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_bytes = Path.write_bytes

    def write(self: Path, data: bytes) -> int:
        if self.name == "stub.cu" and self.is_relative_to(store.root):
            raise OSError(28, "No space left on device")
        return write_bytes(self, data)

    monkeypatch.setattr(Path, "write_bytes", write)
    with pytest.warns(StofWarning, match="No space left"):
        entry = store.get(spec, "80", library)
    assert entry.path.read_bytes() == entry.cubin.image
    assert list(store.root.iterdir()) == []


def test_root_that_can_only_be_read_is_used(
    store: Store, spec: KernelSpec, library: nvrtc.Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache that someone else filled, shared read-only."""
    store.get(spec, "80", library)

    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError("read-only")

    for writing in ("mkdir", "write_bytes", "rename", "replace"):
        monkeypatch.setattr(Path, writing, refuse)
    assert store.get(spec, "80", library).hit


# A process of its own: argv is the store's root, the device code, the spec as JSON and, to force a
# race, the file that says that it has compiled and the file in which the other one says so.
PROCESS = """\
import json, sys, time
from pathlib import Path
from stof_cupy.jit import cache
from stof_cupy.jit.spec import KernelSpec

root, code, fields = sys.argv[1:4]
fields = json.loads(fields)
fields["params"] = tuple(map(tuple, fields["params"]))
if len(sys.argv) > 4:
    compile_cubin = cache.compile_cubin

    def compile_and_wait(*args, **kwargs):
        cubin = compile_cubin(*args, **kwargs)
        Path(sys.argv[4]).touch()
        deadline = time.monotonic() + 60
        while not Path(sys.argv[5]).exists() and time.monotonic() < deadline:
            time.sleep(0.001)
        return cubin

    cache.compile_cubin = compile_and_wait
entry = cache.Store(Path(root), device_code=Path(code)).get(KernelSpec(**fields), "80")
assert entry.path.read_bytes() == entry.cubin.image
print(json.dumps([entry.hit, str(entry.path)]))
"""


def start(store: Store, root: Path, spec: KernelSpec, *more: Path) -> subprocess.Popen[str]:
    arguments = [str(store.root), str(root), json.dumps(asdict(spec)), *map(str, more)]
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PROCESS, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )


def outcome(process: subprocess.Popen[str]) -> list[Any]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return json.loads(out)


def test_second_process_touches_nothing(
    store: Store, root: Path, spec: KernelSpec, library: nvrtc.Library
) -> None:
    first = outcome(start(store, root, spec))
    before = snapshot(store.root)
    second = outcome(start(store, root, spec))
    assert snapshot(store.root) == before
    assert (first[0], second[0]) == (False, True) and first[1] == second[1]


def test_two_processes_racing(
    store: Store, root: Path, spec: KernelSpec, library: nvrtc.Library, tmp_path: Path
) -> None:
    """Both have compiled before either stores."""
    a, b = tmp_path / "a", tmp_path / "b"
    racers = [start(store, root, spec, a, b), start(store, root, spec, b, a)]
    (hit_a, path_a), (hit_b, path_b) = map(outcome, racers)
    assert (hit_a, hit_b) == (False, False) and path_a == path_b
    assert len(list(store.root.iterdir())) == 1
    assert store.get(spec, "80", library).hit


def test_two_processes_racing_for_a_damaged_entry(
    store: Store, root: Path, spec: KernelSpec, library: nvrtc.Library, tmp_path: Path
) -> None:
    truncate(store.get(spec, "80", library).path)
    a, b = tmp_path / "a", tmp_path / "b"
    racers = [start(store, root, spec, a, b), start(store, root, spec, b, a)]
    assert [outcome(racer)[0] for racer in racers] == [False, False]
    assert len(list(store.root.iterdir())) == 1
    assert store.get(spec, "80", library).hit
