"""Packed sequences on a GPU: whatever their lengths, a run is what was recorded before.

Tokens are padded to one of a few numbers, sixteen to an octave, and the mask of documents is built
on the GPU in the recorded run. Before that one kernel puts together what the run reads: other
sequences are an upload of a few numbers each, and of what lies on the host, without waiting.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from stof_cupy.dtypes import is_cupy
from stof_cupy.interop import to_device
from stof_cupy.jit.ahead import compile_ahead
from stof_cupy.jit.device import facts
from stof_cupy.jit.mask_kernels import mask_build, mask_documents, mask_order
from stof_cupy.jit.packing_kernel import packing
from stof_cupy.masks import document_ids
from stof_cupy.masks.bitmap import TILE
from stof_cupy.masks.segments import Segments
from stof_cupy.ops.packing import Column, pack
from stof_cupy.runtime.packing import POSITIONS, Sequences, positions
from stof_cupy.runtime.program import Array, Finish, Program
from stof_cupy.runtime.ready import is_capturing, on_device

__all__ = ["Documents", "PackedProgram", "lengths_of", "padded_tokens"]

_KEPT = 64
"""Masks that are kept, each for a number of tokens; some megabytes each."""


class PackedProgram(Program):
    """The program of packed sequences; see `packing.pack_graph`.

    Where runs are recorded, sequences under plain or causal masks of documents are run as the
    module says; else as any program.
    """

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self._masks: OrderedDict[tuple[int, int, bool], Documents] = OrderedDict()
        self._own: WeakValueDictionary[int, Any] = WeakValueDictionary()  # masks that runs build
        self._mask_lock = threading.Lock()

    def run(
        self,
        inputs: Mapping[str, Any],
        *,
        lengths: Sequence[int] | None = None,
        finish: Finish | None = None,
    ) -> dict[str, Array]:
        """Compute the outputs, see `Program.run`; those of the tokens that there are.

        Arrays may be NumPy's as well, and what is not yet one array may be `Sequences`: where runs
        are recorded, all of them are put together by one launch.

        Parameters
        ----------
        lengths : sequence of int, optional
            Of the sequences; then ``packed.positions`` may be left out.
        """
        device = self.device
        recorded = self.records and device is not None
        known = self._documents(inputs, lengths) if recorded else None
        if known is None or device is None or is_capturing(device):
            with on_device(device):
                whole = {name: self._whole(name, x) for name, x in inputs.items()}
            if lengths is not None and POSITIONS in self.graph.inputs:
                whole = {POSITIONS: self._whole(POSITIONS, positions(lengths)), **whole}
            return super().run(whole, finish=finish)
        counts, causal = known
        tokens = int(counts.sum())
        size = padded_tokens(tokens)
        longest = max(1 << (int(counts.max()) - 1).bit_length(), 256)  # few masks for many runs
        arrays = {n: x for n, x in inputs.items() if n not in causal and x is not None}
        with on_device(device), ExitStack() as stack:
            masks = {
                each: stack.enter_context(self._mask(size, longest, each).alone())
                for each in {*causal.values()}
            }
            ids = [each.ids for each in masks.values()]
            given = self._packed_arrays(arrays, counts, size, device, ids)
            given |= {name: masks[each].mask for name, each in causal.items()}
            made = super().run(given, finish=finish)
        return {name: array[:, :tokens] for name, array in made.items()}

    def _begin(self, inputs: Mapping[str, Any]) -> None:
        for number in {id(value) for value in inputs.values()}:
            mask = self._own.get(number)
            if mask is not None:
                mask.rebuild()

    def _whole(self, name: str, x: Any) -> Any:
        """Return what an input is as one array on the program's device."""
        if isinstance(x, Sequences):
            return x.together(self.device)
        if self.device is None or name not in self._arrays or not isinstance(x, np.ndarray):
            return x
        return to_device(x, self.device)

    def _packed_arrays(
        self,
        inputs: Mapping[str, Any],
        lengths: NDArray[Any],
        size: int,
        device: int,
        numbers: Sequence[Array],
    ) -> dict[str, Array]:
        """Return the inputs as arrays with zeros behind the tokens, and positions beside them.

        `numbers` get the number of each token's sequence.
        """
        import cupy

        given: dict[str, Array] = {}
        columns = []
        for name, x in inputs.items():
            if isinstance(x, Sequences):
                rows, rest, dtype = x.alike(), (), np.dtype(np.int32)
            else:
                there = x if isinstance(x, np.ndarray) else to_device(x, device)
                rows, rest, dtype = there[0], x.shape[2:], x.dtype
            given[name] = cupy.empty((1, size, *rest), dtype)
            columns.append(Column(rows, given[name]))
        places = None
        if POSITIONS in self.graph.inputs and POSITIONS not in given:
            places = given[POSITIONS] = cupy.empty((1, size), np.int32)
        pack(lengths, columns, positions=places, numbers=numbers)
        for name, x in inputs.items():
            if isinstance(x, Sequences):
                given[name] = x.look(given[name])
        return given

    def _documents(
        self, inputs: Mapping[str, Any], lengths: Sequence[int] | None = None
    ) -> tuple[NDArray[Any], dict[str, bool]] | None:
        """Return the lengths of all sequences, and which masks are causal.

        None where masks are others, or arrays or `lengths` not of the sequences they tell apart.
        """
        names = [name for name, node in self.graph.inputs.items() if node.dtype == "mask"]
        masks = {name: inputs.get(name) for name in names}
        distinct = {id(mask): mask for mask in masks.values()}  # layers have the same, as a rule
        found = {number: lengths_of(mask) for number, mask in distinct.items()}
        first = next(iter(found.values()), None)
        tokens = 0 if first is None else int(first.lengths.sum())
        if first is None or not tokens:
            return None
        for each in [*found.values()][1:]:
            if each is None or not np.array_equal(each.lengths, first.lengths):
                return None
        if lengths is not None and [*lengths] != first.lengths.tolist():
            return None
        for name, x in inputs.items():
            if name in masks or x is None or isinstance(x, Sequences):
                continue
            if (not isinstance(x, np.ndarray) and not is_cupy(x)) or x.shape[:2] != (1, tokens):
                return None
        causal = {number: each.causal for number, each in found.items() if each}
        return first.lengths, {name: causal[id(mask)] for name, mask in masks.items()}

    def _mask(self, tokens: int, longest: int, causal: bool) -> Documents:
        key = tokens, longest, causal
        with self._mask_lock:
            found = self._masks.get(key)
            if found is None:
                found = self._masks[key] = Documents(tokens, longest, causal=causal)
                self._own[id(found.mask)] = found.mask
            self._masks.move_to_end(key)
            while len(self._masks) > _KEPT:
                self._masks.popitem(last=False)
            return found

    def close(self) -> None:
        """Free what `Program.close` does, and the masks."""
        super().close()
        with self._mask_lock:
            self._masks.clear()


class Documents:
    """A mask of documents on the current device, for one number of tokens and any lengths.

    Parameters
    ----------
    tokens : int
    longest : int
        Tokens of a document, at most.
    causal : bool

    Attributes
    ----------
    ids : cupy.ndarray of int32 (tokens,)
        Equal for the tokens of a document, -1 for padding: what `mask` is rebuilt from.
    mask : DeviceMask
    """

    def __init__(self, tokens: int, longest: int, *, causal: bool) -> None:
        import cupy

        builds = packing(), mask_documents("int32"), mask_build((TILE, TILE), False), mask_order()
        compile_ahead(builds, facts().arch)
        # Not from a pool, which could be of a stream.
        with cupy.cuda.using_allocator(None):
            self.ids = cupy.asarray(np.full(tokens, -1, np.int32))
            rows = -(-tokens // TILE)
            # A tile of queries sees documents that begin before it and end after it.
            most = rows * min(rows, 2 * -(-longest // TILE) + 2)
            pattern = document_ids(self.ids, causal=causal)
            self.mask: Any = pattern.to("cuda", tiles=most, bitmaps=most)
        cupy.cuda.get_current_stream().synchronize()
        self._used: Any = None
        self._lock = threading.Lock()

    @contextmanager
    def alone(self) -> Iterator[Documents]:
        """Give it to the caller alone, on the current stream, who writes other `ids`."""
        import cupy

        with self._lock:
            stream = cupy.cuda.get_current_stream()
            if self._used is not None:
                stream.wait_event(self._used)
            try:
                yield self
            finally:
                self._used = stream.record()


class _Packed(NamedTuple):
    lengths: NDArray[Any]
    causal: bool


def lengths_of(mask: Any) -> _Packed | None:
    """Return the lengths of documents that see themselves, or None for any other mask.

    Examples
    --------
    >>> from stof_cupy import masks
    >>> lengths_of(masks.document([2, 0, 3], causal=True))
    _Packed(lengths=array([2, 0, 3]), causal=True)
    >>> lengths_of(masks.document([2], [3])), lengths_of(masks.causal(4))
    (None, None)
    """
    if type(mask) is not Segments:
        return None
    stop = mask.query_stop
    lengths = stop.copy()
    lengths[1:] -= stop[:-1]
    own = (mask.key_stop == stop) & (mask.key_start == stop - lengths)
    if not own.all() or (mask.reach is not None and mask.reach.any()):
        return None
    return _Packed(lengths, mask.reach is not None)


def padded_tokens(tokens: int) -> int:
    """Return the number of tokens that runs of `tokens` are padded to: at most a sixteenth more.

    Examples
    --------
    >>> [padded_tokens(n) for n in (1, 300, 5000, 16_700)]
    [64, 320, 5120, 17408]
    """
    step = max(1 << max(tokens - 1, 1).bit_length() >> 5, TILE)
    return -(-tokens // step) * step
