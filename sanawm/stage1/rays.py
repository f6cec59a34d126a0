"""Ray frames: the camera branch turns queries, keys and values by the ray of each token.

| step | dtype |
|---|---|
| ray geometry, 4x4 matrices | float32 from a float32 raymap, or the weights' dtype (`ray_dtype`) |
| 4x4 products with heads, rotation | float32 |

Source: UCPE (unified camera positional encoding) as the public SANA-WM code applies it, with its
camera model reduced to a pinhole.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .positions import TokenGrid, inverse, rotate

#: Smallest length by which a direction is divided.
EPS = 1e-6


class RayFrames(NamedTuple):
    """Per-token transforms `(B, S, 4, 4)` and the rotary tables of the other half of a head.

    Made once a chunk: all passes and layers share them. `unrope` undoes `rope`.
    """

    ray_from_world: Tensor
    world_from_ray: Tensor
    rope: Tensor
    unrope: Tensor

    def turn_query(self, q: Tensor) -> Tensor:
        """Return queries `(B, S, N, K)` such that `q . turn_key(k)` holds `q^T P_q P_k^-1 k`."""
        return _turn(q, self.ray_from_world.transpose(-1, -2), self.rope)

    def turn_key(self, k: Tensor) -> Tensor:
        """Return keys (or values, which are turned alike) `(B, S, N, K)` in world axes."""
        return _turn(k, self.world_from_ray, self.rope)

    def turn_output(self, o: Tensor) -> Tensor:
        """Return the attention's result `(B, S, N, K)` back in the axes of each token's ray."""
        return _turn(o, self.ray_from_world, self.unrope)


def ray_frames(raymap: Tensor, grid: TokenGrid, *, rope: Tensor) -> RayFrames:
    """Build the ray frames of a chunk.

    raymap: `(B, T, 20)`, per latent frame the 16 entries of the camera-to-world matrix relative to
    the clip's first frame, row by row, then fx, fy, cx, cy in latent cells. A token looks along
    the ray through its cell; its x axis lies across the camera's down axis.
    A token without a direction (NaN) gets the identity.
    """
    pose = raymap[..., :16].unflatten(-1, (4, 4))[:, :, None]  # (B, T, 1, 4, 4)
    rotation, origin = pose[..., :3, :3], pose[..., :3, 3]
    forward = F.normalize(_directions(raymap, grid) @ rotation[:, :, 0].mT, dim=-1, eps=EPS)
    down = rotation[..., :, 1].expand_as(forward)  # (B, T, HW, 3)
    right = F.normalize(torch.linalg.cross(down, forward), dim=-1, eps=EPS)
    below = F.normalize(torch.linalg.cross(forward, right), dim=-1, eps=EPS)
    axes = torch.stack([right, below, forward], dim=-1)  # (B, T, HW, 3, 3), world from ray
    origin = origin.expand_as(forward)[..., None]  # (B, T, HW, 3, 1)
    world_from_ray = _rigid(axes, origin)
    ray_from_world = _rigid(axes.mT, -axes.mT @ origin)
    broken = forward.isnan().any(-1)[..., None, None]  # (B, T, HW, 1, 1)
    identity = torch.eye(4, dtype=raymap.dtype, device=raymap.device)
    return RayFrames(
        torch.where(broken, identity, ray_from_world).flatten(1, 2),
        torch.where(broken, identity, world_from_ray).flatten(1, 2),
        rope,
        inverse(rope),
    )


def _directions(raymap: Tensor, grid: TokenGrid) -> Tensor:
    """Return the unit rays of every cell in camera axes, `(B, T, HW, 3)`."""
    fx, fy, cx, cy = raymap[..., 16:, None, None].unbind(2)  # (B, T, 1, 1) each
    x = (torch.arange(grid.width).to(raymap) - cx) / fx  # (B, T, 1, W)
    y = (torch.arange(grid.height).to(raymap)[:, None] - cy) / fy  # (B, T, H, 1)
    x, y = torch.broadcast_tensors(x, y)
    rays = torch.stack([x, y, torch.ones_like(x)], dim=-1)  # (B, T, H, W, 3)
    return F.normalize(rays, dim=-1, eps=EPS).flatten(2, 3)


def _rigid(rotation: Tensor, translation: Tensor) -> Tensor:
    """Return `[[R, t], [0, 1]]` from `(..., 3, 3)` and `(..., 3, 1)`."""
    top = torch.cat([rotation, translation], dim=-1)
    last = torch.zeros_like(top[..., :1, :])
    last[..., 3] = 1
    return torch.cat([top, last], dim=-2)


def _turn(x: Tensor, matrix: Tensor, rope: Tensor) -> Tensor:
    """Return `x` `(B, S, N, K)`: fours of its first half times `matrix`, second half rotated."""
    first, second = x.chunk(2, dim=-1)  # (B, S, N, K/2) each
    fours = first.float().reshape(matrix.shape[0] * matrix.shape[1], -1, 4)  # (B*S, N*K/8, 4)
    fours = torch.bmm(fours, matrix.float().flatten(0, 1).mT).view(first.shape)
    return torch.cat([fours.to(x.dtype), rotate(second, rope)], dim=-1)


def limit_growth(turned: Tensor, original: Tensor) -> Tensor:
    """Return `turned` scaled so that its RMS over a head does not exceed that of `original`.

    Only for comparison with diffusers 0.42.1; the released streaming code does not do this.
    """
    before = (original.float().square().mean(-1, keepdim=True) + 1e-6).sqrt()
    after = (turned.float().square().mean(-1, keepdim=True) + 1e-6).sqrt().clamp_min(1e-6)
    return (turned.float() * (before / after).clamp_max(1.0)).to(turned.dtype)
