"""The sections of stage 1's release YAML that the trained and the random tiny model share."""

from __future__ import annotations

from typing import Any

LATENT_CHANNELS = 16
CAPTION_WIDTH = 48


def stage1_release(
    *, hidden_size: int, depth: int, softmax_every_n: int, flow_shift: float
) -> dict[str, Any]:
    """Return a tiny stage 1 in the released form. The instruction is this model's own."""
    return {
        "model": {
            "model": "SanaMSVideoCamCtrlStreaming_tiny",
            "hidden_size": hidden_size,
            "depth": depth,
            "num_heads": 4,
            "linear_head_dim": 32,
            "in_channels": LATENT_CHANNELS,
            "caption_channels": CAPTION_WIDTH,
            "patch_size": [1, 1, 1],
            "softmax_every_n": softmax_every_n,
            "mlp_ratio": 3,
            "t_kernel_size": 3,
            "conv_kernel_size": 4,
            "k_conv_only": True,
            "qk_norm": True,
            "cross_norm": True,
            "ffn_type": "CachedGLUMBConvTemp",
            "pos_embed_type": "casual_wan_rope",
            "chunk_size": 3,
            "chunk_split_strategy": "first_chunk_plus_one",
            "cam_attn_compress": 1,
            "use_chunk_plucker_post_attn": True,
            "chunk_plucker_channels": 24,
            "chunk_plucker_post_attn_blocks": depth,
        },
        "vae": {"vae_latent_dim": LATENT_CHANNELS, "vae_stride": [4, 8, 8]},
        "text_encoder": {
            "y_norm": True,
            "y_norm_scale_factor": 0.01,
            "model_max_length": 48,
            "chi_prompt": ["Describe the scene in one sentence.", "Scene: "],
        },
        "scheduler": {
            "predict_flow_v": True,
            "noise_schedule": "linear_flow",
            "inference_flow_shift": flow_shift,
            "vis_sampler": "self_forcing_flow_euler",
        },
    }
