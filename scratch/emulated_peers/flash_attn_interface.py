"""tokenspeed-fa3's function by its signature, computed by torch on the CPU; for emulated_bench.py."""
import torch


def windowed(q, k, v, causal, window, endless):
    q, k, v = (x.transpose(1, 2).float() for x in (q, k, v))
    n, m = q.shape[2], k.shape[2]
    ahead = torch.arange(m)[None] - torch.arange(n)[:, None] - (m - n)
    keep = torch.ones(n, m, dtype=torch.bool)
    left, right = window
    if left != endless:
        keep &= -ahead <= left
    if right != endless:
        keep &= ahead <= right
    if causal:
        keep &= ahead <= 0
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=keep)
    return out.transpose(1, 2).bfloat16()


def flash_attn_func(q, k, v, softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None, v_descale=None, window_size=(-1, -1),
                    attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False, sm_margin=0, return_attn_probs=False, sinks=None):
    return windowed(q, k, v, causal, window_size, -1)
