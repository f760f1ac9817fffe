"""Image similarity: which pictures show the like of each other.

    python examples/image_similarity.py pictures/*.jpg

The model is DINOv2 ViT-S/14, fetched on the first run; needs the ``images`` extra to read files.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

from stof_cupy import TransformerEngine
from stof_cupy.models import zoo


def main() -> None:
    """Turn each picture into a vector, and print for each the one that is nearest."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("pictures", nargs="+", type=Path, metavar="PICTURE", help="two or more")
    options.add_argument("--backend", default="auto", help="auto, cuda or numpy (default: auto)")
    args = options.parse_args()
    if len(args.pictures) < 2:
        options.error("one picture has nothing to be like")

    config, weights = zoo.dinov2_small()
    engine = TransformerEngine(weights, config=config, backend=args.backend)
    images = [np.asarray(Image.open(path).convert("RGB")) for path in args.pictures]
    vectors = engine.features(images, progress=True)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = vectors @ vectors.T
    print(f"{len(images)} pictures, {engine.explain().splitlines()[0]}")
    np.fill_diagonal(cosines, -np.inf)
    for i, j in enumerate(cosines.argmax(axis=1)):
        print(f"{cosines[i, j]:6.3f}  {args.pictures[i].name} is most like {args.pictures[j].name}")


if __name__ == "__main__":
    main()
