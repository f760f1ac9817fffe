"""Makes ``torch_zip.bin`` and ``torch_legacy.bin``: the same tensors in both formats of torch.save.

Needs torch::

    python tests/goldens/make_torch_files.py
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import torch

HERE = Path(__file__).parent


def main() -> None:
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    tensors = OrderedDict(
        whole=base,
        columns=base[:, 1:4],  # a view that shares the storage
        turned=base.T,
        half=torch.tensor([1.5, -2.0], dtype=torch.float16),
        brain=torch.tensor([[0.5], [3.0]], dtype=torch.bfloat16),
        whole_numbers=torch.tensor([2**40, -1]),
        nothing=torch.zeros(0, 3),
        scalar=torch.tensor(7.0),
    )
    tensors._metadata = OrderedDict({"": {"version": 1}})
    tensors["parameter"] = torch.nn.Parameter(torch.ones(2))
    torch.save(tensors, HERE / "torch_zip.bin")
    torch.save(tensors, HERE / "torch_legacy.bin", _use_new_zipfile_serialization=False)


if __name__ == "__main__":
    main()
