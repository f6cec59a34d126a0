"""The random transformer of the benches: heads of `refiner_baseline.md`, the audio half tiny."""

from __future__ import annotations

from typing import Any

HEADS, HEAD, TEXT = 16, 64, 256
DIM = HEADS * HEAD


def random_transformer(*, layers: int, **more: Any) -> Any:
    """Return diffusers' transformer with random weights; `more` goes to its configuration."""
    from diffusers import SanaWMLTX2RefinerTransformer3DModel

    return SanaWMLTX2RefinerTransformer3DModel(
        num_layers=layers,
        num_attention_heads=HEADS,
        attention_head_dim=HEAD,
        cross_attention_dim=DIM,
        caption_channels=DIM,
        rope_type="split",
        audio_num_attention_heads=2,
        audio_attention_head_dim=8,
        audio_cross_attention_dim=16,
        **more,
    )
