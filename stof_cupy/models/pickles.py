"""Reads the pickles that ``torch.save`` writes of tensors, and nothing else that a pickle can say.

A pickle is a program. This machine knows the instructions that a dict of tensors needs, and the
functions that rebuild one; any other is refused by name before it does anything. No function that
a pickle names is ever looked up: each stands in a table here.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from stof_cupy.errors import CheckpointError, mismatch

__all__ = ["ByteStream", "Storage", "TensorRef", "read_pickle"]


@dataclass(frozen=True)
class Storage:
    """Elements in a row: NumPy's name of their dtype, the key they are kept under, their count."""

    dtype: str
    key: str
    count: int


@dataclass(frozen=True)
class TensorRef:
    """A tensor as a view of a storage; offset and strides in elements."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


_STORAGES = {
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "DoubleStorage": "float64",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
}


@dataclass(frozen=True)
class _Named:
    """A global that the pickle named and the tables know."""

    name: str


_MOST_AXES, _MOST = 32, 1 << 62
"""Of a tensor, and its sizes: their product takes no time, whatever a pickle says."""


def _is_sizes(value: Any) -> bool:
    few = isinstance(value, tuple) and len(value) <= _MOST_AXES
    return few and all(type(n) is int and 0 <= n <= _MOST for n in value)


def _tensor(*args: Any) -> TensorRef:
    """``torch._utils._rebuild_tensor_v2``, of which an older form has four arguments."""
    if len(args) >= 4:
        storage, offset, shape, strides = args[:4]
        sizes = _is_sizes(shape) and _is_sizes(strides) and _is_sizes((offset,))
        if isinstance(storage, Storage) and sizes and len(shape) == len(strides):
            return TensorRef(storage, offset, shape, strides)
    raise ValueError("a tensor rebuilt from something else than a storage and its sizes")


def _parameter(*args: Any) -> TensorRef:
    if args and isinstance(args[0], TensorRef):
        return args[0]
    raise ValueError("a parameter that is no tensor")


def _ordered(*args: Any) -> dict[Any, Any]:
    if args:
        raise ValueError("an OrderedDict with arguments")
    return {}


_CALLS: Mapping[str, Callable[..., Any]] = {
    "torch._utils _rebuild_tensor_v2": _tensor,
    "torch._utils _rebuild_tensor": _tensor,
    "torch._utils _rebuild_parameter": _parameter,
    "collections OrderedDict": _ordered,
}

_KNOWN = {*_CALLS, *(f"torch {name}" for name in _STORAGES)}

_MARK = object()


_MOST_STEPS = 1 << 21
"""Instructions of a pickle, far above what checkpoints have: some fifty a tensor."""


class _RefusedError(Exception):
    """An instruction or a global that tensors do not need; the argument says which."""


_CONSTANTS: Mapping[str, Callable[[], Any]] = {
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "MARK": lambda: _MARK,
}

_LITERALS = {
    *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE"),
    *("BINSTRING", "SHORT_BINSTRING"),
}


class ByteStream:
    """Bytes read in order, never more of them than there are: what a pickle says may be absurd.

    Parameters
    ----------
    data : buffer
        Not copied.
    """

    def __init__(self, data: Any) -> None:
        self._data = memoryview(data)
        self._at = 0

    def read(self, size: int) -> bytes:
        """Return the next `size` bytes, or those that are left."""
        piece = self._data[self._at : min(self._at + size, len(self._data))].tobytes()
        self._at += len(piece)
        return piece

    def readline(self) -> bytes:
        """Return the bytes up to the next line feed, and it."""
        start, parts = self._at, []
        while piece := self.read(256):
            parts.append(piece)
            if (found := piece.find(b"\n")) >= 0:
                parts[-1] = piece[: found + 1]
                break
        line = b"".join(parts)
        self._at = start + len(line)
        return line

    def tell(self) -> int:
        """Return how many bytes have been read."""
        return self._at


class _Machine:
    """The stack and the memo of one pickle."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def since_mark(self) -> list[Any]:
        at = len(self.stack) - 1
        while self.stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise ValueError("no mark on the stack")
        items = self.stack[at + 1 :]
        del self.stack[at:]
        return items

    def take(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise ValueError("too few values on the stack")
        items = self.stack[-count:]
        del self.stack[-count:]
        return items

    def step(self, name: str, arg: Any) -> None:
        """Do one instruction; raise ValueError or LookupError where it makes no sense."""
        if name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name]())
        elif name in _LITERALS:
            self.stack.append(arg)
        elif name in ("BINPUT", "LONG_BINPUT"):
            self.memo[arg] = self.stack[-1]
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = self.stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            self.stack.append(self.memo[arg])
        elif name == "TUPLE":
            self.stack.append(tuple(self.since_mark()))
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            self.stack.append(tuple(self.take(int(name[-1]))))
        elif name in ("SETITEM", "SETITEMS"):
            self._set_items(self.take(2) if name == "SETITEM" else self.since_mark())
        elif name in ("APPEND", "APPENDS"):
            items = self.take(1) if name == "APPEND" else self.since_mark()
            self._top(list).extend(items)
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            self._global(*([arg] if name == "GLOBAL" else self.take(2)))
        elif name == "REDUCE":
            self._reduce(*self.take(2))
        elif name == "BUILD":
            # The attributes of a state dict (`_metadata`): versions of torch modules.
            if not isinstance(self.take(1)[0], dict):
                raise ValueError("attributes that are no dict")
            self._top(dict)
        elif name == "BINPERSID":
            self.stack.append(_storage(self.take(1)[0]))
        elif name not in ("PROTO", "FRAME"):
            raise _RefusedError(f"the instruction {name}")

    def _top(self, kind: type) -> Any:
        if not self.stack or type(self.stack[-1]) is not kind:
            raise ValueError(f"no {kind.__name__} to add to")
        return self.stack[-1]

    def _set_items(self, items: list[Any]) -> None:
        target = self._top(dict)
        keys, values = items[::2], items[1::2]
        if len(keys) != len(values) or not all(type(key) in (str, int) for key in keys):
            raise ValueError("a dict whose keys are no names")
        target.update(zip(keys, values, strict=True))

    def _global(self, *parts: Any) -> None:
        # No text is made of anything else: a small tuple of tuples may be a huge one.
        if not all(type(part) is str for part in parts):
            raise ValueError("a global whose name is no text")
        name = " ".join(parts)
        if name not in _KNOWN:
            raise _RefusedError(name.replace(" ", "."))
        self.stack.append(_Named(name))

    def _reduce(self, function: Any, args: Any) -> None:
        if not isinstance(function, _Named) or function.name not in _CALLS:
            raise ValueError("a call of what is no function")
        if not isinstance(args, tuple):
            raise ValueError("a call without arguments")
        self.stack.append(_CALLS[function.name](*args))


def _storage(value: Any) -> Storage:
    """Return the storage that a persistent id names: ``("storage", type, key, device, count)``."""
    if isinstance(value, tuple) and len(value) >= 5 and value[0] == "storage":
        kind, key, count = value[1], value[2], value[4]
        named = isinstance(kind, _Named) and kind.name.startswith("torch ")
        if named and isinstance(key, str) and _is_sizes((count,)):
            return Storage(_STORAGES[kind.name.removeprefix("torch ")], key, count)
    raise ValueError("a persistent id that names no storage")


def read_pickle(stream: ByteStream, name: str) -> Any:
    """Run one pickle and return its value; `stream` is left behind it.

    Parameters
    ----------
    stream : ByteStream
    name : str
        For messages.

    Returns
    -------
    object
        Made of dict, list, tuple, str, int, float, bool, None, `Storage` and `TensorRef`.

    Raises
    ------
    CheckpointError
        If it is damaged, or has an instruction or names a global that tensors do not need; nothing
        of it has been executed then.
    """
    machine = _Machine()
    try:
        for count, (opcode, arg, _) in enumerate(pickletools.genops(cast(Any, stream))):
            if count >= _MOST_STEPS:
                raise ValueError(f"more than {_MOST_STEPS} instructions")
            if opcode.name == "STOP":
                if len(machine.stack) == 1:
                    return machine.stack[0]
                break
            machine.step(opcode.name, arg)
    except _RefusedError as unknown:
        expected = "tensors and nothing else"
        hint = "convert the file to safetensors where you trust it"
        raise CheckpointError(mismatch(name, f"a pickle with {unknown}", expected, hint)) from None
    except (ValueError, LookupError, OverflowError) as bad:
        raise CheckpointError(mismatch(name, f"a damaged pickle ({bad})", "tensors")) from bad
    raise CheckpointError(mismatch(name, "a pickle that does not end", "tensors"))
