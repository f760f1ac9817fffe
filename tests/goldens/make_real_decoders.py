"""Makes real_decoders.npz: real checkpoints by Hugging Face transformers, fp32, CPU.

The weights are those that this package reads, quantised ones as the floats they stand for; the
model is all transformers'. Needs torch and transformers::

    PYTHONPATH=. python tests/goldens/make_real_decoders.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import transformers

from stof_cupy.models import zoo
from stof_cupy.models.checkpoint import read_checkpoint
from stof_cupy.models.packaged import fetch
from stof_cupy.models.tokenizer import Tokenizer

HERE = Path(__file__).parent
NEW, COLUMNS, ROWS = 16, 97, 16
PROMPTS = (
    "The capital of France is",
    "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n",
    "To be, or not to be: that is the question:\nWhether 'tis nobler in the mind to suffer",
)
GENERA = [[2, 5, 9, 100, 77], [2, 4000, 31, 8, 8, 12, 555, 1234, 9000], [2, 17]]
CLASSES = {
    "gpt2": (transformers.GPT2Config, transformers.GPT2LMHeadModel),
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "gemma3_text": (transformers.Gemma3TextConfig, transformers.Gemma3ForCausalLM),
}


def load(path: Path) -> torch.nn.Module:
    checkpoint = read_checkpoint(path)
    config = {k: v for k, v in checkpoint.config.items() if k != "torch_dtype"}
    config_class, model_class = CLASSES[config.pop("model_type")]
    model = model_class(config_class(**config, attn_implementation="eager"))
    state = {name: torch.from_numpy(np.array(a)) for name, a in checkpoint.tensors.items()}
    missing, extra = model.load_state_dict(state, strict=False)
    assert not extra and set(missing) <= {"lm_head.weight"}, (missing, extra)
    model.tie_weights()
    return model.float().eval()


@torch.no_grad()
def record(golden: dict, name: str, model: torch.nn.Module, prompts: list[list[int]]) -> None:
    for i, ids in enumerate(prompts):
        out = model(torch.tensor([ids]), output_hidden_states=True)
        row = torch.tensor([ids])
        for _ in range(NEW):
            logits = model(row).logits[:, -1]
            row = torch.cat([row, logits.argmax(-1, keepdim=True)], 1)
        golden[f"{name}/{i}/ids"] = np.array(ids, np.int32)
        golden[f"{name}/{i}/hidden"] = out.hidden_states[-1][0, -ROWS:].numpy()
        golden[f"{name}/{i}/logits"] = out.logits[0, -1, ::COLUMNS].numpy()
        golden[f"{name}/{i}/greedy"] = row[0, len(ids) :].numpy().astype(np.int32)
        print(name, i, golden[f"{name}/{i}/greedy"])


@torch.no_grad()
def long_prose(golden: dict, model: torch.nn.Module, tokenizer: Tokenizer) -> None:
    """4,096 tokens of Shakespeare: windows of 512 keep less than all of them."""
    text = (HERE.parent / "parity" / "texts.txt").read_text(encoding="utf-8")
    ids = tokenizer([text * 2], 10**6)[0][:4096]
    hidden = model.model(torch.tensor([ids])).last_hidden_state[0]
    golden["gemma3/long/ids"] = np.array(ids, np.int32)
    golden["gemma3/long/hidden"] = hidden[511::512].numpy()
    golden["gemma3/long/logits"] = model.lm_head(hidden[-1])[::COLUMNS].numpy()


def main() -> None:
    golden: dict = {}
    record(golden, "microformer", load(fetch(zoo.MICROFORMER)), GENERA)
    model, tokenizer = load(zoo.smollm2()), Tokenizer(zoo.smollm2(), 49152)
    record(golden, "smollm2", model, tokenizer(PROMPTS, 1000))
    model, tokenizer = load(zoo.gemma3()), Tokenizer(zoo.gemma3(), 262144)
    record(golden, "gemma3", model, tokenizer([PROMPTS[0], PROMPTS[2]], 1000))
    long_prose(golden, model, tokenizer)
    np.savez_compressed(HERE / "real_decoders.npz", **golden)


if __name__ == "__main__":
    main()
