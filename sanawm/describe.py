"""A plan in words: the lines that a run starts with, and the whole of `--dry-run`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from . import __version__
from .components import is_remote
from .downloads import RELEASED, download_bytes
from .estimate import WORDS, MemoryEstimate
from .notes import counted
from .plan import Plan

if TYPE_CHECKING:
    import torch

    from .camera.trajectory import Trajectory


def plan_lines(
    plan: Plan,
    *,
    device: torch.device,
    dtype: torch.dtype,
    estimate: MemoryEstimate,
    part: Path | None = None,
) -> list[str]:
    """Return the model line, the video line, the plan line and the line about the run state."""
    config, window = plan.refiner, plan.window
    kind = str(dtype).removeprefix("torch.")
    model = (
        f"model  refiner of {config.num_layers} layers x {config.width}, {kind} on {device}, "
        f"seed {plan.settings.settings.runtime.seed} (sanawm {__version__})"
    )
    frames, pixels = plan.frames, plan.pixels
    video = (
        f"video  {pixels.width}x{pixels.height}, {frames.decoded} frames decoded, "
        f"{frames.written} written at {float(plan.output_fps):g} fps = {plan.seconds:.2f} s"
    )
    if plan.outputs.video is None:
        video = f"video  none; latents {tuple(plan.shape)} -> {plan.outputs.save_latents}"
    elif part is not None:
        video += f" -> {plan.outputs.video} (growing as {part})"
    steps = len(plan.settings.settings.refiner.sigmas) - 1
    count = len(plan.blocks)
    if plan.single_shot:
        work = f"whole clip at once, {counted(steps, 'step')}"
    else:
        work = (
            f"{counted(count, 'block')} of {window.block} latent frames, "
            f"{counted(steps, 'step')} + 1 capture each, "
            f"window {window.sink} sink + {window.history_max} history"
        )
    return [
        model,
        video,
        f"plan   {work}, about {estimate.peak / 1e9:.1f} GB of memory",
        _state_line(plan, estimate, dtype),
    ]


def _state_line(plan: Plan, estimate: MemoryEstimate, dtype: torch.dtype) -> str:
    from .space import in_words, state_bytes, state_path

    path, every = state_path(plan), plan.settings.settings.output.state_every
    if path is None:
        return "state  none is kept: a stopped run starts over"
    size = in_words(state_bytes(plan, estimate, dtype))
    often = "every block" if every == 1 else f"every {every} blocks"
    return f"state  about {size} after {often} -> {path}"


def dry_run_lines(
    plan: Plan,
    *,
    device: torch.device,
    dtype: torch.dtype,
    estimate: MemoryEstimate,
    resume: str | None = None,
) -> list[str]:
    """Return everything that `--dry-run` prints; `resume` is the line about a run to continue."""
    lines = plan_lines(plan, device=device, dtype=dtype, estimate=estimate)
    lines += [resume] if resume else []
    lines += [f"prompt {plan.prompt.sha256[:16]}  {_prompt(plan)}"]
    lines += _input_lines(plan)
    lines += _block_lines(plan)
    lines += [f"memory about {estimate.peak / 1e9:.1f} GB in {estimate.where}, of which"]
    lines += [
        f"  {name:<18} {size / 1e9:8.3f} GB  {WORDS.get(name, '')}".rstrip()
        for name, size in estimate.rows().items()
    ]
    if plan.camera is not None:
        from .camera.motion import summarise_motion

        summary = summarise_motion(_seen_through(plan, plan.camera), fps=float(plan.fps))
        lines += [f"camera {_camera(plan.camera, plan)}"]
        lines += [f"  {line}" for line in summary.lines()]
    lines += ["settings"]
    for key, row in plan.settings.table().items():
        lines.append(f"  {key:<28} {row['value']!s:<40} {row['origin']}")
    return lines


def sheet_lines(plan: Plan) -> list[str]:
    """Return what a contact sheet says about its pictures."""
    size, frames = plan.pixels, plan.frames.written
    lines = [
        f"{size.width}x{size.height}, {frames} frames at {float(plan.output_fps):g} fps = "
        f"{plan.seconds:.2f} s",
        f"prompt  {_prompt(plan, most=None)}",
    ]
    if plan.camera is not None:
        lines.append(f"camera  {_camera(plan.camera, plan)}")
    return lines


def _seen_through(plan: Plan, camera: Trajectory) -> Trajectory:
    """Return the path with the lens that stage 1 is told, which need not be the file's."""
    from .camera.framing import ImageSize
    from .image_source import ImageClip

    if not isinstance(plan.source, ImageClip):
        return camera
    size = ImageSize(plan.pixels.width, plan.pixels.height)
    return replace(camera, intrinsics=plan.source.lens, source_size=size, fov_x_deg=None)


def _camera(camera: Trajectory, plan: Plan) -> str:
    use = "" if plan.has_stage1 else " (recorded; it does not change these pixels)"
    return f"{camera.source}{use}"


def _prompt(plan: Plan, *, most: int | None = 72) -> str:
    if plan.prompt.text is None:
        return f"embeddings from {plan.prompt.embeds}"
    text = " ".join(plan.prompt.text.split())
    return text if most is None or len(text) <= most else text[: most - 1] + "…"


def _input_lines(plan: Plan) -> list[str]:
    lines = [f"source {plan.source.kind} {plan.source.path}, latents {tuple(plan.shape)}"]
    for name, component in plan.components.items():
        where = component.path or component.location
        state = ""
        if is_remote(component):
            size = f", about {download_bytes(component) / 1e9:.0f} GB" * bool(RELEASED.get(name))
            state = f"  (not in the cache; a run fetches it{size})"
        lines.append(f"weights {name}: {where}{state}")
    return lines


def _block_lines(plan: Plan) -> list[str]:
    n, window = plan.shape.tokens_per_frame, plan.window
    lines = [f"tokens {n} a latent frame, {n * window.block} a block"]
    if plan.single_shot:
        return lines
    lines.append("blocks  latent frames   history   sink at   keys")
    for span in plan.blocks:
        history = window.history_at(span.start)
        keys = (window.sink + history + span.frames) * n
        lines.append(
            f"  {span.number:>4}   {span.start:>5}..{span.stop - 1:<7} {history:>6} "
            f"{window.sink_position_at(span.start):>9} {keys:>8}"
        )
    return lines
