"""A machine's own limit for a piece of work: the time of its matrix products alone.

`RecordCalls` notes every product, attention and convolution that a piece of work makes;
`limit_seconds` times the same shapes by themselves, in the same process, each at its best. What is
left out (norms, activations, copies, Python) is what could still be saved.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .ops.linear import packed_product
from .vae.channels_last import convolve, new_tensor

Kind = Literal["linear", "matmul", "attention", "convolution"]
Work = Callable[[], object]
Clock = Callable[[], float]

#: Operands are drawn anew until they take this much memory, so that they do not stay in a cache.
ROTATED_BYTES = 64 << 20
#: Most sets of operands, and least time and runs of each call, seconds.
SETS, SPENT, RUNS = 8, 0.2, 3


class Call(NamedTuple):
    """One call. `sizes` depends on the kind:

    linear `(m, k, n)`, matmul `(batch, m, k, n)`, attention `(B, N, S, P, K)`, convolution the
    sizes of input and weights; `options` are then stride, padding, dilation and groups.
    """

    kind: Kind
    sizes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype
    options: tuple[Any, ...] = ()

    @property
    def flops(self) -> float:
        """Floating point operations, two a multiply-add."""
        if self.kind != "convolution":
            product = 2.0
            for size in self.sizes[0]:
                product *= size
            return 2 * product if self.kind == "attention" else product
        x, weight = self.sizes
        stride, padding, dilation, _ = self.options
        outputs = float(x[0] * weight[0])
        for n, kernel, s, p, d in zip(x[2:], weight[2:], stride, padding, dilation, strict=True):
            outputs *= (n + 2 * p - d * (kernel - 1) - 1) // s + 1
        taps = 1
        for size in weight[1:]:
            taps *= size
        return 2 * outputs * taps


class RecordCalls(TorchDispatchMode):
    """While entered, count the calls that matter in `calls`; everything runs as usual."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[Call] = Counter()

    @property
    def flops(self) -> float:
        """Floating point operations of all calls."""
        return sum(call.flops * count for call, count in self.calls.items())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.split("::")[-1]
        call = _call(name, args, out)
        if call is not None:
            self.calls[call] += 1
        return out


def _call(name: str, args: tuple[Any, ...], out: Any) -> Call | None:
    """Return what an operator of this name computes, None if it is not one that matters."""
    if name in ("mm", "addmm"):
        a, b = args[-2:] if name == "mm" else args[1:3]
        return Call("linear", ((*a.shape, b.shape[1]),), a.dtype)
    if name in ("linear", "_linear_pointwise", "_mkl_linear"):
        x = args[0]
        k = x.shape[-1]
        return Call("linear", ((x.numel() // k, k, out.shape[-1]),), x.dtype)
    if name in ("bmm", "baddbmm"):
        a, b = args[:2] if name == "bmm" else args[1:3]
        return Call("matmul", ((*a.shape, b.shape[2]),), a.dtype)
    if name.startswith("_scaled_dot_product"):
        q, k = args[:2]
        return Call("attention", ((*q.shape[:3], k.shape[2], q.shape[3]),), q.dtype)
    if name == "mkldnn_convolution":
        x, weight, _, padding, stride, dilation, groups = args
    elif name == "convolution":
        x, weight, _, stride, padding, dilation, _, _, groups = args
    else:
        return None
    options = (tuple(stride), tuple(padding), tuple(dilation), groups)
    return Call("convolution", (tuple(x.shape), tuple(weight.shape)), x.dtype, options)


def limit_seconds(
    calls: Counter[Call], device: torch.device, *, clock: Clock | None = None
) -> float:
    """Return the time of all calls, each shape at its best measured time on `device`.

    `clock` is the time of day with the device's work done unless given.
    """
    clock = clock or partial(now, device)
    return sum(best_seconds(call, device, clock=clock) * count for call, count in calls.items())


@torch.no_grad()
def best_seconds(call: Call, device: torch.device, *, clock: Clock) -> float:
    """Return the least time of one call, over fresh operands and the kernels there are for it."""
    return min(_least(works, clock) for works in _candidates(call, device))


def _candidates(call: Call, device: torch.device) -> list[list[Work]]:
    """Return ways to make the call; each is a list of the same work on other operands."""

    def draw(*sizes: int) -> Tensor:
        return torch.randn(sizes, device=device, dtype=torch.float32).to(call.dtype)

    if call.kind == "linear":
        m, k, n = call.sizes[0]
        x, bias = draw(m, k), draw(n)
        weights = [draw(n, k) for _ in range(_sets(n * k, call.dtype))]
        products = [packed_product(w, bias, rows=m) for w in weights]
        packed: list[Work] = [partial(p, x) for p in products if p is not None]
        plain: list[Work] = [partial(F.linear, x, w, bias) for w in weights]
        return [plain, packed] if packed else [plain]
    if call.kind == "matmul":
        b, m, k, n = call.sizes[0]
        sets = range(_sets(b * k * (m + n), call.dtype))
        return [[partial(torch.bmm, draw(b, m, k), draw(b, k, n)) for _ in sets]]
    if call.kind == "attention":
        B, N, S, P, K = call.sizes[0]
        q, sets = draw(B, N, S, K), range(_sets(2 * B * N * P * K, call.dtype))
        attend = F.scaled_dot_product_attention
        return [[partial(attend, q, draw(B, N, P, K), draw(B, N, P, K)) for _ in sets]]
    return [[_convolution(call, draw)]]


def _convolution(call: Call, draw: Callable[..., Tensor]) -> Work:
    x_shape, shape = call.sizes
    stride, padding, dilation, groups = call.options
    x, weight, bias = draw(*x_shape), draw(*shape), draw(shape[0])
    if len(shape) == 5 and groups == 1 and set(stride) == set(dilation) == {1}:
        laid = new_tensor(x, *x_shape).copy_(x)
        weight = weight.contiguous(memory_format=torch.channels_last_3d)
        return partial(convolve, laid, weight, bias, padding)
    run: Any = {3: torch.conv1d, 4: torch.conv2d, 5: torch.conv3d}[len(shape)]
    return partial(run, x, weight, bias, stride, padding, dilation, groups)


def _sets(values: int, dtype: torch.dtype) -> int:
    return max(1, min(SETS, ROTATED_BYTES // (values * dtype.itemsize)))


def _least(works: list[Work], clock: Clock) -> float:
    """Return the least mean time of the works, seconds."""
    least, spent, runs = float("inf"), 0.0, 0
    for work in works:
        work()
    while spent < SPENT or runs < RUNS:
        start = clock()
        for work in works:
            work()
        taken = clock() - start
        least, spent, runs = min(least, taken / len(works)), spent + taken, runs + 1
    return least


def now(device: torch.device) -> float:
    """Return the time, seconds, once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
