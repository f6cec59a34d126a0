"""Whole streaming runs against the reference sampler: every call, every state, every chunk."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from sanawm.stage1.branches import ChunkContext
from sanawm.stage1.model import PassVectors, Stage1Model, Stage1Output, Text
from sanawm.stage1.state import Stage1State

from . import cases
from .cases import STREAM_ATOL, worst


class Call(NamedTuple):
    x: Tensor
    timestep: Tensor
    velocity: Tensor


def record_calls(model: Stage1Model) -> list[Call]:
    """Make `model` write down its calls."""
    calls: list[Call] = []
    forward = model.forward

    def spy(
        x: Tensor,
        timestep: Tensor,
        text: Text,
        context: ChunkContext,
        *,
        state: Stage1State | None = None,
        write: bool = False,
        vectors: PassVectors | None = None,
    ) -> Stage1Output:
        out = forward(x, timestep, text, context, state=state, write=write, vectors=vectors)
        calls.append(Call(x, timestep, out.velocity))
        return out

    model.forward = spy  # type: ignore[method-assign]
    return calls


@pytest.mark.parametrize("name", cases.CASES)
def test_every_call_of_a_run(name: str) -> None:
    run = cases.case(name)
    model = cases.tiny_model()
    calls = record_calls(model)
    chunks = list(cases.stream(model, run))
    sizes = [b - a for a, b in pairwise(run.segments)]
    assert [c.shape[2] for c in chunks] == sizes
    for number, chunk in enumerate(chunks):
        assert worst(chunk, run.tensors[f"chunk{number}.latent"]) < STREAM_ATOL
    assert worst(torch.cat(chunks, dim=2), run.tensors["final_latent"]) < STREAM_ATOL
    steps = len(run.steps) - 1
    assert len(calls) == len(chunks) * (steps + 1)
    for number in range(len(chunks)):
        for i in range(steps + 1):
            call = calls[number * (steps + 1) + i]
            stem = f"chunk{number}.step{i}" if i < steps else f"chunk{number}.context"
            want = {k: run.tensors[f"{stem}.{k}"] for k in ("x", "timestep", "velocity")}
            assert worst(call.x, want["x"]) < STREAM_ATOL, stem
            assert worst(call.velocity, want["velocity"]) < STREAM_ATOL, stem
            times = want["timestep"].reshape(1, -1)
            assert torch.equal(call.timestep, times.expand_as(call.timestep)), stem


def test_activations_of_the_first_call() -> None:
    run = cases.case("case_a")
    model = cases.tiny_model()
    found: dict[str, Tensor] = {}

    def keep(module: nn.Module, name: str) -> None:
        def hook(_module: nn.Module, _inputs: object, output: object) -> None:
            first = output[0] if isinstance(output, tuple) else output
            assert isinstance(first, Tensor)
            found.setdefault(name, first)

        module.register_forward_hook(hook)

    for name in ("x_embedder", "plucker_embedder", "t_embedder", "t_block"):
        keep(model.get_submodule(name), name)
    keep(model.attention_y_norm, "caption_normed")
    for i in range(model.config.depth):
        keep(model.blocks[i], f"block{i}.out")
    next(cases.stream(model, run))
    stored = {k.removeprefix("call0."): v for k, v in run.tensors.items() if k.startswith("call0.")}
    assert set(stored) == set(found)
    for name, want in stored.items():
        assert worst(found[name].reshape(want.shape), want) < 1e-4, name


@pytest.mark.parametrize("number", [0, 1])
def test_state_after_the_context_pass(number: int) -> None:
    run = cases.case("case_a")
    stream = cases.stream(cases.tiny_model(), run)
    for _ in range(number + 1):
        next(stream)
    past = stream.state.blocks
    cell = past[3].window[-1]
    gdn = past[0].gdn
    assert gdn.memory is not None
    assert gdn.norm is not None
    assert gdn.camera_memory is not None
    assert gdn.key_tail is not None
    assert gdn.camera_key_tail is not None
    tails = [p.ffn_tail for p in past]
    assert tails[0] is not None
    assert tails[3] is not None
    assert cell.camera_k is not None
    assert cell.camera_v is not None
    pairs = {
        "block0.S_kv": gdn.memory, "block0.S_z": gdn.norm.mT, "block0.cam_S_kv": gdn.camera_memory,
        "block0.conv_tail": gdn.key_tail[0].transpose(0, 1),
        "block0.cam_conv_tail": gdn.camera_key_tail[0].transpose(0, 1),
        "block0.tconv_tail": tails[0].permute(0, 3, 1, 2),
        "block3.tconv_tail": tails[3].permute(0, 3, 1, 2),
        "block3.k": cell.k, "block3.v": cell.v,
        "block3.cam_k": cell.camera_k, "block3.cam_v": cell.camera_v,
    }  # fmt: skip
    stored = {k for k in run.tensors if k.startswith(f"chunk{number}.cache.")}
    assert stored == {f"chunk{number}.cache.{k}" for k in pairs}
    for name, found in pairs.items():
        assert worst(found, run.tensors[f"chunk{number}.cache.{name}"]) < STREAM_ATOL, name


def test_softmax_attention_keeps_the_dtype_of_the_weights() -> None:
    """Upstream rounds to bf16 before softmax attention even in float32; this code does not."""
    run = cases.case("case_a")
    final = torch.cat(list(cases.stream(cases.tiny_model(), run)), dim=2)
    assert 1e-4 < worst(final, run.tensors["final_latent.sdpa_bf16"]) < 1e-3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bit_weights_stay_near_float32(dtype: torch.dtype) -> None:
    run = cases.case("case_a")
    model = cases.tiny_model(dtype=dtype)
    chunks = list(cases.stream(model, run))
    assert all(c.dtype == dtype for c in chunks)
    final, want = torch.cat(chunks, dim=2).float(), run.tensors["final_latent"]
    error = (final - want).square().mean().sqrt() / want.square().mean().sqrt()
    assert error < (0.1 if dtype == torch.bfloat16 else 0.02)


def test_ray_geometry_in_the_dtype_of_the_weights() -> None:
    """Upstream's choice on a GPU: coarser, still a run; in float32 it changes nothing."""
    run = cases.case("case_b_nosink")
    config = replace(cases.tiny_config(), ray_dtype="model")
    for dtype, same in ((torch.float32, True), (torch.bfloat16, False)):
        plain = next(cases.stream(cases.tiny_model(dtype=dtype), run))
        coarse = next(cases.stream(cases.tiny_model(config=config, dtype=dtype), run))
        assert torch.equal(plain, coarse) is same
        assert coarse.isfinite().all()
