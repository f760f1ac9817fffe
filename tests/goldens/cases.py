"""Small models with seeded random weights, one for each thing that a family can be."""

from __future__ import annotations

from typing import Any

SEED, BATCH, SEQ, NEW = 7, 2, 37, 9

GPT2 = {
    "model_type": "gpt2",
    "n_embd": 48,
    "n_layer": 3,
    "n_head": 4,
    "vocab_size": 83,
    "n_positions": 64,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
}
LLAMA = {
    "model_type": "llama",
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "vocab_size": 83,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500.0,
    "tie_word_embeddings": False,
}
GEMMA3 = {
    "model_type": "gemma3_text",
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "intermediate_size": 96,
    "vocab_size": 83,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 24,
    "sliding_window": 5,
    "sliding_window_pattern": 3,
}
LONG = {"original_max_position_embeddings": 16, "factor": 4.0}

DECODERS: dict[str, dict[str, Any]] = {
    "gpt2": GPT2,
    "gpt2-scaled": {
        **GPT2,
        "n_inner": 40,
        "scale_attn_by_inverse_layer_idx": True,
        "activation_function": "gelu",
        "tie_word_embeddings": False,
    },
    "llama": LLAMA,
    "llama-biases": {
        **LLAMA,
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": True,
        "num_key_value_heads": 6,
    },
    "llama-linear": {**LLAMA, "rope_scaling": {"rope_type": "linear", "factor": 3.0}},
    "llama-llama3": {
        **LLAMA,
        "rope_scaling": {
            "rope_type": "llama3",
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            **LONG,
        },
    },
    "llama-yarn": {**LLAMA, "rope_scaling": {"rope_type": "yarn", **LONG}},
    "llama-yarn-mscale": {
        **LLAMA,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 300.0,
            "mscale": 0.7,
            "mscale_all_dim": 1.3,
            "beta_fast": 8.0,
            "beta_slow": 2.0,
            **LONG,
        },
    },
    "gemma3": GEMMA3,
    "gemma3-capped": {
        **GEMMA3,
        "final_logit_softcapping": 4.0,
        "layer_types": ["full_attention", "sliding_attention"] * 2,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
}

T5 = {
    "model_type": "t5",
    "d_model": 48,
    "d_kv": 10,
    "d_ff": 64,
    "num_heads": 4,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "vocab_size": 83,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
    "feed_forward_proj": "relu",
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
    "eos_token_id": 1,
}

SEQ2SEQ: dict[str, dict[str, Any]] = {
    "t5": T5,
    "t5-gated": {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
}

VIT = {
    "model_type": "vit",
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-6,
    "image_size": 28,
    "patch_size": 7,
}
DINOV2 = {k: v for k, v in VIT.items() if k != "intermediate_size"}
DINOV2 |= {"model_type": "dinov2", "mlp_ratio": 2}

IMAGES: dict[str, dict[str, Any]] = {
    "vit": VIT,
    "vit-no-bias": {**VIT, "qkv_bias": False, "num_channels": 2, "hidden_act": "gelu_new"},
    "dinov2": DINOV2,
    "dinov2-gated": {**DINOV2, "use_swiglu_ffn": True},
}
SIZES = ((28, 28), (42, 21))
"""Height and width: what the positions were made for, and another size."""

LONGFORMER = {
    "model_type": "longformer",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-5,
    "vocab_size": 83,
    "type_vocab_size": 1,
    "max_position_embeddings": 4098,
    "pad_token_id": 1,
    "attention_window": [64, 128],
}
BIG_BIRD = {k: v for k, v in LONGFORMER.items() if k != "attention_window"}
BIG_BIRD |= {
    "model_type": "big_bird",
    "hidden_act": "gelu_new",
    "type_vocab_size": 2,
    "pad_token_id": 0,
    "block_size": 16,
    "num_random_blocks": 2,
}

SPARSE: dict[str, dict[str, Any]] = {
    "longformer": LONGFORMER,
    "big_bird": BIG_BIRD,
    "big_bird-bare": {
        **BIG_BIRD,
        "use_bias": False,
        "rescale_embeddings": True,
        "num_random_blocks": 3,
        "block_size": 64,
    },
    "big_bird-full": {**BIG_BIRD, "attention_type": "original_full"},
}

RUNS: dict[str, dict[str, Any]] = {
    "short": {"seq": 50, "lengths": [50, 31], "global_tokens": [0, 7]},
    "1k": {"seq": 1000, "lengths": [1000, 777], "global_tokens": [0, 500]},
    "4k": {"seq": 4096, "lengths": [4096, 9], "global_tokens": [0, 1, 2]},
    "no globals": {"seq": 300, "lengths": [300, 300], "global_tokens": None},
}
KEPT_ROWS = 37
"""Every so many rows of hidden states are kept."""
