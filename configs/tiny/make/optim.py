"""Muon and what goes around it: rate schedule, averaged weights, gradients of two processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn


class Muon(torch.optim.Optimizer):
    """Momentum whose updates are made orthogonal by Newton-Schulz steps (in bfloat16).

    For matrices and convolution kernels, flattened to `(out, rest)`. Source: Keller Jordan's Muon.
    """

    def __init__(
        self, params: Iterable[Tensor], *, rate: float, momentum: float = 0.95, decay: float = 0.01
    ) -> None:
        super().__init__(params, {"lr": rate, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "mean" not in state:
                    state["mean"] = torch.zeros_like(p)
                mean = state["mean"].lerp_(p.grad, 1 - group["momentum"])
                ahead = p.grad.lerp(mean, group["momentum"]).flatten(1)
                scale = max(1.0, ahead.shape[0] / ahead.shape[1]) ** 0.5
                p.mul_(1 - group["lr"] * group["decay"])
                p.add_(_orthogonal(ahead).view_as(p), alpha=-group["lr"] * scale)


def _orthogonal(g: Tensor, steps: int = 5) -> Tensor:
    x = g.bfloat16()
    tall = x.shape[0] > x.shape[1]
    if tall:
        x = x.T
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return (x.T if tall else x).float()


class Optimisers(NamedTuple):
    """Muon for matrices, AdamW for the rest; `step` scales both rates by `share`."""

    muon: Muon
    adam: torch.optim.AdamW

    @classmethod
    def of(
        cls,
        named: Iterable[tuple[str, nn.Parameter]],
        *,
        matrix: Callable[[str, Tensor], bool],
        rate: float,
        adam_rate: float | None = None,
        betas: tuple[float, float] = (0.9, 0.99),
    ) -> Optimisers:
        """Split parameters by `matrix(name, parameter)`; AdamW gets a tenth of Muon's `rate`."""
        big: list[nn.Parameter] = []
        rest: list[nn.Parameter] = []
        for name, p in named:
            (big if matrix(name, p) else rest).append(p)
        slow = rate / 10 if adam_rate is None else adam_rate
        adam = torch.optim.AdamW(rest, lr=slow, betas=betas, weight_decay=0.0)
        found = cls(Muon(big, rate=rate), adam)
        for o in found:
            for group in o.param_groups:
                group["base"] = group["lr"]
        return found

    def step(self, share: float) -> None:
        """Clip the gradients' norm to 1, update, and clear the gradients."""
        params = [p for o in self for g in o.param_groups for p in g["params"]]
        nn.utils.clip_grad_norm_(params, 1.0)
        for o in self:
            for group in o.param_groups:
                group["lr"] = group["base"] * share
            o.step()
            o.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of both."""
        return {"muon": self.muon.state_dict(), "adam": self.adam.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.muon.load_state_dict(state["muon"])
        self.adam.load_state_dict(state["adam"])


def rate_at(
    step: int, steps: int, *, warm_up: int = 50, decay_from: float = 0.65, began: int = 0
) -> float:
    """Return the rate's share: up in `warm_up` steps, flat, then linear down to 3 %.

    began: the step at which the optimisers started. Those that went on from exported weights warm
    up there, and the rate falls from then on.
    """
    done = (step - began) / (steps - began)
    decay_from = 0.0 if began else decay_from
    share = min(1.0, (step - began + 1) / warm_up)
    if done > decay_from:
        share *= 1 - 0.97 * (done - decay_from) / (1 - decay_from)
    return share


class Average:
    """Exponential moving average of a model's weights, quick in its first steps."""

    def __init__(self, model: nn.Module) -> None:
        self.weights = {n: p.detach().clone() for n, p in model.named_parameters()}
        self.count = 0

    @torch.no_grad()
    def update(self, model: nn.Module, keep: float) -> None:
        """Move towards the model's weights."""
        keep = min(keep, (1 + self.count) / (10 + self.count))
        self.count += 1
        for n, p in model.named_parameters():
            self.weights[n].lerp_(p.detach(), 1 - keep)

    @torch.no_grad()
    def copy_to(self, model: nn.Module) -> None:
        """Give `model` the averaged weights."""
        for n, p in model.named_parameters():
            p.copy_(self.weights[n])


def average_gradients(model: nn.Module) -> None:
    """Average gradients over the processes, if there are several."""
    if not dist.is_initialized():
        return
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([g.flatten() for g in grads])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    at = 0
    for g in grads:
        g.copy_(flat[at : at + g.numel()].view_as(g))
        at += g.numel()


def save_atomically(state: dict[str, Any], path: Path) -> None:
    """Write a checkpoint so that a kill leaves the old one or the new one."""
    part = path.with_suffix(".part")
    torch.save(state, part)
    part.replace(path)
