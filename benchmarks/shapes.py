"""All shapes that are benchmarked, in one place; those of whole stacks are in engine_stacks.py."""

from __future__ import annotations

MINILM_BATCHES = {
    "cpu": ((1, 16), (8, 64), (4, 256)),
    "gpu": ((1, 16), (32, 64), (64, 256), (8, 512)),
}
"""(batch, seq) of token ids for all-MiniLM-L6-v2; "cpu" is sized for two cores."""

MASKS = (None, "sliding:w=32", "longformer:w=32,g=4")
"""Mask specs, one for all sequences of a batch."""

WINDOW, GLOBAL, BLOCK = 256, 64, 64
"""Reach, global tokens and block size of the anchors' masks."""

TOP = 10
"""The top-k mask keeps one block in so many of each row."""

MASK_SIZES = (8192, 32768, 131_072)
"""Sequence lengths at which the masks of the peers' anchors are built."""

MASK_NAMES = (
    *("causal", "sliding", "causal-sliding", "longformer", "bigbird", "document", "block10"),
    *("dilated", "strided", "image", "predicate"),
)
"""The anchors' masks, and others that are built in other ways."""

DEVICE_MASK_NAMES = (
    *MASK_NAMES[:7],
    *("formula", "formula-within", "dense", "topk"),
)
"""Masks that are built on the GPU: the anchors', then those that only a GPU has the arrays of."""

DENSE_MASK_MOST = 32_768
"""The longest sequence with a dense mask: 1 GiB of it."""

LONG_MASK = {"s": 1_000_000, "window": 512, "tokens": 64}
"""Window and global tokens at a million tokens."""

CPU_ATTENTION = ((1, 8, 4096, 64), (1, 8, 1024, 64))
"""(batch, heads, seq, head_dim) of attention on the host."""

CPU_ATTENTION_MASKS = ("sliding:w=256", "causal", "longformer:w=256,g=64", "bigbird", None)
"""Mask specs for these; the first is also timed with every score modification."""

PAPER_HEADS = 12
PAPER_DIM = 64
PAPER_LENGTHS = {"cpu": (128, 512), "gpu": (128, 256, 512, 1024, 2048, 4096)}
PAPER_BATCHES = {"cpu": (1,), "gpu": (1, 8, 16)}
"""The paper's attention (STOF, arXiv 2506.06095, Figs. 9 and 10): BERT-base's heads."""

PAPER_MASKS = ("causal", "sliding", "longformer", "bigbird")
"""Its masks, band and global tokens of Table 2; paper_masks.py has the artifact's, too."""

PAPER_STACKS = {"cpu": ((1, 128), (4, 256)), "gpu": ((1, 128), (8, 512), (16, 2048))}
"""(batch, seq) of its whole models, Figs. 11 and 12 and Table 4."""

PAPER_CHOICE = (1024, 4096)
"""Lengths at which a kernel is chosen and a mask lowered, Fig. 13."""

PAPER_HIDDEN = {"cpu": (256,), "gpu": (512, 768, 1024)}
"""Widths of layers that are fused, Fig. 3."""

SCALING_LENGTHS = {"cpu": (256, 512, 1024), "gpu": (1024, 2048, 4096, 8192, 16_384, 32_768)}
SCALING_DENSITIES = (0.02, 0.05, 0.1, 0.2, 0.4, 0.7)
SCALING_BATCHES = {"cpu": (1, 2, 4), "gpu": (1, 2, 4, 8, 16, 32, 64)}
"""What is varied, one at a time: (1, 12, S, 64), blocks of 64 kept, and the batch."""

SCALING_SEQ = {"cpu": 512, "gpu": 4096}
"""Length where density or batch is varied; a quarter of it for the batch."""

ATTENTION = ((1, 32, 8192, 128), (16, 12, 2048, 64), (8, 12, 512, 64))
"""(batch, heads, seq, head_dim) of the peers' anchors."""

HEAVY_ATTENTION = ((1, 16, 32_768, 128),)
"""One of them that takes minutes."""

SMALL_ATTENTION = ((1, 12, 128, 64), (1, 12, 256, 64), (1, 12, 512, 64))
"""Problems that do not fill a GPU."""

ATTENTION_MASKS = ("full", *MASK_NAMES[:7])
"""The anchors' masks of attention."""

SCORES_ATTENTION = ((16, 12, 2048, 64), (1, 32, 8192, 128))
SCORES_MASKS = ("full", "causal", "sliding")
"""Of scores that are modified."""

HOPPER_ATTENTION = ((1, 32, 8192, 128), (16, 12, 2048, 64))
"""Of Hopper's own kernel, beside `HEAVY_ATTENTION`."""

HOPPER_DIMS = tuple((1, 16, 8192, dim) for dim in (64, 128, 192, 256))
"""Full and causal in all head dims that its peers have."""

HOPPER_SMALL = ((8, 12, 512, 64), (1, 12, 128, 64))
"""What takes as long as it takes to begin."""

HOPPER_SCATTERED = (
    ((1, 16, 32_768, 128), "vertical-slash"),
    ((1, 16, 8192, 128), "elements0.01"),
    ((1, 12, 8192, 64), "elements0.01"),
)
"""Masks whose keys can be packed."""

ELEMENT_SIZES = (1024, 2048, 4096, 8192)
"""Sequence lengths, at (1, 12, seq, 64), for masks of random elements."""

ELEMENT_DENSITIES = (0.001, 0.005, 0.01, 0.02)
"""Shares of elements that such a mask keeps."""

DECODING = (
    *((1, 32, 8, queries, 32_768, 128) for queries in (1, 4, 16)),
    *((16, 32, 8, queries, 8192, 128) for queries in (1, 4)),
    *((1, 12, 12, 1, 8192, 64), (4, 32, 4, 1, 16_384, 128), (1, 16, 2, 16, 8192, 64)),
)
"""(batch, heads, kv_heads, queries, keys, head_dim) of decoding."""

GEMM_ROWS = (1, 16, 128, 512, 4096, 32_768)
"""Rows of A."""

GEMM_WEIGHTS = (
    *((2304, 768), (768, 768), (3072, 768), (768, 3072)),  # BERT-base
    *((3072, 1024), (1024, 4096)),  # BERT-large
    *((3072, 2048), (16_384, 2048), (2048, 8192)),  # a LLaMA of 1.2e9
    *((1728, 576), (576, 1536)),  # SmolLM2
)
"""(N, K) of B, which lies as a model has it: contiguous along K."""

GEMM_CUBES = (4096, 8192)
"""M = N = K."""

NORM_MOST = 2048
"""Columns of products whose rows are normalised."""

SEARCH = {
    "numpy": ((1, 128), (4, 128)),
    "model": ((1, 128), (8, 512)),
    "cuda": ((1, 128), (8, 512)),
}
SEARCH_HIDDEN = {"numpy": 256, "model": 768, "cuda": 768}
"""(batch, seq) and width of the layers whose fusion is searched for."""

RAGGED = {
    "numpy": (("minilm",), 2, 2),
    "cuda": (("minilm", "bert-base"), 64, 8),
}
"""Models that run batches of sequences of many lengths, sequences of a batch, and batches."""
