"""Packed sequences on a GPU: whatever their lengths, a run is what was recorded before.

Tokens are padded to one of a few numbers, 32 to an octave, and the mask of documents is built
on the GPU in the recorded run. Before that one kernel puts together what the run reads: other
sequences are an upload of a few numbers each, and of what lies on the host, without waiting.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from stof_cupy.dtypes import is_cupy
from stof_cupy.interop import to_device
from stof_cupy.jit.ahead import compile_ahead
from stof_cupy.jit.device import facts
from stof_cupy.jit.mask_kernels import mask_build, mask_documents, mask_order
from stof_cupy.jit.packing_kernel import packing
from stof_cupy.masks import document_ids
from stof_cupy.masks.bitmap import TILE
from stof_cupy.masks.segments import Segments
from stof_cupy.runtime.packed_arrays import PackedArrays
from stof_cupy.runtime.packing import POSITIONS, Packed, Sequences, positions
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
        self._beside = threading.local()

    def run(
        self,
        inputs: Mapping[str, Any],
        *,
        lengths: Sequence[int] | None = None,
        finish: Finish | None = None,
    ) -> dict[str, Array]:
        """Compute the outputs, see `Program.run`; those of the tokens that there are.

        Arrays may be NumPy's as well, what is not yet one array may be `Sequences`, and a mask of
        documents `Packed`: where runs are recorded, all of them are put together by one launch.

        Parameters
        ----------
        lengths : sequence of int, optional
            Of the sequences; then ``packed.positions`` may be left out.
        """
        device = self.device
        recorded = self.records and device is not None
        known = self._documents(inputs, lengths) if recorded else None
        with on_device(device):  # each has a current stream of its own
            captured = is_capturing(device)
        if known is None or device is None or captured:
            with on_device(device):
                whole = {name: self._whole(name, x) for name, x in inputs.items()}
            if lengths is not None and POSITIONS in self.graph.inputs:
                whole = {POSITIONS: self._whole(POSITIONS, positions(lengths)), **whole}
            return super().run(whole, finish=finish)
        counts, causal = known
        tokens = sum(counts)
        size = padded_tokens(tokens)
        longest = max(1 << (max(counts) - 1).bit_length(), 256)  # few masks for many runs
        arrays = {n: x for n, x in inputs.items() if n not in causal and x is not None}
        with on_device(device), ExitStack() as stack:
            masks = {
                each: stack.enter_context(self._mask(size, longest, each).alone())
                for each in {*causal.values()}
            }
            given = {name: masks[each].mask for name, each in causal.items()}
            packed = PackedArrays(
                arrays, counts, size, device, [each.ids for each in masks.values()],
                positions=POSITIONS in self.graph.inputs and POSITIONS not in arrays,
            )  # fmt: skip
            made = super()._run({**given, **packed.room}, finish, packed.write)
            packed.look(self._beside)
        return {name: array[:, :tokens] for name, array in made.items()}

    def _begin(self, inputs: Mapping[str, Any]) -> None:
        for number in {id(value) for value in inputs.values()}:
            mask = self._own.get(number)
            if mask is not None:
                mask.rebuild(asked=True)

    def _whole(self, name: str, x: Any) -> Any:
        """Return what an input is as one array on the program's device, or as a mask."""
        if isinstance(x, Sequences):
            return x.together(self.device)
        if isinstance(x, Packed):
            return x.made()
        if self.device is None or name not in self._arrays or not isinstance(x, np.ndarray):
            return x
        return to_device(x, self.device)

    def _documents(
        self, inputs: Mapping[str, Any], lengths: Sequence[int] | None = None
    ) -> tuple[tuple[int, ...], dict[str, bool]] | None:
        """Return the lengths of all sequences, and which masks are causal.

        None where masks are others, or arrays or `lengths` not of the sequences they tell apart.
        """
        names = [name for name, node in self.graph.inputs.items() if node.dtype == "mask"]
        masks = {name: inputs.get(name) for name in names}
        distinct = {id(mask): mask for mask in masks.values()}  # layers have the same, as a rule
        found = {number: lengths_of(mask) for number, mask in distinct.items()}
        first = next(iter(found.values()), None)
        tokens = 0 if first is None else sum(first.lengths)
        if first is None or not tokens:
            return None
        for each in [*found.values()][1:]:
            if each is None or each.lengths != first.lengths:
                return None
        if lengths is not None and tuple(lengths) != first.lengths:
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


def lengths_of(mask: Any) -> Packed | None:
    """Return the lengths of documents that see themselves, or None for any other mask.

    Examples
    --------
    >>> from stof_cupy import masks
    >>> lengths_of(masks.document([2, 0, 3], causal=True))
    Packed(lengths=(2, 0, 3), causal=True)
    >>> lengths_of(masks.document([2], [3])), lengths_of(masks.causal(4))
    (None, None)
    """
    if isinstance(mask, Packed):
        return mask
    if type(mask) is not Segments:
        return None
    stop = mask.query_stop
    lengths = stop.copy()
    lengths[1:] -= stop[:-1]
    own = (mask.key_stop == stop) & (mask.key_start == stop - lengths)
    if not own.all() or (mask.reach is not None and mask.reach.any()):
        return None
    return Packed(tuple(lengths.tolist()), mask.reach is not None)


def padded_tokens(tokens: int) -> int:
    """Return the number of tokens that runs of `tokens` are padded to: at most a 32nd more.

    Of each number a run is recorded, so they should be few; but products of 17408 rows and 768
    columns take a quarter more than of 16896, whose tiles fill an H200's SMs just four times.

    Examples
    --------
    >>> [padded_tokens(n) for n in (1, 300, 5000, 16_700)]
    [64, 320, 5120, 16896]
    """
    step = max(1 << max(tokens - 1, 1).bit_length() >> 6, TILE)
    return -(-tokens // step) * step
