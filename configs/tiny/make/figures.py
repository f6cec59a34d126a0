"""Measure an exported model set on held-out scenes and write `FIGURES.md` beside it."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from sanawm.shapes import Window

from .data import Clip
from .judge import (
    BLOCKS,
    ModelSet,
    block_psnr,
    border_flicker,
    decode,
    latent_error,
    load_model_set,
    psnr,
    refine,
    refiner_case,
    sharpness,
    vae_psnr,
)
from .judge_stage1 import (
    as_pixels,
    chunk_psnr,
    free_clips,
    generate,
    generated_case,
    load_stage1_of,
    measure_commands,
)

CLIPS = 8
#: Of the refiner: what a history costs differs much from clip to clip.
REFINER_CLIPS = 16


def write_figures(folder: Path) -> None:
    """Measure the models of an export, or of the preset, and write `FIGURES.md` beside them."""
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    lines = ["# Figures on held-out scenes", "", *refiner_figures(folder)]
    if (folder / "sana_dit").is_dir():
        lines += ["", *stage1_figures(folder)]
    text = "\n".join(lines) + "\n"
    (folder / "FIGURES.md").write_text(text, encoding="utf-8")
    print(text)


def _schedule(folder: Path) -> tuple[Window, list[float]]:
    """Return the refiner's window and sigmas of an export, or of the preset itself."""
    beside = folder / "tiny.toml"
    path = beside if beside.is_file() else folder.parent / "tiny.toml"
    preset = tomllib.loads(path.read_text(encoding="utf-8"))["refiner"]
    window = Window(preset["sink_size"], preset["block_size"], preset["kv_max_frames"])
    return window, preset["sigmas"]


def refiner_figures(folder: Path) -> list[str]:
    """Return the lines about VAE and refiner."""
    models = load_model_set(folder)
    window, sigmas = _schedule(folder)
    by_clip = vae_psnr(models, range(16))
    lines = [
        f"VAE, 16 clips of 25 frames: **{sum(by_clip) / len(by_clip):.2f} dB** "
        f"({min(by_clip):.1f} to {max(by_clip):.1f})",
        "",
        f"Refiner, {REFINER_CLIPS} clips of {BLOCKS} blocks, "
        f"sigmas {sigmas}, window {tuple(window)}:",
        "",
        "| block | latent error in | out | ratio | PSNR in | out | VAE | gap closed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    case = refiner_case(models, range(REFINER_CLIPS))
    out = refine(models, case, window=window, sigmas=sigmas)
    taught = refine(models, case, window=window, sigmas=sigmas, true_history=True)
    given_p, out_p, truth_p, taught_p = (
        decode(models, z) for z in (case.given, out, case.truth, taught)
    )
    for block in (1, 3, 6, 9, BLOCKS):
        before, after = (latent_error(z, case.truth, block) for z in (case.given, out))
        low, high, top = (block_psnr(p, case.pixels, block) for p in (given_p, out_p, truth_p))
        lines.append(
            f"| {block} | {before:.3f} | {after:.3f} | {after / before:.3f} | {low:.2f} | "
            f"{high:.2f} | {top:.2f} | {(high - low) / (top - low):.0%} |"
        )
    free, true = (block_psnr(p, case.pixels, BLOCKS) for p in (out_p, taught_p))
    sharp = [sharpness(p, case.pixels) for p in (given_p, out_p, truth_p)]
    return [
        *lines,
        "",
        f"Own history against true history, block {BLOCKS}: {free:.2f} against {true:.2f} dB",
        f"Frame difference at block borders over inside: {border_flicker(out_p):.3f} "
        f"(input {border_flicker(given_p):.3f}, VAE {border_flicker(truth_p):.3f}, "
        f"rendered {border_flicker(case.pixels):.3f})",
        f"Gradient over the truth's: input {sharp[0]:.2f}, refined {sharp[1]:.2f}, "
        f"VAE {sharp[2]:.2f}",
        f"Whole clips: input {psnr(given_p, case.pixels):.2f}, refined "
        f"{psnr(out_p, case.pixels):.2f}, VAE {psnr(truth_p, case.pixels):.2f} dB",
    ]


def stage1_figures(folder: Path, *, clips: int = CLIPS) -> list[str]:
    """Return the lines about stage 1."""
    models, stage1 = load_model_set(folder), load_stage1_of(folder)
    window, sigmas = _schedule(folder)
    free = free_clips(count=clips)
    truth = as_pixels(free)
    z = generate(models, stage1, free)
    made = decode(models, z)
    wrong = decode(models, generate(models, stage1, free, mirrored=True))
    held = truth[:, :, :1].expand_as(truth)
    rows = {"generated": made, "mirrored camera": wrong, "first frame held": held}
    lines = [
        f"Stage 1, {clips} clips with paths of their own, PSNR by chunk:",
        "",
        "| | 1 | 2 | 3 | 4 |",
        "|---|---|---|---|---|",
    ]
    for name, pixels in rows.items():
        cells = " | ".join(f"{x:.2f}" for x in chunk_psnr(pixels, truth))
        lines.append(f"| {name} | {cells} |")
    lines += ["", *refined_figures(models, free, z, window=window, sigmas=sigmas)]
    lines += [
        "",
        "| command | truth: shift px, zoom | made: shift px, zoom | PSNR by chunk | mirrored |",
        "|---|---|---|---|---|",
    ]
    for name, found in measure_commands(models, stage1).items():
        (s0, z0), (s1, z1) = found["truth"], found["made"]
        right, wrong = (" ".join(f"{x:.1f}" for x in found[k]) for k in ("psnr", "mirrored"))
        lines.append(f"| {name} | {s0:.2f}, {z0:.3f} | {s1:.2f}, {z1:.3f} | {right} | {wrong} |")
    return lines


def refined_figures(
    models: ModelSet, clips: Sequence[Clip], latents: Tensor, *, window: Window, sigmas: list[float]
) -> list[str]:
    """Return the line about what the refiner makes of stage-1 latents."""
    case = generated_case(models, clips, latents)
    before = decode(models, latents)
    after = decode(models, refine(models, case, window=window, sigmas=sigmas))
    (p0, p1), (s0, s1) = ([f(x, case.pixels) for x in (before, after)] for f in (psnr, sharpness))
    return [
        f"Refined: PSNR {p0:.2f} to {p1:.2f} dB, gradient over the truth's {s0:.2f} to {s1:.2f}, "
        f"by chunk {', '.join(f'{x:.2f}' for x in chunk_psnr(after, case.pixels))}"
    ]
