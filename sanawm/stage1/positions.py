"""Rotary tables of stage 1: time, height and width, at absolute positions.

| quantity | dtype |
|---|---|
| frequencies, positions, angles | float64 |
| tables | complex64, from the float64 angles |
| rotation of interleaved pairs | float32, rounded back to its input's dtype |

Source: the public SANA-WM model (called `casual_wan_rope` there). A head of size K has K/2 pairs:
`2 * (K // 6)` for height and width, the rest for time.

A table holds `cos + i sin` of every pair's angle, complex64 `(S, 1, K/2)`: rotating pairs is then
one product, and all heads share a row.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

BASE = 10000.0


class TokenGrid(NamedTuple):
    """Latent frames, rows and columns of one call; tokens run time, then rows, then columns."""

    frames: int
    height: int
    width: int

    @property
    def per_frame(self) -> int:
        """Tokens of one frame, `H * W`."""
        return self.height * self.width

    @property
    def tokens(self) -> int:
        """Tokens of the call, S."""
        return self.frames * self.per_frame


class RopeTables(NamedTuple):
    """Tables of one call: `main` for whole heads, `camera` for the second half of a head."""

    main: Tensor
    camera: Tensor


def rope_tables(
    grid: TokenGrid, *, start: int, head_size: int, device: torch.device | str
) -> RopeTables:
    """Return the tables of `grid` whose first frame is latent frame `start` of the clip.

    The camera table of a half head takes the *first* pairs of each axis of the main one: the same
    frequencies, cut off, not recomputed for the smaller width.
    """
    time_pairs, space_pairs = axis_pairs(head_size)
    camera_time, camera_space = axis_pairs(head_size // 2)
    angles = (
        _axis_angles(start, grid.frames, time_pairs),
        _axis_angles(0, grid.height, space_pairs),
        _axis_angles(0, grid.width, space_pairs),
    )
    cut = (camera_time, camera_space, camera_space)
    short = tuple(a[:, :n] for a, n in zip(angles, cut, strict=True))
    return RopeTables(_spread(angles, grid).to(device), _spread(short, grid).to(device))


def axis_pairs(width: int) -> tuple[int, int]:
    """Return the pairs of the time axis and of each space axis for `width` rotated elements."""
    space = width // 6
    return width // 2 - 2 * space, space


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Return `x` `(B, S, N, K)` with the pairs (2k, 2k+1) of every head rotated by `table`."""
    shape = x.shape
    pairs = torch.view_as_complex(x.float().view(*shape[:-1], -1, 2))  # (B, S, N, K/2)
    return torch.view_as_real(pairs * table).view(shape).to(x.dtype)


def inverse(table: Tensor) -> Tensor:
    """Return the table that undoes `table`."""
    return table.conj().resolve_conj()


def _axis_angles(start: int, count: int, pairs: int) -> Tensor:
    """Return the angles `p * BASE^(-k / pairs)`, radians, float64 `(count, pairs)`."""
    exponents = torch.arange(pairs, dtype=torch.float64) / max(pairs, 1)
    positions = torch.arange(start, start + count, dtype=torch.float64)
    return positions[:, None] * BASE**-exponents


def _spread(axes: tuple[Tensor, ...], grid: TokenGrid) -> Tensor:
    """Join the angles of the three axes into one row a token."""
    time, rows, columns = axes
    T, H, W = grid
    angles = torch.cat(
        [
            time[:, None, None].expand(T, H, W, -1),
            rows[None, :, None].expand(T, H, W, -1),
            columns[None, None, :].expand(T, H, W, -1),
        ],
        dim=-1,
    ).flatten(0, 2)  # (S, K/2), or (S, K/4) for the camera
    return torch.complex(angles.cos().float(), angles.sin().float())[:, None]
