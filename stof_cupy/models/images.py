"""Images for vision models: cut into patches, each with its place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stof_cupy.errors import ArgumentError, ConfigError, DTypeError, ShapeError, mismatch
from stof_cupy.models.checkpoint import read_object
from stof_cupy.models.resample import resized

__all__ = ["ImageConfig", "Vision", "pixels_of"]

Floats = NDArray[np.float32]

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet's red, green and blue, from 0 to 1."""


@dataclass(frozen=True, eq=False)
class Vision:
    """How a model sees images.

    Attributes
    ----------
    patch : int
        Pixels along a side of a patch.
    channels : int
    size : tuple of int
        Height and width that its positions were trained for.
    class_row : ndarray (hidden,)
        What the first token begins as: class token and its position.
    positions : ndarray (patches, hidden)
        Of the patches, row by row.
    bias : ndarray (hidden,)
        Of the patch embedding.
    """

    patch: int
    channels: int
    size: tuple[int, int]
    class_row: NDArray[Any]
    positions: NDArray[Any]
    bias: NDArray[Any]

    def places(self, height: int, width: int) -> Floats:
        """Return what is added to the patches of an image (1 + patches, hidden).

        The first row is the class token's. Positions of another size are interpolated, as models
        are fine-tuned: Dosovitskiy et al., arXiv 2010.11929, section 3.2.
        """
        grid = tuple(side // self.patch for side in self.size)
        wanted = (height // self.patch, width // self.patch)
        table = self.positions.astype(np.float32)
        if wanted != grid:
            square = table.reshape(*grid, -1)
            table = resized(square, *wanted, sharpness=-0.75, smooth=False)
        rows = table.reshape(-1, table.shape[-1]) + self.bias.astype(np.float32)
        return np.concatenate([self.class_row.astype(np.float32)[None], rows])

    def patches(self, pixels: Any) -> Any:
        """Return pixels (batch, channels, height, width) as (batch, 1 + patches, values).

        The first row is 0, for the class token. NumPy and CuPy arrays are taken.
        """
        batch, channels, height, width = pixels.shape
        p = self.patch
        cut = pixels.reshape(batch, channels, height // p, p, width // p, p)
        rows = cut.transpose(0, 2, 4, 1, 3, 5).reshape(batch, -1, channels * p * p)
        out = np.zeros_like(rows, shape=(batch, rows.shape[1] + 1, rows.shape[2]))
        out[:, 1:] = rows
        return out

    def check(self, pixels: Any) -> None:
        """Raise ShapeError or DTypeError unless these are pixels that patches can be cut of."""
        if pixels.dtype.kind != "f":
            raise DTypeError(mismatch("x", f"an array of {pixels.dtype}", "an array of floats"))
        shape = tuple(pixels.shape)
        fits = len(shape) == 4 and shape[1] == self.channels and min(shape) > 0
        if not fits or shape[2] % self.patch or shape[3] % self.patch:
            expected = f"(batch, {self.channels}, height, width), multiples of {self.patch}"
            raise ShapeError(mismatch("x", shape, expected))


@dataclass(frozen=True)
class ImageConfig:
    """What a checkpoint's ``preprocessor_config.json`` says of images.

    Attributes
    ----------
    mean, std : tuple of float
        Of red, green and blue, from 0 to 1.
    """

    mean: tuple[float, ...] = _MEAN
    std: tuple[float, ...] = _STD

    @classmethod
    def read(cls, path: Path | None) -> ImageConfig:
        """Read the file, if there is one.

        Raises
        ------
        ConfigError
            If it is damaged, or wants pixels on another scale.
        """
        if path is None or not path.is_file():
            return cls()
        given = read_object(path, ConfigError)
        factor = given.get("rescale_factor", 1 / 255)
        whole = type(factor) in (int, float) and abs(factor * 255 - 1) < 1e-3
        if not whole or given.get("do_rescale", True) is not True:
            got = f"do_rescale {given.get('do_rescale', True)!r}, rescale_factor {factor!r}"
            raise ConfigError(mismatch(str(path), got, "pixels from 0 to 1"))
        if given.get("do_normalize", True) is False:
            return cls((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
        return cls(_three(given, "image_mean", _MEAN), _three(given, "image_std", _STD))


def _three(given: Mapping[str, Any], name: str, default: tuple[float, ...]) -> tuple[float, ...]:
    value = given.get(name, default)
    numbers = isinstance(value, (list, tuple)) and all(type(v) in (int, float) for v in value)
    if not numbers or len(value) != 3 or (name == "image_std" and min(value) <= 0):
        raise ConfigError(mismatch(name, repr(value), "three numbers"))
    return tuple(map(float, value))


def pixels_of(images: Iterable[Any], vision: Vision, config: ImageConfig, size: int) -> Floats:
    """Return images as pixels (images, 3, size, size), normalised.

    The shorter side becomes `size` long, by cubic resampling, and the middle is kept.

    Parameters
    ----------
    images : iterable of uint8 array, (height, width, 3)
    vision : Vision
    config : ImageConfig
    size : int
        A multiple of the patch.

    Raises
    ------
    ArgumentError, DTypeError, ShapeError
        If `size` or an image is something else.
    """
    whole = isinstance(size, Integral) and not isinstance(size, bool)
    if not whole or size < 1 or size % vision.patch:
        raise ArgumentError(mismatch("size", repr(size), f"a multiple of {vision.patch}"))
    size = int(size)
    if not np.iterable(images):
        raise DTypeError(mismatch("images", type(images).__name__, "a sequence of arrays"))
    mean, std = (np.array(each, np.float32) for each in (config.mean, config.std))
    # One after another: what is read from files when it is asked for need not lie here as a whole.
    squares = (_square(_image(i, image), size) for i, image in enumerate(images))
    made = [((square - mean) / std).transpose(2, 0, 1) for square in squares]
    if not made:
        raise ArgumentError(mismatch("images", "none", "at least one"))
    return np.ascontiguousarray(np.stack(made), np.float32)


def _image(i: int, image: Any) -> NDArray[np.uint8]:
    try:
        array = np.asarray(image)
    except ValueError as bad:  # lists of different lengths
        raise ShapeError(mismatch(f"images[{i}]", bad, "(height, width, 3)")) from bad
    if array.dtype != np.uint8:
        raise DTypeError(mismatch(f"images[{i}]", f"an array of {array.dtype}", "uint8"))
    if array.ndim != 3 or array.shape[2] != 3 or 0 in array.shape:
        raise ShapeError(mismatch(f"images[{i}]", array.shape, "(height, width, 3)"))
    return array


def _square(image: NDArray[np.uint8], size: int) -> Floats:
    """Return the middle of an image, from 0 to 1."""
    height, width = image.shape[:2]
    scale = size / min(height, width)
    sides: Sequence[int] = [max(size, round(side * scale)) for side in (height, width)]
    middle = resized(image, *sides, sharpness=-0.5, smooth=True, middle=size)
    return np.asarray(np.clip(middle / np.float32(255), 0, 1))
