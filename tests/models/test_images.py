"""ViT and DINOv2 agree with Hugging Face transformers, at their own size and at others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stof_cupy import TransformerEngine, models
from stof_cupy.dtypes import as_dtype
from stof_cupy.errors import (
    ArgumentError,
    CheckpointNotFoundError,
    ConfigError,
    DTypeError,
    ShapeError,
    UnsupportedError,
    WeightError,
)
from stof_cupy.models import zoo
from stof_cupy.models.images import ImageConfig
from stof_cupy.models.resample import cubic, resized
from stof_cupy.testing import assert_close
from tests.goldens.cases import BATCH, DINOV2, GPT2, IMAGES, SEED, SIZES, VIT
from tests.models.rounded import Rounded
from tests.models.test_decoders import close, engine_of

GOLDENS = Path(__file__).parents[1] / "goldens"
MEAN, STD = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDENS / "images.npz") as file:
        return dict(file)


def pixels_for(config: dict[str, Any], size: tuple[int, int]) -> np.ndarray:
    shape = (BATCH, config.get("num_channels", 3), *size)
    return np.random.default_rng(SEED).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", IMAGES)
def test_small_models(name, size, golden):
    got = engine_of(IMAGES[name]).run(pixels_for(IMAGES[name], size))
    close(got, golden[f"{name}/{size[0]}x{size[1]}"])


def dinov2_small() -> tuple[Any, Any]:
    pytest.importorskip("onnx")
    try:
        return zoo.dinov2_small()
    except CheckpointNotFoundError as absent:
        pytest.skip(str(absent))


def photographs(golden: dict[str, np.ndarray]) -> np.ndarray:
    pixels = ((golden["photos"] / np.float32(255) - MEAN) / STD).transpose(0, 3, 1, 2)
    return pixels.astype(np.float32)


@pytest.mark.checkpoint
def test_dinov2_small_on_two_photographs(golden):
    config, weights = dinov2_small()
    engine = TransformerEngine(weights, config=config, backend="numpy")
    states = engine.run(photographs(golden))[:, ::16]
    for other in ("dinov2-small", "dinov2-small/onnxruntime"):
        close(states, golden[other], 1e-5)
    vectors = engine.features(golden["photos"])
    assert vectors.dtype == np.float32 and vectors.shape == (2, 384)
    # 224 pixels stay as they are, and the vector is the class token's state.
    close(vectors, golden["dinov2-small"][:, 0])


def test_masks_of_patches():
    engine, pixels = engine_of(VIT), pixels_for(VIT, (28, 28))
    whole = engine.run(pixels)
    assert np.array_equal(engine.run(pixels, mask="full"), whole)
    near = engine.run(pixels, mask="sliding:w=3")
    assert not np.allclose(near, whole, atol=1e-2)
    assert not np.allclose(engine.run(pixels, layer_masks={1: "sliding:w=3"}), whole, atol=1e-3)


def test_an_image_encoder_is_profiled_and_reads_nothing_but_images():
    engine = engine_of(DINOV2)
    pixels = np.zeros((1, 3, 28, 42), np.float32)
    assert "attention" in str(engine.profile(pixels, repeat=1))
    for name, value in (("lengths", [1]), ("token_types", [[0]]), ("output", "logits")):
        with pytest.raises(ArgumentError, match=f"{name}: got .* the model reads images"):
            engine.run(pixels, **{name: value})
    with pytest.raises(ArgumentError, match="lengths: got"):
        engine.profile(pixels, lengths=[1])


def test_features_do_not_depend_on_the_batch():
    engine = engine_of(DINOV2)
    images = [
        np.random.default_rng(i).integers(0, 256, (40 + i, 50, 3), np.uint8) for i in range(5)
    ]
    vectors = engine.features(images, size=28)
    for batch_size in (1, 2):
        again = engine.features(images, size=np.int64(28), batch_size=batch_size)
        close(again, vectors, 1e-5)
    assert engine.features(images[:1]).shape == (1, 48)


def test_resampling_agrees_with_pillow(golden):
    """To the rounding of its 8-bit result, and of the one between its two passes."""
    got = resized(golden["small"], 15, 23, sharpness=-0.5, smooth=True)
    assert np.abs(got - golden["resized"]).max() <= 1.01


@pytest.mark.parametrize("shape", [(31, 15, 3), (9, 40, 3), (16, 16, 3)])
def test_the_middle_alone_is_the_middle_of_all(shape):
    image = np.random.default_rng(1).integers(0, 256, shape, np.uint8)
    for height, width, size in ((7, 60, 7), (24, 25, 9)):
        how: dict[str, Any] = {"sharpness": -0.5, "smooth": True}
        whole = resized(image, height, width, **how)
        top, left = (height - size) // 2, (width - size) // 2
        middle = whole[top : top + size, left : left + size]
        close(resized(image, height, width, middle=size, **how), middle, 1e-6)


def test_a_long_strip_takes_no_more_room():
    """As a whole it would be 14 by 14 million, and its matrix a million times that."""
    strip = np.full((1, 1_000_000, 3), 255, np.uint8)
    strip[0, 499_000:501_000] = 80
    long, short = engine_of(VIT).features([strip, strip[:, 500_000:500_001]], size=14)
    close(long, short, 1e-5)


@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize(("source", "target"), [(1, 5), (4, 4), (5, 13), (37, 16), (9, 2)])
def test_resampling_keeps_straight_lines(source, target, smooth):
    matrix = cubic(source, target, sharpness=-0.5, smooth=smooth)
    np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-6)
    if source == target:
        np.testing.assert_allclose(matrix, np.eye(source), atol=1e-6)
    if source == 5:
        inside = (np.arange(target) + 0.5) * source / target - 0.5
        line = matrix @ np.arange(source)
        kept = (inside >= 1) & (inside <= source - 2)
        np.testing.assert_allclose(line[kept], inside[kept], atol=1e-5)


def test_preprocessor_config(tmp_path):
    path = tmp_path / "preprocessor_config.json"
    assert ImageConfig.read(path) == ImageConfig() == ImageConfig.read(None)
    path.write_text(json.dumps({"image_mean": [0.5, 0.5, 0.5], "image_std": [1, 2, 3]}))
    assert ImageConfig.read(path) == ImageConfig((0.5, 0.5, 0.5), (1.0, 2.0, 3.0))
    path.write_text(json.dumps({"do_normalize": False, "rescale_factor": 0.00392156862745098}))
    assert ImageConfig.read(path) == ImageConfig((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    scales = ({"do_rescale": False}, {"rescale_factor": 1 / 127.5}, {"rescale_factor": "x"})
    shapes = ({"image_mean": [1, 2]}, {"image_std": [1, 0, 1]}, {"image_std": "x"}, [])
    for wrong in (*scales, *shapes):
        path.write_text(json.dumps(wrong))
        with pytest.raises(ConfigError):
            ImageConfig.read(path)


IMAGE = np.zeros((30, 30, 3), np.uint8)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda e: e.run(np.zeros((1, 3, 28, 28), int)), DTypeError, "floats"),
        (lambda e: e.run(np.zeros((3, 28, 28), np.float32)), ShapeError, "multiples of 7"),
        (lambda e: e.run(np.zeros((1, 3, 27, 28), np.float32)), ShapeError, "multiples of 7"),
        (lambda e: e.run(np.zeros((1, 1, 28, 28), np.float32)), ShapeError, "batch, 3"),
        (lambda e: e.features([]), ArgumentError, "images: got none"),
        (lambda e: e.features([IMAGE / 255]), DTypeError, r"images\[0\]: got an array of float64"),
        (lambda e: e.features([IMAGE, IMAGE[..., 0]]), ShapeError, r"images\[1\]"),
        (lambda e: e.features([IMAGE], size=30), ArgumentError, "size: got 30"),
        (lambda e: e.features([IMAGE], size=True), ArgumentError, "size: got True"),
        (lambda e: e.features([IMAGE], batch_size=0), ArgumentError, "batch_size"),
        (lambda e: e.features(None), DTypeError, "images: got NoneType"),
        (lambda e: e.features([[[1, 2], [3]]]), ShapeError, r"images\[0\]: got .*height, width"),
        (lambda e: e.generate([[1]]), UnsupportedError, "kind .image encoder"),
    ],
)
def test_bad_images(call, error, match):
    with pytest.raises(error, match=match):
        call(engine_of(VIT))


def test_a_language_model_has_no_features():
    with pytest.raises(UnsupportedError, match=r"kind .decoder"):
        engine_of(GPT2).features([IMAGE])


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({**VIT, "image_size": [28, 28, 28]}, "image_size"),
        ({**VIT, "image_size": 6}, "image_size"),
        ({**VIT, "num_attention_heads": 5}, "hidden_size"),
        ({**VIT, "mlp_ratio": 3}, "mlp_ratio"),
        ({**DINOV2, "num_register_tokens": 4}, "num_register_tokens"),
        ({**DINOV2, "hidden_act": "quick_gelu"}, "hidden_act"),
    ],
)
def test_configs_are_refused_by_field(config, match):
    with pytest.raises(ConfigError, match=match):
        models.random_weights(config)


def test_positions_of_another_size_are_refused():
    weights = models.random_weights(VIT, SEED)
    with pytest.raises(WeightError, match="position_embeddings"):
        models.build({**VIT, "image_size": 35}, weights)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["vit", "dinov2", "dinov2-gated"])
def test_on_the_gpu(name, dtype, golden):
    config, pixels = IMAGES[name], pixels_for(IMAGES[name], (42, 21))
    low = Rounded(models.random_weights(config, SEED), low=dtype, config=config).run(pixels)
    got = engine_of(config, backend="cuda", dtype=dtype).run(pixels)
    assert_close(got, golden[f"{name}/42x21"], low.astype(as_dtype(dtype)))


@pytest.mark.gpu
@pytest.mark.checkpoint
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_dinov2_small_on_the_gpu(dtype, golden):
    config, weights = dinov2_small()
    pixels = photographs(golden)
    low = Rounded(weights, low=dtype, config=config).run(pixels)[:, ::16]
    engine = TransformerEngine(weights, config=config, backend="cuda", dtype=dtype)
    got = engine.run(pixels)[:, ::16]
    assert_close(got, golden["dinov2-small"], low.astype(as_dtype(dtype)))
