"""How much memory a run will take, from sizes alone.

An estimate for choosing a size and a card before waiting, not a promise: attention and convolution
kernels use workspaces of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .downloads import download_bytes
from .measure import capacity_bytes, resident_bytes
from .notes import Notes
from .plan import Plan
from .refiner.model import RefinerModel

#: Predicted and measured peak may differ by this share before a warning says so.
TOLERANCE = 0.25
#: What each part is, for people.
WORDS = {
    "refiner_weights": "the refiner's weights",
    "refiner_packed": "the same weights once more, in the layout of the CPU's matrix products",
    "refiner_cache": "keys and values of the sink, the history and the block in work",
    "refiner_work": "the widest layer's activations",
    "text_keys_values": "keys and values of the prompt, made once for all blocks",
    "text_encoder": "the largest text encoder; freed before the rest is loaded",
    "decoder_weights": "the VAE decoder's weights",
    "decoder_state": "what the decoder carries from chunk to chunk",
    "decoder_work": "the decoder's widest activations",
    "encoder_weights": "the VAE encoder's weights",
    "encoder_state": "what the encoder carries from chunk to chunk",
    "encoder_work": "the encoder's widest activations",
    "stage1_weights": "stage 1's weights",
    "stage1_work": "stage 1's activations",
    "base": "what this process holds before",
    "peak": "the most that is held at one time",
}
#: Peaks below this are mostly the libraries themselves; a difference there says nothing.
FLOOR = 2 << 30


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes by part, of a run in `dtype` on `device`.

    `peak` is what the process or the card will hold at most; with `taking_turns` (`--offload all`
    on a card) the models are there one at a time, their states all the time.
    """

    parts: dict[str, int]
    base: int
    device: torch.device
    dtype: torch.dtype
    taking_turns: bool = False

    @property
    def peak(self) -> int:
        """Parts that are resident together, plus what the process holds already."""
        parts = {k: v for k, v in self.parts.items() if k != "text_encoder"}
        rest = sum(parts.values())
        if self.taking_turns:
            models = {name.split("_")[0] for name in parts if name.endswith("_weights")}
            guests = [
                sum(parts.get(f"{model}_{part}", 0) for part in ("weights", "work"))
                for model in models
            ]
            rest = rest - sum(guests) + max(guests, default=0)
        return self.base + max(self.parts.get("text_encoder", 0), rest)

    @property
    def where(self) -> str:
        """What the estimate is for: `float32 on cpu`."""
        return f"{str(self.dtype).removeprefix('torch.')} on {self.device}"

    def check_capacity(self, *, notes: Notes) -> None:
        """Warn when the card, or the machine, has less memory than the run is thought to take."""
        there = capacity_bytes(self.device)
        if not there or self.peak <= there:
            return
        card = self.device.type == "cuda"
        notes.warn(
            f"about {self.peak / 1e9:.1f} GB of memory are needed ({self.where}), "
            f"{'the card' if card else 'this machine'} has {there / 1e9:.1f} GB; "
            f"{self.ways_to_less}"
        )

    @property
    def ways_to_less(self) -> str:
        """What to change for a run that takes less."""
        card = self.device.type == "cuda"
        ways = "a smaller size or --refiner-kv-max-frames" + (", --offload all" if card else "")
        if self.dtype.itemsize > 2:
            ways = f"--precision bf16, {ways}"
        return f"{ways} needs less"

    def rows(self) -> dict[str, int]:
        """Return the parts and the peak for a report."""
        return {**self.parts, "base": self.base, "peak": self.peak}

    def compare(self, measured: int, *, notes: Notes) -> None:
        """Warn when the peak that was measured, bytes, is far from the estimate."""
        off = abs(measured - self.peak) / max(measured, 1)
        if off > TOLERANCE and max(measured, self.peak) > FLOOR:
            notes.warn(
                f"memory peak was {measured / 1e9:.2f} GB, the plan said {self.peak / 1e9:.2f} GB"
            )


def estimate_memory(plan: Plan, *, device: torch.device, dtype: torch.dtype) -> MemoryEstimate:
    """Return the memory estimate of a run in `dtype` on `device`."""
    size = dtype.itemsize
    parts = {
        "refiner_weights": _refiner_parameters(plan) * size,
        "refiner_cache": _cache_values(plan) * size,
        "refiner_work": _work_values(plan) * size,
        "text_keys_values": _text_values(plan) * size,
    }
    if device.type == "cpu" and not plan.single_shot:
        parts["refiner_packed"] = parts["refiner_weights"]  # the same weights, laid out anew
    encoder = plan.components.get("text_encoder")
    if encoder is not None:
        files = [] if encoder.path is None else list(encoder.path.glob("*.safetensors"))
        stored = sum(f.stat().st_size for f in files) or download_bytes(encoder)
        parts["text_encoder"] = stored * size // 2  # stored in bfloat16
    vae = plan.components.get("vae")
    if vae is not None and plan.outputs.video is not None and plan.vae is not None:
        parts |= _stage_bytes("decoder", *_decoder_values(plan), size=size)
    if "encoder" in plan.source.needs:
        parts |= _stage_bytes("encoder", *_encoder_values(plan), size=size)
    if plan.has_stage1:
        weights, work = _stage1_values(plan)
        parts |= {"stage1_weights": weights * size, "stage1_work": work * size}
    base = 0 if device.type == "cuda" else resident_bytes()
    turns = device.type == "cuda" and plan.settings.settings.runtime.offload == "all"
    return MemoryEstimate(parts, base, device, dtype, turns)


def _stage_bytes(name: str, weights: int, state: int, work: int, *, size: int) -> dict[str, int]:
    """Return the parts of a VAE half from its numbers of values."""
    return {
        f"{name}_weights": weights * size,
        f"{name}_state": state * size,
        f"{name}_work": work * size,
    }


def _refiner_parameters(plan: Plan) -> int:
    with torch.device("meta"):
        model = RefinerModel(plan.refiner)
    return sum(p.numel() for p in model.parameters())


def _cache_values(plan: Plan) -> int:
    """Keys and values of `[sink | history | active]` for every layer, and the raw sink keys."""
    n, window, config = plan.shape.tokens_per_frame, plan.window, plan.refiner
    frames = 2 * (window.kv_max + window.block) + window.sink
    return plan.shape.batch * frames * n * config.width * config.num_layers


def _work_values(plan: Plan) -> int:
    """Return values alive at the widest moment: the feed-forward, and float32 copies."""
    frames = plan.shape.frames if plan.single_shot else plan.window.block
    tokens = plan.shape.batch * frames * plan.shape.tokens_per_frame
    return tokens * plan.refiner.width * (2 * 4 + 10)


def _text_values(plan: Plan) -> int:
    length = plan.settings.settings.text.max_length
    return 2 * length * plan.refiner.width * plan.refiner.num_layers


def _decoder_values(plan: Plan) -> tuple[int, int, int]:
    """Return values in the decoder's weights, its carried state, and its widest activations."""
    from .vae import VAEDecoder
    from .vae.sizes import decoder_state_values

    assert plan.vae is not None
    with torch.device("meta"):
        decoder = VAEDecoder(plan.vae)
    _, _, _, height, width = plan.shape
    state = decoder_state_values(decoder, height=height, width=width)
    weights = sum(p.numel() for p in decoder.parameters())
    pixels = plan.window.block * plan.ratios.time * plan.pixels.height * plan.pixels.width
    widest = plan.vae.decoder_block_out_channels[0] * pixels // plan.vae.patch_size**2
    return weights, state, 4 * widest


def _encoder_values(plan: Plan) -> tuple[int, int, int]:
    """Return values in the encoder's weights, its carried state, and its widest activations."""
    from .vae import VAEEncoder
    from .vae.sizes import encoder_state_values

    assert plan.vae is not None
    with torch.device("meta"):
        encoder = VAEEncoder(plan.vae)
    height, width = plan.pixels.height, plan.pixels.width
    state = encoder_state_values(encoder, height=height, width=width)
    weights = sum(p.numel() for p in encoder.parameters())
    pixels = plan.window.block * plan.ratios.time * height * width
    widest = plan.vae.block_out_channels[0] * pixels // plan.vae.patch_size**2
    return weights, state, 4 * widest


def _stage1_values(plan: Plan) -> tuple[int, int]:
    """Return values in stage 1's weights, and those alive in the widest moment of a chunk.

    That is the feed-forward, beside float32 copies and the Plücker residuals of all blocks.
    """
    from .components import stage1_config
    from .stage1.model import Stage1Model

    config = stage1_config(plan.settings, download=False, notes=Notes())
    with torch.device("meta"):
        weights = sum(p.numel() for p in Stage1Model(config).parameters())
    tokens = (config.chunk_size or plan.shape.frames) * plan.shape.tokens_per_frame
    residuals = config.plucker_blocks if config.streaming else 0
    return weights, tokens * config.width * (residuals + 2 * 2 * config.mlp_ratio + 10)
