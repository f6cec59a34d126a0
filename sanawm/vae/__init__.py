"""The LTX-2 causal video VAE: frames to latents and back, in chunks, with explicit state.

Names are imported when first used, so that reading settings (`VAEConfig`) imports no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from .config import VAEConfig

if TYPE_CHECKING:
    from .decoder import VAEDecoder
    from .encoder import Moments, VAEEncoder
    from .pixels import pixels_to_uint8, uint8_to_pixels
    from .state import DecoderState, EncoderState
    from .weights import load_decoder, load_encoder

__all__ = [
    "DecoderState",
    "EncoderState",
    "Moments",
    "VAEConfig",
    "VAEDecoder",
    "VAEEncoder",
    "load_decoder",
    "load_encoder",
    "pixels_to_uint8",
    "uint8_to_pixels",
]

_HOMES = {
    "DecoderState": "state",
    "EncoderState": "state",
    "Moments": "encoder",
    "VAEDecoder": "decoder",
    "VAEEncoder": "encoder",
    "load_decoder": "weights",
    "load_encoder": "weights",
    "pixels_to_uint8": "pixels",
    "uint8_to_pixels": "pixels",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
