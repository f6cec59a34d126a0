"""Names, shapes and sizes of the full models, on torch's meta device (no memory, no arithmetic)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sanawm.shapes import VAERatios
from sanawm.vae import DecoderState, EncoderState, VAEConfig, VAEDecoder, VAEEncoder
from sanawm.vae.sizes import decoder_state_values, encoder_state_values

TINY = Path(__file__).parents[2] / "configs" / "tiny" / "ltx2_causal_vae" / "config.json"
LTX23 = replace(
    VAEConfig.released(),
    block_out_channels=(256, 512, 1024, 1024),
    layers_per_block=(4, 6, 4, 2, 2),
    decoder_block_out_channels=(256, 512, 512, 1024),
    decoder_layers_per_block=(4, 6, 4, 2, 2),
    decoder_spatio_temporal_scaling=(True,) * 4,
    upsample_factor=(2, 2, 1, 2),
    upsample_residual=(False,) * 4,
    upsample_type=("spatiotemporal", "spatiotemporal", "temporal", "spatial"),
    decoder_spatial_padding_mode="zeros",
)
MIB = 1 << 20


def stored(golden: Path, table: str) -> dict[str, tuple[int, ...]]:
    rows = (golden / "keys" / table).read_text().splitlines()[1:]
    return {r.split("\t")[0]: tuple(int(n) for n in r.split("\t")[1].split("x")) for r in rows}


@pytest.mark.parametrize(
    ("config", "table", "count"),
    [
        (VAEConfig.released(), "vae_keys.tsv", 184),
        (LTX23, "vae_keys_ltx23.tsv", 170),
    ],
)
def test_names_and_shapes(golden: Path, config: VAEConfig, table: str, count: int) -> None:
    with torch.device("meta"):
        halves = VAEEncoder(config), VAEDecoder(config)
    built = {n: tuple(t.shape) for half in halves for n, t in half.state_dict().items()}
    assert built == stored(golden, table)
    assert len(built) == count


def test_release_ratios_and_convolutions() -> None:
    config = VAEConfig.released()
    with torch.device("meta"):
        encoder, decoder = VAEEncoder(config), VAEDecoder(config)
    assert config.ratios == LTX23.ratios == VAERatios(time=8, space=32)
    assert (len(encoder.conv_channels), len(decoder.conv_channels)) == (46, 45)


def test_release_decoder_state_size() -> None:
    """567.6 MiB in bf16 at 704x1280, whatever the length of the clip (spec/vae.md 5.5)."""
    with torch.device("meta"):
        vae = VAEDecoder(VAEConfig.released()).to(torch.bfloat16)
        latents = torch.zeros(1, 128, 3, 22, 40)
    state = DecoderState()
    assert vae.decode(latents, state).shape == (1, 3, 17, 704, 1280)
    assert state.nbytes / MIB == pytest.approx(567.6, abs=0.05)
    assert vae.decode(latents, state).shape == (1, 3, 24, 704, 1280)
    assert state.nbytes / MIB == pytest.approx(567.6, abs=0.05)
    assert decoder_state_values(vae, height=22, width=40) == state.nbytes // 2


def test_release_encoder_state_size() -> None:
    """0.88 GiB in bf16 at 704x1280 (spec/vae.md 6.2)."""
    with torch.device("meta"):
        vae = VAEEncoder(VAEConfig.released()).to(torch.bfloat16)
        frames = torch.zeros(1, 3, 9, 704, 1280)
    state = EncoderState()
    assert vae.encode(frames, state).shape == (1, 128, 2, 22, 40)
    assert state.nbytes / (1 << 30) == pytest.approx(0.88, abs=0.01)
    assert encoder_state_values(vae, height=704, width=1280) == state.nbytes // 2


@pytest.mark.parametrize("config", [VAEConfig.from_json(TINY), LTX23], ids=["tiny", "ltx23"])
def test_state_sizes_counted_and_held_are_the_same(config: VAEConfig) -> None:
    """Blocks whose width changes, and every kind of stride."""
    space, time = config.ratios.space, config.ratios.time
    with torch.device("meta"):
        encoder, decoder = VAEEncoder(config), VAEDecoder(config)
        frames = torch.zeros(1, 3, 2 * time + 1, 2 * space, 3 * space)
        latents = torch.zeros(1, config.latent_channels, 3, 2, 3)
    taken, given = EncoderState(), DecoderState()
    encoder.encode(frames, taken)
    decoder.decode(latents, given)
    counted = encoder_state_values(encoder, height=2 * space, width=3 * space)
    assert counted == taken.nbytes // 4
    assert decoder_state_values(decoder, height=2, width=3) == given.nbytes // 4
