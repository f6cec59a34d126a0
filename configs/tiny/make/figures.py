"""Measure an exported model set on held-out scenes and write `FIGURES.md` beside it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import torch

from sanawm.shapes import Window

from .judge import (
    BLOCKS,
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
    load_stage1_of,
    measure_commands,
)

CLIPS = 8


def write_figures(folder: Path) -> None:
    """Measure and write; needs the folder's own `tiny.toml`."""
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    lines = ["# Figures on held-out scenes", "", *refiner_figures(folder)]
    if (folder / "sana_dit").is_dir():
        lines += ["", *stage1_figures(folder)]
    text = "\n".join(lines) + "\n"
    (folder / "FIGURES.md").write_text(text, encoding="utf-8")
    print(text)


def refiner_figures(folder: Path) -> list[str]:
    """Return the lines about VAE and refiner."""
    models = load_model_set(folder)
    preset = tomllib.loads((folder / "tiny.toml").read_text(encoding="utf-8"))["refiner"]
    window = Window(preset["sink_size"], preset["block_size"], preset["kv_max_frames"])
    sigmas = preset["sigmas"]
    by_clip = vae_psnr(models, range(16))
    lines = [
        f"VAE, 16 clips of 25 frames: **{sum(by_clip) / len(by_clip):.2f} dB** "
        f"({min(by_clip):.1f} to {max(by_clip):.1f})",
        "",
        f"Refiner, {CLIPS} clips of {BLOCKS} blocks, sigmas {sigmas}, window {tuple(window)}:",
        "",
        "| block | latent error in | out | ratio | PSNR in | out | VAE | gap closed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    case = refiner_case(models, range(CLIPS))
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


def stage1_figures(folder: Path, *, clips: int = 16) -> list[str]:
    """Return the lines about stage 1."""
    models, stage1 = load_model_set(folder), load_stage1_of(folder)
    free = free_clips(count=clips)
    truth = as_pixels(free)
    made = decode(models, generate(models, stage1, free))
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
    lines += [
        "",
        "| command | truth: shift px, zoom | made: shift px, zoom | PSNR by chunk |",
        "|---|---|---|---|",
    ]
    for name, found in measure_commands(models, stage1).items():
        (s0, z0), (s1, z1) = found["truth"], found["made"]
        cells = " ".join(f"{x:.1f}" for x in found["psnr"])
        lines.append(f"| {name} | {s0:.2f}, {z0:.3f} | {s1:.2f}, {z1:.3f} | {cells} |")
    return lines
