"""Train the refiner: five layers, 128 wide, at the low sigmas that the preset declares.

A training item is the sink and five blocks in a row, each twice: clean, as history, and noisy. All
go through the model at once, and see each other by the true rules of the window: a noisy block
attends to the sink, moved right in front of its history, to at most ten clean frames before it and
to itself; a clean block likewise. Starts are mixes of noise and degraded latents, so what is
learned is the way from where the refiner really starts to the truth. In the second half of the
training most histories are the model's own output, as is the second step's input.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from sanawm.ops.fused import EAGER
from sanawm.ops.norm import rms_norm
from sanawm.ops.rope import RopeTable
from sanawm.refiner.config import RefinerConfig
from sanawm.refiner.model import RefinerBlock, RefinerModel, TextContext
from sanawm.refiner.positions import RopeBuilder
from sanawm.shapes import Window

from .captions import refiner_captions
from .data import clip_info
from .degrade import degrade
from .latents import GRID, load_latents
from .optim import Average, Optimisers, average_gradients, rate_at, save_atomically
from .ranks import Rank
from .scenes import FPS
from .train_vae import LATENT_CHANNELS

PRESET = Path(__file__).parent.parent
#: Keyword arguments of the transformer class; the audio half is as small as it can be.
REFINER_CONFIG: dict[str, Any] = {
    "in_channels": LATENT_CHANNELS,
    "out_channels": LATENT_CHANNELS,
    "num_attention_heads": 4,
    "attention_head_dim": 32,
    "cross_attention_dim": 128,
    "num_layers": 5,
    "caption_channels": 48,
    "vae_scale_factors": (4, 8, 8),
    "pos_embed_max_pos": 10,
    "base_height": 128,
    "base_width": 192,
    "rope_theta": 20.0,
    "rope_type": "split",
    "audio_in_channels": 4,
    "audio_out_channels": 4,
    "audio_num_attention_heads": 1,
    "audio_attention_head_dim": 8,
    "audio_cross_attention_dim": 8,
}
WINDOW = Window(sink=1, block=3, kv_max=11)
SIGMAS = (0.2, 0.1, 0.0)
BLOCKS = 5
MUON_RATE = 0.02
BATCH = 2


class Item(NamedTuple):
    """A batch: truth, degraded, history and noisy starts, each `(B, C, T, H, W)`, T blocks * 3."""

    sink: Tensor  # (B, C, 1, H, W)
    truth: Tensor
    start: Tensor
    text: Tensor  # (B, L, E)
    offset: int  # latent frame at which the window's positions begin


def new_refiner() -> RefinerModel:
    """Return an untrained refiner whose first output is zero."""
    torch.manual_seed(4)
    model = RefinerModel(RefinerConfig.from_dict(REFINER_CONFIG, where="tiny"))
    # The quick norm of the model has no gradient.
    ops = EAGER._replace(norm=lambda x, weight, eps: rms_norm(x, eps=eps, weight=weight))
    for part in model.modules():
        if hasattr(part, "ops") and part is not model:
            part.ops = ops
    with torch.no_grad():
        model.scale_shift_table.zero_()
        model.time_embed.linear.weight.zero_()
        model.time_embed.linear.bias.zero_()
        model.proj_out.weight.zero_()
        model.proj_out.bias.zero_()
        for block in _blocks(model):
            block.scale_shift_table.zero_()
            block.scale_shift_table[2::3] = 0.4  # gates
            block.attn2.to_out[0].weight.zero_()
            block.attn2.to_out[0].bias.zero_()
    return model


def _blocks(model: RefinerModel) -> list[RefinerBlock]:
    return cast(list[RefinerBlock], list(model.transformer_blocks))


class WindowPass:
    """One forward over sink, clean blocks and noisy blocks; see the text above."""

    def __init__(self, *, blocks: int, offset: int, config: RefinerConfig) -> None:
        height, width = GRID
        rope = RopeBuilder(config, height=height, width=width, fps=FPS)
        self.n = height * width
        self.blocks = blocks
        first = WINDOW.sink + offset
        self.starts = [first + WINDOW.block * i for i in range(blocks)]
        self.history = [min(WINDOW.block * i, WINDOW.history_max) for i in range(blocks)]
        frames = range(first, first + WINDOW.block * blocks)
        self.rope = rope.build(frames)
        self.sink_self = rope.build(range(WINDOW.sink))
        self.sink_at = [
            rope.build(range(s - h - WINDOW.sink, s - h))
            for s, h in zip(self.starts, self.history, strict=True)
        ]

    def __call__(
        self,
        model: RefinerModel,
        text: TextContext,
        *,
        sink: Tensor,
        clean: Tensor,
        noisy: Tensor,
        sigmas: Tensor,
    ) -> Tensor:
        """Return the velocity of `noisy` `(B, C, T, H, W)`; sigmas: `(B, T)` of its frames."""
        B, _, T, H, W = noisy.shape
        x = torch.cat((sink, clean, noisy), dim=2).flatten(3).permute(0, 2, 3, 1)  # (B, F, n, C)
        times = torch.cat((sigmas.new_zeros(B, 1 + T), sigmas), dim=1)  # (B, F)
        scaled = times * model.config.timestep_scale_multiplier
        rows, embedded = model.time_embed(scaled)  # (B, F, 6, D), (B, F, D)
        x = model.proj_in(x)
        for block in _blocks(model):
            x = self._block(block, x, text, rows)
        x = x[:, 1 + T :]
        table = model.scale_shift_table + embedded[:, 1 + T :].unsqueeze(-2)
        shift, scale = (t.unsqueeze(2) for t in table.unbind(-2))
        x = nn.functional.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale) + shift
        return model.proj_out(x).permute(0, 3, 1, 2).unflatten(3, (H, W))

    def _block(self, block: RefinerBlock, x: Tensor, text: TextContext, rows: Tensor) -> Tensor:
        table = (block.scale_shift_table + rows).unsqueeze(-2).unbind(2)  # (B, F, 1, D) each
        shift1, scale1, gate1, shift3, scale3, gate3 = table
        F, n = x.shape[1:3]
        u = (block.norm1(x) * (1 + scale1) + shift1).flatten(1, 2)
        x = x + self._attend(block, u).unflatten(1, (F, n)) * gate1
        u = block.norm2(x).flatten(1, 2)
        heads = attend(block.attn2.query(u), text.keys[block.layer], text.values[block.layer])
        x = x + block.attn2.output(heads, u).unflatten(1, (F, n))
        u = block.norm3(x) * (1 + scale3) + shift3
        return x + block.ff(u) * gate3

    def _attend(self, block: RefinerBlock, u: Tensor) -> Tensor:
        q = block.attn1.query(u)  # (B, N, S, K)
        k, v = block.attn1.key_value(u)
        n, size = self.n, self.n * WINDOW.block
        half = size * self.blocks  # tokens of all clean, or all noisy, blocks
        sink_k, sink_v = k[:, :, :n], v[:, :, :n]
        heads = [attend(turn(q[:, :, :n], self.sink_self), turn(sink_k, self.sink_self), sink_v)]
        q, k, v = q[:, :, n:], k[:, :, n:], v[:, :, n:]
        q, k = (torch.cat([turn(t, self.rope) for t in x.chunk(2, 2)], 2) for x in (q, k))
        for kind in (0, half):  # clean, noisy
            for i, history in enumerate(self.history):
                own = slice(kind + i * size, kind + (i + 1) * size)
                past = slice(i * size - history * n, i * size)  # of the clean blocks
                keys = torch.cat((turn(sink_k, self.sink_at[i]), k[:, :, past], k[:, :, own]), 2)
                values = torch.cat((sink_v, v[:, :, past], v[:, :, own]), 2)
                heads.append(attend(q[:, :, own], keys, values))
        return block.attn1.output(torch.cat(heads, dim=2), u)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return attention in plain steps: their backward is faster here than the fused one's."""
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    return scores.softmax(-1).to(v.dtype) @ v


def turn(x: Tensor, table: RopeTable) -> Tensor:
    """Return `x` `(B, N, S, K)` rotated (split pairs), as `apply_rope` does but out of place."""
    u, v = x.float().chunk(2, dim=-1)
    a, b = u * table.cos - v * table.sin, v * table.cos + u * table.sin
    return torch.cat((a, b), dim=-1).to(x.dtype)


class Clips(NamedTuple):
    """Whole clips, their worse latents `(B, C, 25, H, W)` and captions `(B, L, E)`."""

    truth: Tensor
    given: Tensor
    text: Tensor
    made: bool = False  # by stage 1, not degraded


class TrainingData:
    """The encoded clips and their captions; a step and a rank decide which come, and how worse."""

    def __init__(self, work: Path, *, rank: Rank) -> None:
        self.rank = rank
        self.latents = load_latents(work, "long")
        self.texts = training_texts(work, len(self.latents), rank=rank)
        made = work / "made.pt"
        self.made = torch.load(made)["made"] if made.is_file() else None

    def clips_at(self, step: int) -> Clips:
        """Return this rank's part of a batch of clips; three of four as stage 1 made them."""
        rng = np.random.default_rng((12, step, self.rank.number))
        generator = torch.Generator().manual_seed(1000 * step + self.rank.number)
        if self.made is not None and (step + 2 * self.rank.number) % 4:
            chosen = rng.integers(len(self.made), size=BATCH // self.rank.count)
            numbers = torch.from_numpy(chosen)
            given = self.made[numbers].float()
            return Clips(self.latents[numbers].float(), given, self.texts[numbers], made=True)
        numbers = torch.from_numpy(rng.integers(len(self.latents), size=BATCH // self.rank.count))
        clips = self.latents[numbers].float()
        return Clips(clips, degrade(clips, generator), self.texts[numbers])

    def batch_at(self, step: int) -> Item:
        """Return a window of every clip of the batch."""
        truth, given, text = self.clips_at(step)
        rng = np.random.default_rng((14, step, self.rank.number))
        at = WINDOW.sink + WINDOW.block * int(rng.integers(0, 8 - BLOCKS + 1))
        span = slice(at, at + WINDOW.block * BLOCKS)
        offset = int(rng.choice((0, 12)))
        return Item(truth[:, :, :1], truth[:, :, span], given[:, :, span], text, offset)


def loss_at(model: RefinerModel, item: Item, *, step: int, own: bool, rank: int) -> Tensor:
    """Return the loss of one batch; with `own` the history is what the model makes of it."""
    g = torch.Generator().manual_seed(7000 * step + rank)
    run = WindowPass(blocks=BLOCKS, offset=item.offset, config=model.config)
    text = model.prepare_text(item.text)
    z, first = item.truth, SIGMAS[0]
    B, _, T, _, _ = z.shape
    eps = torch.randn(z.shape, generator=g)
    noisy = (1 - first) * item.start + first * eps
    a = torch.rand(B, 1, 1, 1, 1, generator=g) * 0.5
    a = a * (torch.rand(a.shape, generator=g) < 0.7)
    b = torch.rand(B, 1, 1, 1, 1, generator=g) * 0.12
    history = z + a * (item.start - z) + b * torch.randn(z.shape, generator=g)
    guess = z
    if own:
        with torch.no_grad():
            sigmas = torch.full((B, T), first)
            for _ in range(1 + step % 2):  # the second time on a history of its own, as in a run
                v = run(model, text, sink=item.sink, clean=history, noisy=noisy, sigmas=sigmas)
                history = guess = noisy - first * v.float()
    # One block in two takes a later step: the noisy block moved towards the guess.
    late = torch.rand(B, 1, T // WINDOW.block, 1, 1, generator=g) < 0.45
    ratio = torch.where(late, SIGMAS[1] / first, 1.0).repeat_interleave(WINDOW.block, dim=2)
    x = ratio * noisy + (1 - ratio) * guess
    sigmas = (first * ratio).view(B, T)
    v = run(model, text, sink=item.sink, clean=history, noisy=x, sigmas=sigmas)
    target = (x - z) / (first * ratio)
    return ((v.float() - target).square() * (first * ratio)).mean()


def train_refiner(work: Path, *, steps: int, rank: Rank) -> None:
    """Train up to step `steps`, from the last checkpoint if there is one."""
    data = TrainingData(work, rank=rank)

    def loss_of(model: RefinerModel, step: int) -> Tensor:
        item = data.batch_at(step)
        own = step > 0.4 * steps and step % 10 < 7
        return loss_at(model, item, step=step, own=own, rank=rank.number)

    schedule = Schedule(steps, MUON_RATE, decay_from=0.5, keep=0.99)
    _train(new_refiner(), work / "refiner.pt", loss_of, schedule, rank=rank)


def tune_refiner(work: Path, *, steps: int, rank: Rank) -> None:
    """Train on for `steps` steps on whole roll-outs of its own, errors weighed as they are seen."""
    from .tune import channel_weights, show, tuning_loss

    data = TrainingData(work, rank=rank)
    model, pixels = new_refiner(), show(work)
    weights = channel_weights(pixels, data.latents)
    _average_of(model, work / "refiner.pt").copy_to(model)

    def loss_of(model: RefinerModel, step: int) -> Tensor:
        batch = data.clips_at(step + 100_000)
        return tuning_loss(model, batch, weights, pixels, seed=11_000 * step + rank.number)

    schedule = Schedule(steps, MUON_RATE / 2, decay_from=0.3, keep=0.98)
    _train(model, work / "tuned.pt", loss_of, schedule, rank=rank)


class Schedule(NamedTuple):
    """Length, highest rate, where it begins to fall, and how much the average keeps."""

    steps: int
    rate: float
    decay_from: float
    keep: float


def _train(
    model: RefinerModel,
    path: Path,
    loss_of: Callable[[RefinerModel, int], Tensor],
    schedule: Schedule,
    *,
    rank: Rank,
) -> None:
    steps = schedule.steps
    optimisers = Optimisers.of(
        model.named_parameters(), matrix=_is_matrix, rate=schedule.rate, betas=(0.9, 0.98)
    )
    average, first = Average(model), 0
    if path.is_file():
        state = torch.load(path)
        model.load_state_dict(state["model"])
        if "optimisers" in state:
            optimisers.load_state_dict(state["optimisers"])
        average.weights, average.count, first = state["average"], state["step"], state["step"]
    for step in range(first, steps):
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, step)
        loss.backward()
        average_gradients(model)
        optimisers.step(rate_at(step, steps, warm_up=30, decay_from=schedule.decay_from))
        average.update(model, schedule.keep)
        rank.log(step, loss=loss.item(), every=20)
        done = step + 1
        if rank.number == 0 and (done % 50 == 0 or done == steps):
            save_atomically(
                {
                    "model": model.state_dict(),
                    "optimisers": optimisers.state_dict(),
                    "average": average.weights,
                    "step": done,
                },
                path,
            )


def training_texts(work: Path, count: int, *, rank: Rank) -> Tensor:
    """Return the embeddings `(n, L, E)` of the training clips' captions, kept in `work`."""
    path = work / f"captions{rank.number}.pt"
    if not path.is_file():
        names = [clip_info("train", i)[0].caption for i in range(count)]
        unique = sorted(set(names))
        rows = refiner_captions(
            unique,
            text_encoder=PRESET / "gemma3_12b",
            connectors=PRESET / "refiner_diffusers" / "connectors",
        )
        torch.save(rows[[unique.index(n) for n in names]].half(), path)
    texts: Tensor = torch.load(path)
    return texts.float()


def _is_matrix(name: str, p: Tensor) -> bool:
    return "transformer_blocks" in name and p.ndim == 2 and "table" not in name


def load_refiner(work: Path) -> RefinerModel:
    """Return the averaged weights: the tuned ones, if there are any."""
    model, later = new_refiner(), work / "tuned.pt"
    _average_of(model, later if later.is_file() else work / "refiner.pt").copy_to(model)
    return model.eval()


def _average_of(model: RefinerModel, path: Path) -> Average:
    average = Average(model)
    average.weights = torch.load(path)["average"]
    return average
