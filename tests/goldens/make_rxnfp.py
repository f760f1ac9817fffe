"""Makes rxnfp.npz: a BERT that reads chemical reactions, by transformers, fp32, CPU.

Needs torch and transformers::

    PYTHONPATH=. python tests/goldens/make_rxnfp.py
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch
from transformers import BertForSequenceClassification

from stof_cupy.models import zoo
from stof_cupy.models.packaged import fetch

REACTIONS = (
    "CC(=O)O.OCC>>CC(=O)OCC",
    "Brc1ccccc1.OB(O)c1ccc(F)cc1>>Fc1ccc(-c2ccccc2)cc1",
    "C[C@H](N)C(=O)O.O=C(Cl)OCc1ccccc1.[Na+].[OH-]>>C[C@H](NC(=O)OCc1ccccc1)C(=O)O",
)
TOKEN = re.compile(r"\[[^\]]+\]|Br|Cl|>>|%\d\d|.")
"""What is one token: an atom in brackets, an element of two letters, an arrow, a large ring number;
or any character."""


@torch.no_grad()
def main() -> None:
    root = fetch(zoo.RXNFP)
    numbers = {token: i for i, token in enumerate((root / "vocab.txt").read_text().splitlines())}
    rows = [["[CLS]", *TOKEN.findall(reaction), "[SEP]"] for reaction in REACTIONS]
    model = BertForSequenceClassification.from_pretrained(root, attn_implementation="eager")
    bert, golden = model.bert.float().eval(), {}
    for i, row in enumerate(rows):
        ids = torch.tensor([[numbers[token] for token in row]])
        out = bert(ids)
        golden[f"{i}/ids"] = ids[0].numpy().astype(np.int32)
        golden[f"{i}/hidden"] = out.last_hidden_state[0, ::5].numpy()
        golden[f"{i}/pooled"] = out.pooler_output[0].numpy()
    np.savez_compressed(Path(__file__).parent / "rxnfp.npz", **golden)


if __name__ == "__main__":
    main()
