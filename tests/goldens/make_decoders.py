"""Makes decoders.npz: the small decoders of cases.py by Hugging Face transformers, fp32, CPU.

Needs torch and transformers::

    PYTHONPATH=. python tests/goldens/make_decoders.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import transformers

from stof_cupy import models
from tests.goldens.cases import BATCH, DECODERS, NEW, SEED, SEQ

CLASSES = {
    "gpt2": (transformers.GPT2Config, transformers.GPT2LMHeadModel, "transformer."),
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM, "model."),
    "gemma3_text": (transformers.Gemma3TextConfig, transformers.Gemma3ForCausalLM, "model."),
}


def load(config: dict) -> torch.nn.Module:
    """Return the model of transformers with the weights that the tests draw too."""
    config_class, model_class, prefix = CLASSES[config["model_type"]]
    known = {k: v for k, v in config.items() if k != "model_type"}
    model = model_class(config_class(**known, attn_implementation="eager"))
    weights = models.random_weights(config, SEED)
    state = {
        name if name.startswith("lm_head") else prefix + name: torch.from_numpy(array)
        for name, array in weights.items()
    }
    missing, extra = model.load_state_dict(state, strict=False)
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    assert not extra and set(missing) <= tied, (missing, extra)
    model.tie_weights()
    return model.float().eval()


@torch.no_grad()
def main() -> None:
    golden = {}
    for name, config in DECODERS.items():
        model = load(config)
        ids = np.random.default_rng(SEED).integers(1, config["vocab_size"], (BATCH, SEQ))
        out = model(torch.from_numpy(ids), output_hidden_states=True)
        golden[f"{name}/hidden"] = out.hidden_states[-1].numpy()
        golden[f"{name}/logits"] = out.logits[:, -3:].numpy()
        row = torch.from_numpy(ids)
        for _ in range(NEW):
            logits = model(row).logits[:, -1]
            row = torch.cat([row, logits.argmax(-1, keepdim=True)], 1)
        golden[f"{name}/greedy"] = row[:, SEQ:].numpy().astype(np.int32)
        top = logits.topk(2).values
        print(name, golden[f"{name}/greedy"][0], float((top[:, 0] - top[:, 1]).min()))
    np.savez_compressed(Path(__file__).parent / "decoders.npz", **golden)


if __name__ == "__main__":
    main()
