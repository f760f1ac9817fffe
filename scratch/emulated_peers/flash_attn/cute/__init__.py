from flash_attn_interface import of_sequences, windowed


def flash_attn_func(q, k, v, qv=None, gather_kv_indices=None, softmax_scale=None, causal=False, window_size=(None, None), learnable_sink=None,
                    softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False, score_mod=None, score_mod_bwd=None, mask_mod=None, return_lse=False):
    return windowed(q, k, v, causal, window_size, None), None


def flash_attn_varlen_func(q, k, v, qv=None, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None, min_seqlen_k=None, seqused_q=None, seqused_k=None,
                           gather_kv_indices=None, page_table=None, softmax_scale=None, causal=False, window_size=(None, None), learnable_sink=None, softcap=0.0, num_splits=1,
                           pack_gqa=None, deterministic=False, score_mod=None, score_mod_bwd=None, mask_mod=None, block_sparse_tensors=None, aux_tensors=None, aux_scalars=None,
                           return_lse=False, scheduler_metadata=None, seqlen_k_per_split=None, disable_scheduler_metadata=False, gather_bwd_recompute_p=False, gather_bwd_token_chunk=None):
    return of_sequences(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal), None
