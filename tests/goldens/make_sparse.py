"""Makes sparse.npz: the small Longformers and BigBirds of cases.py by transformers, fp32, CPU.

Needs torch and transformers::

    PYTHONPATH=. python tests/goldens/make_sparse.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import transformers

from stof_cupy import models
from tests.goldens.cases import KEPT_ROWS, RUNS, SEED, SPARSE

CLASSES = {
    "longformer": (transformers.LongformerConfig, transformers.LongformerModel),
    "big_bird": (transformers.BigBirdConfig, transformers.BigBirdModel),
}


def load(config: dict) -> torch.nn.Module:
    """Return the model with our random weights; BigBird changes itself in a short run, so anew."""
    known = {k: v for k, v in config.items() if k != "model_type"}
    config_class, model_class = CLASSES[config["model_type"]]
    model = model_class(config_class(**known), add_pooling_layer=False)
    weights = models.random_weights(config, SEED)
    state = {name: torch.from_numpy(array) for name, array in weights.items()}
    missing, extra = model.load_state_dict(state, strict=False)
    assert not missing and not extra, (missing, extra)
    return model.float().eval()


@torch.no_grad()
def main() -> None:
    golden = {}
    for name, config in SPARSE.items():
        for run, how in RUNS.items():
            seq, lengths = how["seq"], np.array(how["lengths"])
            ids = np.random.default_rng(SEED).integers(2, config["vocab_size"], (2, seq))
            kept = np.arange(seq) < lengths[:, None]
            ids[~kept] = config["pad_token_id"]
            extra = {}
            if config["model_type"] == "longformer" and how["global_tokens"] is not None:
                flags = np.zeros((2, seq), int)
                flags[:, how["global_tokens"]] = 1
                extra["global_attention_mask"] = torch.from_numpy(flags)
            mask = torch.from_numpy(kept.astype(int))
            out = load(config)(torch.from_numpy(ids), attention_mask=mask, **extra)
            hidden = out.last_hidden_state.numpy() * kept[..., None]
            golden[f"{name}/{run}"] = hidden[:, ::KEPT_ROWS]
            print(name, run, np.abs(hidden).mean())
    np.savez_compressed(Path(__file__).parent / "sparse.npz", **golden)


if __name__ == "__main__":
    main()
