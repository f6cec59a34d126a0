"""The VAE's steps without gradients: channels last, in place, in parts that fit a cache.

Every step that has a faster form has it here, beside the plain form in `blocks`, `decoder` and
`encoder`; `needs_gradients` chooses, so training always takes the plain one. Values stay in memory
as `(B, T, H, W, C)`; tensors are seen as `(B, C, T, H, W)` everywhere. Measured on one core
(AVX-512 with bf16 units, torch 2.13) for three latent frames of 11x20, widths 128 to 16:

| trick | why | gain |
|---|---|---|
| channels last throughout | the layout of oneDNN's kernels: nothing is reordered a call | convolutions: bf16 14 %, float32 17 % |
| weights channels last too (`weights.py`) | a cheaper reordering into the kernel's blocks | 4 to 16 % of a wide convolution |
| one padded buffer a convolution (`CausalConv3d.padded`) | joining the tail, reflecting the border and activating each made a full copy | a third of the time outside the convolutions, a quarter of the peak |
| norm and SiLU in slices, rounded once (`norm_silu_into`) | intermediates stay in the L2 cache, float32 copies stay small | 13.2 -> 7 ms a norm of the last level |
| `convolve` | torch sends small float32 convolutions to an im2col kernel that is 2 to 8 times slower | float32 convolutions: 20 % |
| skip added before it is unfolded (`Upsampler`) | runs of all channels instead of runs of a few | 30 -> 2 ms in the last level |
| pixels as they lie in a frame (`DecoderNetwork`) | `conv_out`'s channels are computed in the order of the pixels, bytes need no shuffle | 34 -> 6 ms |
| levels in pieces of time (`DecoderNetwork`) | one level's output is used up before the next piece is made | a third of the peak, costs 2 % |
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from sanawm.ops.linear import needs_gradients as needs_gradients

from .config import PaddingMode, Stride

#: Values in a slice of element-wise work, for each thread: 2 MiB in float32. Smaller slices pay for
#: their calls, and threads for meeting after each.
SLICE_VALUES = 1 << 19
#: Where the two ends of a padded row or column come from, by padding mode.
BORDERS = {"reflect": (2, -3), "replicate": (1, -2), "circular": (-2, 1)}


def new_tensor(like: Tensor, B: int, C: int, T: int, H: int, W: int) -> Tensor:
    """Return an unfilled `(B, C, T, H, W)` in channels-last memory."""
    return like.new_empty(B, T, H, W, C).movedim(-1, 1)


def slices(x: Tensor) -> Iterator[tuple[int | slice, ...]]:
    """Yield indices that cut `(B, T, H, W, C)` into slices; on a card it stays whole."""
    B, T, H, W, C = x.shape
    if x.device.type != "cpu":
        yield (slice(None),)
        return
    rows = max(1, SLICE_VALUES * torch.get_num_threads() // (W * C))
    frames = max(1, rows // H)
    for b in range(B):
        for t in range(0, T, frames):
            for h in range(0, H, rows):
                yield b, slice(t, t + frames), slice(h, h + rows)


def norm_silu_into(out: Tensor, x: Tensor, *, eps: float) -> None:
    """Write `silu(x / rms(x over channels))` into `out`, in float32 with one rounding."""
    x, out = x.movedim(1, -1), out.movedim(1, -1)  # (B, T, H, W, C)
    width = x.shape[-1:]
    for part in slices(x):
        out[part] = F.silu(F.rms_norm(x[part].float(), width, eps=eps), inplace=True)


def fill_border(padded: Tensor, mode: PaddingMode) -> None:
    """Fill the outermost rows, then the outermost columns, from the picture within."""
    first, last = BORDERS[mode]
    for axis in (-2, -1):
        lines = padded.movedim(axis, 0)
        lines[0] = lines[first]
        lines[-1] = lines[last]


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, ...]) -> Tensor:
    """Return the 3-D convolution of `x`, by oneDNN even where torch would not choose it."""
    ones = (1, 1, 1)
    if x.device.type == "cpu" and x.dtype == torch.float32 and _has_onednn():
        return torch.ops.aten.mkldnn_convolution(x, weight, bias, padding, ones, ones, 1)
    return F.conv3d(x, weight, bias, padding=padding)


def _has_onednn() -> bool:
    """Return whether this torch was built with oneDNN and the user has not switched it off."""
    return torch.backends.mkldnn.is_available() and bool(torch._C._get_mkldnn_enabled())


def depth_to_space(x: Tensor, stride: Stride) -> Tensor:
    """Do as `blocks.depth_to_space`: a small transpose, then a copy of whole runs of channels."""
    B, _, T, H, W = x.shape
    st, sh, sw = stride
    x = x.movedim(1, -1).unflatten(-1, (-1, stride.cells)).transpose(-1, -2).contiguous()
    x = x.view(B, T, H, W, st, sh, sw, -1).permute(0, 1, 4, 2, 5, 3, 6, 7)
    return x.reshape(B, T * st, H * sh, W * sw, -1).movedim(-1, 1)


def space_to_depth(x: Tensor, stride: Stride) -> Tensor:
    """Do as `blocks.space_to_depth`."""
    B, C, T, H, W = x.shape
    st, sh, sw = stride
    x = x.movedim(1, -1).reshape(B, T // st, st, H // sh, sh, W // sw, sw, C)
    x = x.permute(0, 1, 3, 5, 7, 2, 4, 6)  # (B, T, H, W, C, st, sh, sw)
    return x.reshape(B, T // st, H // sh, W // sw, C * stride.cells).movedim(-1, 1)


def group_means(x: Tensor, groups: int) -> Tensor:
    """Return the means of `groups` equal runs of channels."""
    return x.movedim(1, -1).unflatten(-1, (groups, -1)).mean(-1).movedim(-1, 1)
