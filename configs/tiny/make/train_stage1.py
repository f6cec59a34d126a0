"""Train stage 1 in the released form: gated-delta and softmax blocks with a camera branch.

A training item is a clip's chunks in a row, as they stream: every chunk is denoised from one random
sigma, then its clean pass leaves the state that the next chunk reads, gradients and all. Short
streams (2 chunks) come first, then 4, at the end 8. The clean passes see slightly noisy truth and,
in the last part, what the model itself makes of the chunk in a few Euler steps.
"""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from sanawm.shapes import BlockSpan
from sanawm.stage1 import embed, softmax
from sanawm.stage1.branches import ChunkContext
from sanawm.stage1.config import Stage1Config
from sanawm.stage1.gdn import GDNAttention, ShortConv
from sanawm.stage1.model import Stage1Block, Stage1Model, Text
from sanawm.stage1.plan import ChunkWindow, plan_chunks
from sanawm.stage1.positions import TokenGrid
from sanawm.stage1.state import Stage1State

from .latents import GRID, LONG
from .optim import Average, Optimisers, average_gradients, rate_at, save_atomically
from .ranks import Rank
from .stage1_data import STAGE1_CONFIG, Batch, batch_at, load_sequences
from .train_vae import LATENT_CHANNELS

CHUNK_WINDOW = ChunkWindow(cached=2, sink=True)
#: Timesteps of the preset: 4 Euler steps, shifted by 2. With 8 the error is no smaller.
STEPS = (1000.0, 857.0, 667.0, 400.0, 0.0)
#: Timesteps with which the model makes its own history in training.
QUICK_STEPS = (1000.0, 769.0, 400.0, 0.0)
#: Clips for the refiner in which every chunk follows the truth.
TAUGHT = 48
MUON_RATE = 0.02
ADAM_RATE = 0.003
#: Frames in all chunks of a batch: as many items as fit.
BATCH = {2: 4, 4: 3, 8: 2}


def new_stage1() -> Stage1Model:
    """Return an untrained model, started so that attention and memory work from the first step."""
    torch.manual_seed(5)
    model = Stage1Model(Stage1Config.from_mapping(STAGE1_CONFIG, where="tiny"))
    with torch.no_grad():
        model.t_block[1].weight.zero_()
        model.t_block[1].bias.zero_()
        for block in _blocks(model):
            block.scale_shift_table[2::3] = 0.5  # gates
            block.cross_attn.proj.weight.zero_()
            block.mlp.t_conv.weight.zero_()
            block.attn.output_gate.bias.fill_(1.0)
            if isinstance(block.attn, GDNAttention):
                for conv in (block.attn.conv_k, block.attn.conv_k_cam):
                    conv.weight[..., -1] = 1  # the frame itself
                block.attn.dt_bias.copy_(torch.linspace(-4, -1, len(block.attn.dt_bias)))
            else:
                _look_along_rays(block.attn)
        # The velocity holds the noise that is in the input: begin with a way straight through.
        cells = LATENT_CHANNELS
        model.x_embedder.proj.weight[:cells] = torch.eye(cells).view(cells, cells, 1, 1, 1)
        model.final_layer.linear.weight *= 0.1
        model.final_layer.linear.weight[:, :cells] = 0.5 * torch.eye(cells)
    return model


def _look_along_rays(attn: softmax.SoftmaxAttention) -> None:
    """Let half the heads of the camera branch attend to near directions in the world.

    Their queries and keys begin as the ray's own axis, so a product is the cosine of two rays.
    """
    size = attn.q_proj_cam.out_features // attn.heads
    for head in range(attn.heads // 2):
        at = head * size
        for linear in (attn.q_proj_cam, attn.k_proj_cam):
            linear.bias[at + 2 : at + size // 2 : 4] = 2.0
        for norm in (attn.q_norm_cam, attn.k_norm_cam):
            norm.weight[at : at + size // 2] = 2.5


def _blocks(model: Stage1Model) -> list[Stage1Block]:
    return cast(list[Stage1Block], list(model.blocks))


def plain_attention(q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor | None = None) -> Tensor:
    """Return attention in plain steps: their backward is faster here than the fused one's."""
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if bias is not None:
        scores = scores + bias
    return scores.softmax(-1).to(v.dtype) @ v


def shifted_convolution(
    conv: ShortConv, x: Tensor, *, tail: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return what `ShortConv.forward` returns, as a sum of shifted products: quicker to train."""
    reach = conv.weight.shape[-1] - 1
    if tail is None:
        tail = x.new_zeros(x.shape[0], reach, *x.shape[2:])
    known = torch.cat([tail, x], dim=1)  # (B, reach + T, HW, D)
    frames = x.shape[1]
    rows = torch.nn.functional.pad(known, (0, 0, 0, 0, 0, reach))
    y = x * conv.weight[:, 0, reach]
    for j in range(1, reach + 1):
        w = conv.weight[:, 0, reach - j]
        before, after = rows[:, reach - j :][:, :frames], rows[:, reach + j :][:, :frames]
        y = y + w * (before + after)
    return y.to(x.dtype), known[:, known.shape[1] - reach :]


def use_quicker_forms() -> None:
    """Put the two quicker forms in the place of the model's own, for training only."""
    softmax.attention = embed.attention = plain_attention
    ShortConv.forward = shifted_convolution  # type: ignore[assignment]


def chunk_context(model: Stage1Model, batch: Batch, span: BlockSpan) -> ChunkContext:
    """Return the context of one chunk."""
    frames = slice(span.start, span.stop)
    with torch.autocast("cpu", enabled=False):  # the geometry of rays is float32
        return model.chunk_context(
            TokenGrid(span.frames, *GRID),
            start=span.start,
            raymap=batch.raymap[:, frames],
            plucker=batch.plucker[:, :, frames],
        )


def loss_of(model: Stage1Model, batch: Batch, generator: torch.Generator, *, own: float) -> Tensor:
    """Return the mean loss over the chunks; a share `own` of the histories is the model's."""
    text = model.embed_text(batch.caption, batch.mask)
    state = Stage1State(model.config, window=CHUNK_WINDOW)
    losses = []
    spans = plan_chunks(batch.latents.shape[2], 3)
    for span in spans:
        context = chunk_context(model, batch, span)
        truth = batch.latents[:, :, span.start : span.stop]
        losses.append(_denoising_loss(model, truth, span, text, context, state, generator))
        if span is spans[-1]:
            break
        history = _history(model, truth, span, text, context, state, generator, own=own)
        zero = torch.zeros(len(truth), span.frames)
        writes = model(history, zero, text, context, state=state, write=True).writes
        assert writes is not None
        state.commit(writes, frames=span.frames, camera=True)
    return torch.stack(losses).mean()


def _denoising_loss(
    model: Stage1Model,
    truth: Tensor,
    span: BlockSpan,
    text: Text,
    context: ChunkContext,
    state: Stage1State,
    generator: torch.Generator,
) -> Tensor:
    B = len(truth)
    logits = 1.1 * torch.randn(B, generator=generator) + 0.6
    t = (1000 * torch.sigmoid(logits)).floor().clamp(20, 1000)
    t = torch.where(torch.rand(B, generator=generator) < 0.15, 1000.0, t)
    s = (t / 1000).view(B, 1, 1, 1, 1)
    eps = torch.randn(truth.shape, generator=generator)
    x, times = (1 - s) * truth + s * eps, t[:, None].repeat(1, span.frames)
    held = 1 if span.start == 0 else 0
    if held:
        x = torch.cat((truth[:, :, :1], x[:, :, 1:]), dim=2)
        times[:, 0] = 0
    v = model(x, times, text, context, state=state).velocity.float()
    error = (v - (eps - truth))[:, :, held:].square() * s.clamp_min(0.3)
    return error.mean()


@torch.no_grad()
def _history(
    model: Stage1Model,
    truth: Tensor,
    span: BlockSpan,
    text: Text,
    context: ChunkContext,
    state: Stage1State,
    generator: torch.Generator,
    *,
    own: float,
) -> Tensor:
    """Return what the clean pass sees: truth with a little noise, or the model's own chunk."""
    B = len(truth)
    held = 1 if span.start == 0 else 0
    if torch.rand(1, generator=generator).item() < own:
        made = denoise(model, truth, span, text, context, state, generator, steps=QUICK_STEPS)
    else:
        size = 0.3 * torch.rand(B, 1, 1, 1, 1, generator=generator)
        size = size * (torch.rand(size.shape, generator=generator) < 0.6)
        made = truth + size * torch.randn(truth.shape, generator=generator)
    return torch.cat((truth[:, :, :held], made[:, :, held:]), dim=2)


def denoise(
    model: Stage1Model,
    truth: Tensor,
    span: BlockSpan,
    text: Text,
    context: ChunkContext,
    state: Stage1State,
    generator: torch.Generator,
    *,
    steps: tuple[float, ...],
) -> Tensor:
    """Return a chunk made in Euler steps, as the stream does; of `truth` only the image is used."""
    held = 1 if span.start == 0 else 0
    x = torch.randn(truth.shape, generator=generator)
    for now, after in pairwise(steps):
        x = torch.cat((truth[:, :, :held], x[:, :, held:]), dim=2)
        times = torch.full((len(x), span.frames), now)
        times[:, :held] = 0
        v = model(x, times, text, context, state=state).velocity.float()
        x = x - (now - after) / 1000 * v
    return torch.cat((truth[:, :, :held], x[:, :, held:]), dim=2)


@torch.no_grad()
def roll_out(model: Stage1Model, batch: Batch, *, seed: int, taught: bool = False) -> Tensor:
    """Return generated latents `(B, C, T, H, W)` from the image latents and cameras of `batch`.

    With `taught` every chunk follows the truth instead of what was generated before.
    """
    generator = torch.Generator().manual_seed(seed)
    text = model.embed_text(batch.caption, batch.mask)
    state, chunks = Stage1State(model.config, window=CHUNK_WINDOW), []
    for span in plan_chunks(batch.raymap.shape[1], 3):
        context = chunk_context(model, batch, span)
        first = batch.latents[:, :, :1].expand(-1, -1, span.frames, -1, -1)
        x = denoise(model, first, span, text, context, state, generator, steps=STEPS)
        zero = torch.zeros(len(x), span.frames)
        before = batch.latents[:, :, span.start : span.stop] if taught else x
        writes = model(before, zero, text, context, state=state, write=True).writes
        assert writes is not None
        state.commit(writes, frames=span.frames, camera=True)
        chunks.append(x)
    return torch.cat(chunks, dim=2)


def make_clips(work: Path, *, count: int, rank: Rank) -> None:
    """Write `made.pt`: stage 1's latents of the first training clips, for the refiner to learn on.

    In the first TAUGHT of them every chunk follows the truth, so that the truth is what the refiner
    should make of it; the others run freely, as they will. With few of them the refiner learns
    the clips by heart: with 144 it gained 2 dB on these and lost 0.4 dB on others.
    """
    path = work / "made.pt"
    parts: list[Tensor] = list(torch.load(path)["made"].split(8)) if path.is_file() else []
    if rank.number > 0 or 8 * len(parts) >= count:
        return
    model, data = load_stage1(work), load_sequences(work, "long")
    for at in range(8 * len(parts), count, 8):
        clips = data.part(torch.arange(at, at + 8))
        with torch.autocast("cpu", torch.bfloat16):
            made = roll_out(model, clips, seed=at, taught=at < TAUGHT)
        parts.append(made.half())
        save_atomically({"made": torch.cat(parts)}, path)
        rank.log(at, every=8)


def train_stage1(work: Path, *, steps: int, rank: Rank) -> None:
    """Train up to step `steps`, from the last checkpoint if there is one."""
    use_quicker_forms()
    short, long = (load_sequences(work, name) for name in ("short", "long"))
    model = new_stage1()
    optimisers = Optimisers.of(
        model.named_parameters(), matrix=_is_matrix, rate=MUON_RATE, adam_rate=ADAM_RATE
    )
    average, first, path = Average(model), 0, work / "stage1.pt"
    began = 0  # the step at which these optimisers started
    if path.is_file():
        state = torch.load(path)
        model.load_state_dict(state["model"])
        average.weights, average.count, first = state["average"], state["step"], state["step"]
        began = state.get("began", first)
        if "optimisers" in state:
            optimisers.load_state_dict(state["optimisers"])
    for step in range(first, steps):
        done = step / steps
        chunks = 2 if done < 0.4 else 8 if done > 0.7 and step % 6 == 0 else 4
        own = 0.0 if done < 0.5 else 0.5
        source = long if chunks == 8 or step % 2 else short
        batch = batch_at(
            source,
            step,
            count=BATCH[chunks] // rank.count,
            frames=min(1 + 3 * chunks, LONG),
            rank=rank.number,
        )
        generator = torch.Generator().manual_seed(9000 * step + rank.number)
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, batch, generator, own=own)
        loss.backward()
        average_gradients(model)
        optimisers.step(rate_at(step, steps, began=began, decay_from=0.5))
        average.update(model, 0.99)
        if not math.isfinite(loss.item()):
            raise SystemExit(f"stage 1: loss is {loss.item()} at step {step}")
        rank.log(step, loss=loss.item(), chunks=chunks, every=20)
        if rank.number == 0 and ((step + 1) % 20 == 0 or step + 1 == steps):
            save_atomically(
                {
                    "model": model.state_dict(),
                    "optimisers": optimisers.state_dict(),
                    "average": average.weights,
                    "step": step + 1,
                    "began": began,
                },
                path,
            )


def _is_matrix(name: str, p: Tensor) -> bool:
    small = ("table", "beta_proj", "gate_proj", "depth_conv", "conv_k")
    return name.startswith("blocks.") and p.ndim >= 2 and not any(s in name for s in small)


def load_stage1(work: Path) -> Stage1Model:
    """Return the averaged weights of the last checkpoint."""
    model = new_stage1()
    average = Average(model)
    average.weights = torch.load(work / "stage1.pt")["average"]
    average.copy_to(model)
    return model.eval()
