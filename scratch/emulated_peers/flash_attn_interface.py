"""tokenspeed-fa3's functions (3.0.0.post20260810) by their signatures, computed by torch on the CPU; for emulated_gpu.py and emulated_bench.py."""
import torch


def windowed(q, k, v, causal, window, endless):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    n, m = q.shape[2], k.shape[2]
    if n * m > 2**20:
        return torch.zeros_like(q).transpose(1, 2)
    ahead = torch.arange(m)[None] - torch.arange(n)[:, None] - (m - n)
    keep = torch.ones(n, m, dtype=torch.bool)
    left, right = window
    if left != endless:
        keep &= -ahead <= left
    if right != endless:
        keep &= ahead <= right
    if causal:
        keep &= ahead <= 0
    out = torch.nn.functional.scaled_dot_product_attention(*(x.float() for x in (q, k, v)), attn_mask=keep)
    return out.transpose(1, 2).to(q.dtype)


def of_sequences(q, k, v, bounds_q, bounds_k, most_q, most_k, causal):
    """What both refuse: bounds that are no int32, rows that are not contiguous, a longest sequence that is not."""
    assert q.ndim == k.ndim == v.ndim == 3 and all(x.stride(-1) == 1 for x in (q, k, v))
    assert bounds_q.dtype == bounds_k.dtype == torch.int32 and bounds_q.is_contiguous() and bounds_k.is_contiguous()
    assert isinstance(most_q, int) and isinstance(most_k, int)
    lengths = bounds_q.diff()
    assert bounds_q[0] == 0 and bounds_q[-1] == len(q) and torch.equal(bounds_q, bounds_k) and lengths.min() > 0 and lengths.max() == most_q == most_k
    each = [windowed(*(x[None, a:b] for x in (q, k, v)), causal, (None, None), None)[0] for a, b in zip(bounds_q[:-1].tolist(), bounds_q[1:].tolist())]
    return torch.cat(each)


def flash_attn_func(q, k, v, softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None, v_descale=None, window_size=(-1, -1),
                    attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False, sm_margin=0, return_attn_probs=False, sinks=None):
    return windowed(q, k, v, causal, window_size, -1)


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q=None, seqused_k=None, softmax_scale=None, causal=False, qv=None, q_descale=None,
                           k_descale=None, v_descale=None, window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False, sm_margin=0,
                           return_attn_probs=False, sinks=None):
    return of_sequences(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal)
