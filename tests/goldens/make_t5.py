"""Makes t5.npz: the small T5s of cases.py and flan-t5-small by transformers, fp32, CPU.

Needs torch and transformers::

    PYTHONPATH=. python tests/goldens/make_t5.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from transformers import T5Config, T5ForConditionalGeneration

from stof_cupy import models
from stof_cupy.models import zoo
from tests.goldens.cases import BATCH, NEW, SEED, SEQ, SEQ2SEQ

HERE = Path(__file__).parent
TEXTS = (
    "Summarize: All the world's a stage, and all the men and women merely players.",
    "Read the settings from the file, check them, and start the first test run.",
)


def load(config: dict, weights: dict) -> T5ForConditionalGeneration:
    known = {k: v for k, v in config.items() if k != "model_type"}
    model = T5ForConditionalGeneration(T5Config(**known))
    state = {k: torch.from_numpy(np.array(v)) for k, v in weights.items()}
    for side in ("encoder", "decoder"):
        state[f"{side}.embed_tokens.weight"] = state["shared.weight"]
    head = state.get("lm_head.weight", state["shared.weight"])
    model.lm_head.weight = torch.nn.Parameter(head.clone())  # apart from the shared table
    missing, extra = model.load_state_dict(state | {"lm_head.weight": head}, strict=False)
    assert not missing and not extra, (missing, extra)
    return model.float().eval()


@torch.no_grad()
def record(golden: dict, name: str, model: T5ForConditionalGeneration, ids: torch.Tensor) -> None:
    hidden = model.encoder(ids).last_hidden_state
    row = torch.zeros((len(ids), 1), dtype=torch.long)
    for _ in range(NEW):
        logits = model(input_ids=ids, decoder_input_ids=row).logits
        row = torch.cat([row, logits[:, -1:].argmax(-1)], 1)
    golden[f"{name}/ids"] = ids.numpy().astype(np.int32)
    golden[f"{name}/hidden"] = hidden.numpy()
    golden[f"{name}/logits"] = logits[:, -1, :: max(1, logits.shape[-1] // 400)].numpy()
    golden[f"{name}/greedy"] = row[:, 1:].numpy().astype(np.int32)
    top = logits.topk(2).values
    print(name, row[:, 1:].tolist(), float((top[..., 0] - top[..., 1]).min()))


def main() -> None:
    golden: dict = {}
    for name, config in SEQ2SEQ.items():
        ids = np.random.default_rng(SEED).integers(2, config["vocab_size"], (BATCH, SEQ))
        model = load(config, models.random_weights(config, SEED))
        record(golden, name, model, torch.from_numpy(ids))
    from tokenizers import Tokenizer

    config, weights, tokenizer = zoo.flan_t5_small()
    model = load(config, weights)
    for i, text in enumerate(TEXTS):
        ids = torch.tensor([Tokenizer.from_file(str(tokenizer)).encode(text).ids])
        record(golden, f"flan/{i}", model, ids)
    np.savez_compressed(HERE / "t5.npz", **golden)


if __name__ == "__main__":
    main()
