"""What a caller gives a model, checked before anything uses it.

Token ids, lengths, token types, masks, and weights as a mapping.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Mapping
from functools import lru_cache
from numbers import Integral
from typing import Any

import numpy as np

from stof_cupy.errors import ArgumentError, MaskError, ShapeError, mismatch
from stof_cupy.interop import import_array
from stof_cupy.masks import BsrMask, DeviceMask, as_mask, as_masks, from_spec
from stof_cupy.models import LayerMask, Model
from stof_cupy.models.checks import Checks, integers
from stof_cupy.models.images import Vision
from stof_cupy.models.sparse import Request
from stof_cupy.models.target import Target
from stof_cupy.runtime.ready import is_capturing

__all__ = [
    "both",
    "host_arrays",
    "image_inputs",
    "lower_mask",
    "masks_of",
    "model_inputs",
    "refuse_for_images",
]

_KEPT = 64
"""Masks made of two that are kept, each as long as both are there."""

_made: OrderedDict[tuple[int, int], tuple[Any, list[Any]]] = OrderedDict()
_made_lock = threading.Lock()


def model_inputs(
    model: Model,
    target: Target,
    ids: Any,
    lengths: Any,
    mask: Any,
    token_types: Any,
    *,
    layer_masks: Mapping[int, Any] | None = None,
    logits: bool = False,
    global_tokens: Any = None,
    later: Checks | None = None,
) -> dict[str, Any]:
    """Return the inputs of ``model.graph`` on `target`; call it while the target is active.

    See :meth:`stof_cupy.TransformerEngine.run` for what each may be and what is raised. With
    `logits` those of all tokens are asked for, else none. Numbers that lie on the GPU and are out
    of their range are found here, after one wait for it, or where `checked` ends that gave `later`,
    and while a stream is captured not at all: see `integers`.
    """
    xp, declared = target.xp, model.graph.inputs
    ids = integers(ids, "x", ("batch", "seq"), model.vocab_size - 1, target, later)
    batch, seq = ids.shape
    if seq > model.max_positions:
        raise ShapeError(
            mismatch("x", f"sequences of {seq} tokens", f"at most {model.max_positions}")
        )
    if lengths is not None:
        lengths = integers(lengths, "lengths", (batch,), seq, target, later)
        if later or is_capturing(target.device):  # what is not checked yet must not read too far
            lengths = xp.clip(lengths, 0, seq)
    given: dict[str, Any] = {"ids": ids, "lengths": lengths}
    if "token_types" in declared:
        most = model.token_types - 1
        given["token_types"] = (
            xp.zeros_like(ids)
            if token_types is None
            else integers(token_types, "token_types", (batch, seq), most, target, later)
        )
    elif token_types is not None:
        raise ArgumentError(mismatch("token_types", "an array", "None: the model has no types"))
    if "positions" in declared:
        given["positions"] = xp.broadcast_to(xp.arange(seq, dtype=np.int32), (batch, seq))
    if "rows" in declared:
        count = seq if logits else 0
        given["rows"] = xp.arange(batch * count, dtype=np.int32).reshape(batch, count)
    elif logits:
        raise ArgumentError(mismatch("output", "'logits'", "'hidden': the model has no head"))
    shape = (batch, model.heads, seq, seq)
    if model.feeds is not None:
        replaced = _layer_masks(model, target, layer_masks, shape)
        taken = lower_mask(mask, shape, target)
        request = Request(target, *shape[:3], lengths, taken, replaced, global_tokens)
        return given | model.feeds(model, request)
    if global_tokens is not None:
        expected = "None: the model has no global tokens, a mask may have"
        raise ArgumentError(mismatch("global_tokens", repr(global_tokens), expected))
    return given | masks_of(model, target, mask, layer_masks, shape)


def image_inputs(
    model: Model,
    vision: Vision,
    target: Target,
    pixels: Any,
    mask: Any,
    layer_masks: Mapping[int, Any] | None,
) -> dict[str, Any]:
    """Return the inputs of an image encoder's graph; see `model_inputs`.

    Parameters
    ----------
    pixels : array of float, (batch, channels, height, width)
        Normalised.
    """
    array, _ = import_array(pixels, "x")
    vision.check(array)
    # Cut where the pixels are: on the host that costs no more than the copy does.
    patches = target.put(vision.patches(array))
    places = target.xp.asarray(vision.places(*array.shape[2:]))
    batch, seq = patches.shape[:2]
    masks = masks_of(model, target, mask, layer_masks, (batch, model.heads, seq, seq))
    return {"patches": patches, "places": places, **masks}


def refuse_for_images(**given: Any) -> None:
    """Raise ArgumentError if something is given that an image encoder has no use for."""
    for name, value in given.items():
        if value is not None:
            raise ArgumentError(mismatch(name, repr(value), "nothing: the model reads images"))


def masks_of(
    model: Model,
    target: Target,
    mask: Any,
    layer_masks: Mapping[int, Any] | None,
    shape: tuple[int, int, int, int],
) -> dict[str, Any]:
    """Return the masks of all layers: the family's, of which `mask` takes more away.

    What `layer_masks` has for a layer takes the place of the family's there.
    """
    lowered = lower_mask(mask, shape, target)
    replaced = _layer_masks(model, target, layer_masks, shape)
    kinds = {id(kind): kind for kind in model.layer_masks}
    own = {number: _family_mask(kind, shape[3]) for number, kind in kinds.items()}
    made: dict[int, Any] = {}
    masks = {}
    for layer, kind in enumerate(model.layer_masks):
        base = replaced[layer] if layer in replaced else own[id(kind)]
        # Equal masks stay one object, which is lowered and uploaded once.
        if id(base) not in made:
            made[id(base)] = both(base, lowered)
        masks[f"mask.{layer}"] = made[id(base)]
    return masks


def _layer_masks(
    model: Model,
    target: Target,
    layer_masks: Mapping[int, Any] | None,
    shape: tuple[int, int, int, int],
) -> dict[int, Any]:
    """Return the masks that a caller has for single layers, lowered."""
    count = len(model.layer_masks)
    given = {} if layer_masks is None else layer_masks
    if not isinstance(given, Mapping):
        got = type(given).__name__
        raise ArgumentError(mismatch("layer_masks", got, "a mapping of layers to masks"))
    replaced = {}
    for layer, each in given.items():
        whole = isinstance(layer, Integral) and not isinstance(layer, bool)
        if not whole or not 0 <= layer < count:
            raise ArgumentError(mismatch("layer_masks", repr(layer), f"layers 0 to {count - 1}"))
        replaced[int(layer)] = lower_mask(each, shape, target)
    return replaced


def _family_mask(mask: LayerMask, seq: int) -> BsrMask | None:
    return None if mask.spec is None else _spec(mask.spec, seq)


def both(base: Any, mask: Any) -> Any:
    """Return what both masks keep, None being all; of the same masks the same object.

    A run is recorded for the very masks that it was given, and each is uploaded once.

    Raises
    ------
    MaskError
        If one of two was built on the GPU.
    """
    if base is None or mask is None:
        return mask if base is None else base
    if isinstance(mask, DeviceMask) or isinstance(base, DeviceMask):
        hint = "masks built on the GPU are not combined with others"
        raise MaskError(mismatch("mask", "a DeviceMask", "a mask of the host", hint))
    key = id(base), id(mask)
    with _made_lock:
        if key in _made:
            _made.move_to_end(key)
            return _made[key][0]
    made = base & mask
    # Called before an id can be another's; takes no lock, which its thread may hold.
    owners = [weakref.ref(each, lambda _: _made.pop(key, None)) for each in (base, mask)]
    with _made_lock:
        made, _ = _made.setdefault(key, (made, owners))
        while len(_made) > _KEPT:
            _made.popitem(last=False)
    return made


def lower_mask(mask: Any, shape: tuple[int, int, int, int], target: Target) -> Any:
    """Return any form of mask as attention of `shape` takes it, or None.

    Parameters
    ----------
    mask : object
        See :meth:`stof_cupy.TransformerEngine.run`.
    shape : tuple of int
        ``(batch, heads, seq, seq)``, to which leading axes broadcast.
    target : Target
        Where it is needed: on CUDA, an array that lies there becomes a mask there.

    Raises
    ------
    MaskError, ShapeError, DTypeError, ArgumentError
        If it is of another shape, not boolean, or not a mask.
    """
    batch, _, _, seq = shape
    if mask is None:
        return None
    if getattr(mask, "shape", None) == (batch, seq) != (seq, seq):  # as others mask padding
        hint = "shapes are (queries, keys); what is padding is said by lengths"
        raise ShapeError(mismatch("mask", (batch, seq), (seq, seq), hint))
    if isinstance(mask, str):
        return _spec(mask, seq)
    if callable(mask):
        mask = mask(seq)
    if hasattr(mask, "__dlpack__"):
        mask, _ = import_array(mask, "mask")
        mask = mask if isinstance(mask, np.ndarray) else target.put(mask)
    return as_masks(mask, shape)


@lru_cache(maxsize=64)
def _spec(spec: str, seq: int) -> BsrMask:
    """Lower a spec once for each length: the schedule, uploaded or not, stays with the mask."""
    return as_mask(from_spec(spec, seq), (seq, seq), name="mask")


def host_arrays(weights: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Return a mapping of arrays of any library as NumPy arrays, shared where they are on the CPU.

    Raises
    ------
    DTypeError
        If one of them is no array of numbers.
    """
    arrays = {name: import_array(x, f"weight {name!r}")[0] for name, x in weights.items()}
    return {n: a if isinstance(a, np.ndarray) else a.get() for n, a in arrays.items()}
