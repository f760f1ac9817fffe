"""BlockSparseAttentionWrapper by its signature, computed by torch; for emulated_bench.py."""
import torch


class BlockSparseAttentionWrapper:
    def __init__(self, float_workspace_buffer, backend="auto"):
        assert float_workspace_buffer.dtype == torch.uint8

    def plan(self, indptr, indices, M, N, R, C, num_qo_heads, num_kv_heads, head_dim, mask=None, packed_mask=None, causal=False, pos_encoding_mode="NONE",
             use_fp16_qk_reduction=False, logits_soft_cap=None, sm_scale=None, rope_scale=None, rope_theta=None, q_data_type="float16", kv_data_type=None,
             o_data_type="float16", non_blocking=True):
        assert indptr.dtype == indices.dtype == torch.int32 and indices.max().item() * C <= N
        assert mask is None or (mask.dtype == torch.bool and tuple(mask.shape) == (len(indices), R, C))
        keep = torch.zeros(M // R, N // C, R, C, dtype=torch.bool)
        rows = torch.repeat_interleave(torch.arange(M // R), indptr.diff())
        keep[rows, indices.long()] = True if mask is None else mask
        self.keep = keep.transpose(1, 2).reshape(M, N)

    def run(self, q, k, v):
        q, k, v = (x.transpose(0, 1).float() for x in (q, k, v))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=self.keep)
        return out.transpose(0, 1).bfloat16()
