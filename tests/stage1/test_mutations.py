"""Make one known mistake at a time and see that the golden comparison would notice.

Lower bounds follow "how wrong is wrong" of the golden README where it names the mistake (they are
below its numbers), and are far above the tolerance elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sanawm.ops.attention import attention
from sanawm.ops.rope import RopeTable, apply_rope
from sanawm.stage1 import branches, gdn, model, positions, rays, sampler, softmax, state
from sanawm.stage1.ffn import ConvFeedForward
from sanawm.stage1.gdn import Frames, GDNAttention, ShortConv
from sanawm.stage1.plan import ChunkWindow
from sanawm.stage1.positions import RopeTables, TokenGrid
from sanawm.stage1.state import BlockPast, BlockWrite, Stage1State

from . import cases
from .cases import STREAM_ATOL, worst

Patch = pytest.MonkeyPatch


def error_of_case_a(
    *, clamp: bool = False, cached: int = 2, sink: bool = True, chunks: int = 3
) -> float:
    """Run the first chunks of case_a; a window shows its rule only from the fourth on."""
    run = cases.case("case_a")
    config = replace(cases.tiny_config(), camera_clamp=clamp)
    stream = cases.stream(cases.tiny_model(config=config), run, cached=cached, sink=sink)
    errors = [worst(next(stream), run.tensors[f"chunk{c}.latent"]) for c in range(chunks)]
    return float(torch.tensor(errors).max())


def test_without_a_mistake_the_run_is_met() -> None:
    assert error_of_case_a(chunks=5) < STREAM_ATOL


@pytest.mark.parametrize(
    ("cached", "sink", "floor"), [(2, False, 0.1), (1, False, 0.05), (-1, True, 0.05)]
)
def test_another_window(cached: int, sink: bool, floor: float) -> None:
    assert error_of_case_a(cached=cached, sink=sink, chunks=5) > floor


def test_the_rms_clamp() -> None:
    assert error_of_case_a(clamp=True) > 1


LOST = {
    "key_tail": 0.03, "camera_key_tail": 0.3, "memory": 0.1, "norm": 0.3, "camera_memory": 0.5,
}  # fmt: skip


@pytest.mark.parametrize("field", LOST)
def test_a_part_of_the_state_is_lost(field: str, monkeypatch: Patch) -> None:
    forget(monkeypatch, lambda past: past._replace(gdn=past.gdn._replace(**{field: None})))
    assert error_of_case_a() > LOST[field]


def test_the_feed_forward_tail_is_lost(monkeypatch: Patch) -> None:
    forget(monkeypatch, lambda past: past._replace(ffn_tail=None))
    assert error_of_case_a() > 0.05


def forget(monkeypatch: Patch, change: Callable[[BlockPast], BlockPast]) -> None:
    commit = Stage1State.commit

    def forgetful(
        self: Stage1State, writes: Sequence[BlockWrite], *, frames: int, camera: bool
    ) -> None:
        commit(self, writes, frames=frames, camera=camera)
        self.blocks = [change(past) for past in self.blocks]

    monkeypatch.setattr(state.Stage1State, "commit", forgetful)


def test_rotary_positions_restart_in_every_chunk(monkeypatch: Patch) -> None:
    tables = positions.rope_tables

    def restarted(
        grid: TokenGrid, *, start: int, head_size: int, device: torch.device | str
    ) -> RopeTables:
        return tables(grid, start=0, head_size=head_size, device=device)

    monkeypatch.setattr(model, "rope_tables", restarted)
    assert error_of_case_a() > 0.2


def test_camera_frequencies_are_recomputed_for_half_a_head(monkeypatch: Patch) -> None:
    tables = positions.rope_tables

    def recomputed(
        grid: TokenGrid, *, start: int, head_size: int, device: torch.device | str
    ) -> RopeTables:
        half = tables(grid, start=start, head_size=head_size // 2, device=device).main
        return tables(grid, start=start, head_size=head_size, device=device)._replace(camera=half)

    monkeypatch.setattr(model, "rope_tables", recomputed)
    assert error_of_case_a() > 0.01


def test_values_are_not_turned(monkeypatch: Patch) -> None:
    turn = branches.TwoBranchAttention.turn

    def unturned(
        self: branches.TwoBranchAttention, qkv: branches.QKV, frames: rays.RayFrames
    ) -> branches.QKV:
        return turn(self, qkv, frames)._replace(v=qkv.v)

    monkeypatch.setattr(branches.TwoBranchAttention, "turn", unturned)
    assert error_of_case_a() > 0.01


def test_queries_use_the_rotation_without_the_translation(monkeypatch: Patch) -> None:
    def rotation_only(self: rays.RayFrames, q: Tensor) -> Tensor:
        matrix = self.ray_from_world.transpose(-1, -2).clone()
        matrix[..., 3, :3] = 0
        return rays._turn(q, matrix, self.rope)

    monkeypatch.setattr(rays.RayFrames, "turn_query", rotation_only)
    assert error_of_case_a() > 0.01


def test_the_output_is_rotated_forwards(monkeypatch: Patch) -> None:
    monkeypatch.setattr(rays, "inverse", lambda table: table)
    assert error_of_case_a() > 0.01


def test_the_backward_memory_counts_the_frame_itself(monkeypatch: Patch) -> None:
    run = gdn.run_memory

    def inclusive(updates: Frames, decay: Tensor, *, past: Tensor | None) -> tuple[Tensor, Tensor]:
        read, carried = run(updates, decay, past=past)
        return read + updates.added, carried

    monkeypatch.setattr(gdn, "run_memory", inclusive)
    assert error_of_case_a() > 0.01


def test_the_backward_memory_is_left_out(monkeypatch: Patch) -> None:
    run = gdn.run_memory

    def causal(updates: Frames, decay: Tensor, *, past: Tensor | None) -> tuple[Tensor, Tensor]:
        reads: list[Tensor] = []
        for t in range(len(decay)):
            one = slice(t, t + 1)
            frame = Frames(updates.overlap[one], updates.added[one])
            read, past = run(frame, decay[one], past=past)
            reads.append(read)
        assert past is not None
        return torch.cat(reads), past

    monkeypatch.setattr(gdn, "run_memory", causal)
    assert error_of_case_a() > 0.01


def test_the_short_convolution_is_causal_only(monkeypatch: Patch) -> None:
    def causal(self: ShortConv, x: Tensor, *, tail: Tensor | None) -> tuple[Tensor, Tensor]:
        reach = self.weight.shape[-1] - 1
        before = x.new_zeros(x.shape[0], reach, *x.shape[2:]) if tail is None else tail
        known = torch.cat([before, x], dim=1)
        taps = self.weight[:, 0].T
        y = sum(taps[j] * known[:, j : j + x.shape[1]] for j in range(reach + 1))
        assert isinstance(y, Tensor)
        return y, known[:, -reach:]

    monkeypatch.setattr(ShortConv, "forward", causal)
    assert error_of_case_a() > 0.01


def test_the_tail_is_taken_after_the_convolution(monkeypatch: Patch) -> None:
    forward = ShortConv.forward

    def late(self: ShortConv, x: Tensor, *, tail: Tensor | None) -> tuple[Tensor, Tensor]:
        y, _ = forward(self, x, tail=tail)
        return y, y[:, 1 - self.weight.shape[-1] :]

    monkeypatch.setattr(ShortConv, "forward", late)
    assert error_of_case_a() > 0.01


def test_beta_is_not_discounted(monkeypatch: Patch) -> None:
    monkeypatch.setattr(gdn, "key_growth", lambda turned, plain: torch.ones_like(plain[..., 0]))
    assert error_of_case_a() > 0.01


def test_keys_are_not_scaled(monkeypatch: Patch) -> None:
    monkeypatch.setattr(GDNAttention, "_key_scale", lambda self, grid: self.head_size**-0.5)
    assert not error_of_case_a() < 0.01  # the memory may even blow up


def test_the_softmax_scale_is_that_of_a_padded_head(monkeypatch: Patch) -> None:
    monkeypatch.setattr(
        softmax, "attention", lambda q, k, v: attention(q * (112 / 128) ** 0.5, k, v)
    )
    assert error_of_case_a() > 1e-3


def test_the_current_chunk_is_causally_masked(monkeypatch: Patch) -> None:
    def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        frame = torch.arange(k.shape[2]) // 12
        hidden = frame[None, :] > frame[-q.shape[2] :, None]
        bias = torch.zeros(hidden.shape).masked_fill(hidden, -torch.inf)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)

    monkeypatch.setattr(softmax, "attention", causal)
    assert error_of_case_a() > 0.01


def test_cached_keys_of_the_branches_are_swapped(monkeypatch: Patch) -> None:
    def swap(past: BlockPast) -> BlockPast:
        window = []
        for chunk in past.window:
            assert chunk.camera_k is not None
            window.append(chunk._replace(k=chunk.camera_k, camera_k=chunk.k))
        return past._replace(window=tuple(window))

    forget(monkeypatch, swap)
    assert error_of_case_a() > 0.01


def test_the_future_frame_of_the_temporal_convolution_is_lost(monkeypatch: Patch) -> None:
    forward = ConvFeedForward.forward

    def shifted(
        self: ConvFeedForward, x: Tensor, grid: TokenGrid, *, tail: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        weight = self.t_conv.weight.data
        self.t_conv.weight.data = torch.cat([weight[:, :, :2], 0 * weight[:, :, 2:]], dim=2)
        result = forward(self, x, grid, tail=tail)
        self.t_conv.weight.data = weight
        return result

    monkeypatch.setattr(ConvFeedForward, "forward", shifted)
    assert error_of_case_a() > 0.01


def test_frame_zero_is_denoised_like_the_others(monkeypatch: Patch) -> None:
    monkeypatch.setattr(sampler, "_hold", lambda x, first: x)
    assert error_of_case_a() > 0.05


def test_the_schedule_is_shifted(monkeypatch: Patch) -> None:
    run = cases.case("case_a")
    shifted = [8 * t / (1 + 7 * t / 1000) for t in run.steps]
    stream = cases.stream(cases.tiny_model(), run, steps=shifted)
    assert worst(torch.cat(list(stream), dim=2), run.tensors["final_latent"]) > 0.05


def test_rotary_pairs_are_split_halves(monkeypatch: Patch) -> None:
    def split(x: Tensor, table: Tensor) -> Tensor:
        angles = RopeTable(table.real.transpose(0, 1), table.imag.transpose(0, 1))
        return apply_rope(x.transpose(1, 2), angles, "split").transpose(1, 2)

    for module in (gdn, softmax, rays):
        monkeypatch.setattr(module, "rotate", split)
    assert error_of_case_a() > 0.01


def test_windows_differ_where_the_rule_says_so() -> None:
    default, bare = ChunkWindow(2, sink=True), ChunkWindow(2, sink=False)
    assert [default.seen_by(c) for c in range(5)] == [[], [0], [0, 1], [0, 2], [0, 3]]
    assert [bare.seen_by(c) for c in range(5)] == [[], [0], [0, 1], [1, 2], [2, 3]]
