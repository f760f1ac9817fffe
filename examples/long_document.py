"""Long documents: one vector of many thousand tokens, read through Longformer's windows.

    python examples/long_document.py --tokens 16384

No Longformer comes in a wheel, so this is a conversion: all-MiniLM-L6-v2, which reads 512 tokens,
as a Longformer. Its positions are repeated and its projections serve global tokens too, as the
paper (arXiv 2004.05150, section 5) starts before it trains on. This one was not trained on, so its
vectors show how long documents are run, not how well they can be searched.
"""

from __future__ import annotations

import argparse
import textwrap
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from stof_cupy import TransformerEngine, masks
from stof_cupy.models import packaged, samples, zoo
from stof_cupy.models.checkpoint import read_checkpoint
from stof_cupy.models.tokenizer import Tokenizer

TABLE = "embeddings.position_embeddings.weight"


def as_longformer(
    config: Mapping[str, Any], weights: Mapping[str, Any], tokens: int, window: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return config and weights of a BERT as those of a Longformer for so many tokens."""
    made = dict(weights)
    for name in weights:
        for part in ("query", "key", "value"):
            if f".self.{part}." in name:
                made[name.replace(f".{part}.", f".{part}_global.")] = weights[name]
    # The first row is the padding's, as in RoBERTa; then BERT's table again and again.
    table = np.resize(weights[TABLE], (tokens, weights[TABLE].shape[1]))
    made[TABLE] = np.concatenate([table[:1], table])
    kept = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    kept += ("hidden_act", "layer_norm_eps", "vocab_size", "type_vocab_size")
    own = {"model_type": "longformer", "attention_window": 2 * window, "pad_token_id": 0}
    return {
        **{key: config[key] for key in kept},
        **own,
        "max_position_embeddings": tokens + 1,
    }, made


def main() -> None:
    """Read the beginning of Hamlet, and compare its vector with those of its parts."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--tokens", type=int, default=8192, help="of the play (default: 8192)")
    options.add_argument("--window", type=int, default=128, help="to each side (default: 128)")
    options.add_argument("--backend", default="auto", help="auto, cuda or numpy (default: auto)")
    args = options.parse_args()

    root = packaged.minilm()
    checkpoint = read_checkpoint(root)
    config, weights = as_longformer(
        checkpoint.config or {}, checkpoint.tensors, args.tokens, args.window
    )
    engine = TransformerEngine(weights, config=config, backend=args.backend)
    play = " ".join(text for _, text in samples.speeches(zoo.hamlet()))
    ids = Tokenizer(root / "tokenizer.json", config["vocab_size"])([play], len(play))[0]

    start = time.perf_counter()
    hidden = engine.run(np.array([ids[: args.tokens]]), global_tokens=[0])[0]
    seconds = time.perf_counter() - start
    seen = masks.longformer(len(hidden), window=args.window, global_tokens=1).nnz
    share = seen / len(hidden) ** 2
    print("MiniLM converted to a Longformer, without the training that should follow")
    print(f"{len(hidden)} tokens in {seconds:.2f} s, {engine.explain().splitlines()[0]}")
    print(f"{seen:,} pairs of tokens attend, {share:.1%} of all")

    short = TransformerEngine(root, backend=args.backend)
    parts = textwrap.wrap(play[: len(play) * len(hidden) // len(ids)], 600)
    own = hidden.astype(np.float32).mean(axis=0)
    cosines = short.encode(parts) @ (own / np.linalg.norm(own))
    print(f"cosine with MiniLM's own vectors of {len(parts)} parts: mean {cosines.mean():.3f}")


if __name__ == "__main__":
    main()
