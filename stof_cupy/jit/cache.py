"""Compiled kernels on disk: a directory per kernel, with a readable name, safe to share.

Writers build a directory aside and rename it into place, so a reader sees all of an entry or none.
What is read is checked against its SHA-256: an entry that was cut short or edited counts as absent.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import threading
import uuid
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stof_cupy import env
from stof_cupy.errors import StofWarning
from stof_cupy.jit import nvrtc
from stof_cupy.jit.compile import FLAGS, Cubin, compile_cubin
from stof_cupy.jit.source import closure_digest, stub
from stof_cupy.jit.spec import KernelSpec

__all__ = ["Entry", "Store"]

_SCHEMA = 1
_CUBIN, _STUB, _RECORD = "kernel.cubin", "stub.cu", "kernel.json"


@dataclass(frozen=True)
class Entry:
    """A kernel in a store.

    Attributes
    ----------
    path : Path
        The cubin file.
    cubin : Cubin
        What it contains.
    hit : bool
        Whether it was there already.
    """

    path: Path
    cubin: Cubin
    hit: bool


class Store:
    """The kernels below one directory.

    Each is a directory ``<name>-sm_<arch>-<key>/`` with ``kernel.cubin``, ``stub.cu`` and
    ``kernel.json``. A hit writes nothing and leaves every modification time alone.

    Parameters
    ----------
    root : Path
        Made when the first kernel is stored. If it cannot be written, a ``StofWarning`` says so
        once, and kernels go to a temporary directory that lasts as long as the store.
    device_code : Path, optional
        Where headers are. Default: :func:`~stof_cupy.jit.source.cuda_root`.
    """

    def __init__(self, root: Path, device_code: Path | None = None) -> None:
        self.root = root
        self._device_code = device_code
        self._private_root: Path | None = None
        self._lock = threading.Lock()

    def key(self, spec: KernelSpec, arch: str, library: nvrtc.Library) -> dict[str, Any]:
        """Return everything the cubin depends on."""
        return {
            "schema": _SCHEMA,
            "stub": stub(spec, self._device_code),
            "closure": closure_digest(spec.header, self._device_code),
            "flags": list(FLAGS),
            "nvrtc": list(library.version),
            "arch": arch,
        }

    def get(self, spec: KernelSpec, arch: str, library: nvrtc.Library | None = None) -> Entry:
        """Return the compiled kernel, from disk if it is there and sound, else compiled and stored.

        Parameters
        ----------
        spec : KernelSpec
        arch : str
            E.g. ``"90a"``.
        library : nvrtc.Library, optional
            Default: ``nvrtc.load()``.

        Raises
        ------
        CompileError, UnsupportedError
            See :func:`~stof_cupy.jit.compile.compile_cubin`.
        """
        library = library or nvrtc.load()
        found = self.find(spec, arch, library)
        if found is not None:
            return found
        key, digest, folder = self._place(spec, arch, library)
        cubin = compile_cubin(spec, arch, library, root=self._device_code)
        files = _files(spec, key, digest, cubin)
        try:
            path = _write(self.root, folder, digest, files)
        except OSError as error:
            path = _write(self._fall_back(error), folder, digest, files)
        return Entry(path, cubin, hit=False)

    def find(
        self, spec: KernelSpec, arch: str, library: nvrtc.Library | None = None
    ) -> Entry | None:
        """Return the compiled kernel if it is there and sound, else None; see `get`."""
        _, digest, folder = self._place(spec, arch, library or nvrtc.load())
        for root in filter(None, (self.root, self._private_root)):
            if (found := _read(root / folder, digest)) is not None:
                return Entry(root / folder / _CUBIN, found, hit=True)
        return None

    def _place(
        self, spec: KernelSpec, arch: str, library: nvrtc.Library
    ) -> tuple[dict[str, Any], str, str]:
        """Return the key of a kernel, its digest, and the name of its directory."""
        key = self.key(spec, arch, library)
        digest = _sha256(json.dumps(key, sort_keys=True).encode())
        return key, digest, f"{spec.name}-sm_{arch}-{digest[:16]}"

    def _fall_back(self, reason: OSError) -> Path:
        """Return a directory to use instead of the root; warn when it is made."""
        with self._lock:
            if self._private_root is None:
                # An attribute, because the directory is removed with the object.
                self._temporary = tempfile.TemporaryDirectory(prefix="stof_cupy-")
                self._private_root = Path(self._temporary.name)
                warnings.warn(
                    f"kernel cache {self.root} cannot be written ({reason}); kernels compiled now "
                    f"are lost when this process ends. Set {env.CACHE_DIR.name} to another place.",
                    StofWarning,
                    stacklevel=3,
                )
            return self._private_root


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _files(spec: KernelSpec, key: dict[str, Any], digest: str, cubin: Cubin) -> dict[str, bytes]:
    """Return the files of an entry; the record, which vouches for the cubin, comes last."""
    record = {
        "symbol": spec.symbol,
        "key": digest,
        **{field: value for field, value in key.items() if field != "stub"},
        "sha256": _sha256(cubin.image),
        "registers": cubin.registers,
        "spill_bytes": cubin.spill_bytes,
        "smem_bytes": cubin.smem_bytes,
        "log": cubin.log,
    }
    text = json.dumps(record, indent=1) + "\n"
    return {_CUBIN: cubin.image, _STUB: key["stub"].encode(), _RECORD: text.encode()}


def _read(folder: Path, digest: str) -> Cubin | None:
    """Return the entry in `folder`, or None if it is not there or not sound."""
    try:
        record = json.loads((folder / _RECORD).read_bytes())
        image = (folder / _CUBIN).read_bytes()
        if record["key"] != digest or record["sha256"] != _sha256(image):
            return None
        return Cubin(
            image, record["log"], record["registers"], record["spill_bytes"], record["smem_bytes"]
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(root: Path, name: str, digest: str, files: dict[str, bytes]) -> Path:
    """Store an entry, unless another process was first, and return the path of its cubin."""
    folder = root / name
    aside = root / f".{name}-{uuid.uuid4().hex}"
    aside.mkdir(parents=True)
    try:
        for file, data in files.items():
            (aside / file).write_bytes(data)
        try:
            aside.rename(folder)
        except OSError:
            # Taken: by the winner of a race, or by a damaged entry. The files of the latter are
            # replaced one by one, so that a reader who has the path never finds it gone.
            if _read(folder, digest) is None:
                for file in files:
                    (aside / file).replace(folder / file)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return folder / _CUBIN
