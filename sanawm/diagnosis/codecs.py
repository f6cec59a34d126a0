"""Encode a few real frames with every usable encoder, and decode them back."""

from __future__ import annotations

import tempfile
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from sanawm.comparison.similarity import psnr
from sanawm.errors import SanawmError
from sanawm.io.encoder import ENCODERS, check_encoder
from sanawm.io.reader import VideoReader
from sanawm.io.video import VideoSettings, VideoWriter

from .check import Check

FRAMES, HEIGHT, WIDTH = 24, 96, 160
#: Worst PSNR of the decoded frames that counts as the same picture, dB (crf 18 gives about 33: its
#: edges are red, and colour has half the resolution).
LEAST_PSNR = 25.0


def check_codecs(wanted: str) -> Check:
    """Try every supported encoder; fail when the one of the settings does not give frames back."""
    frames = moving_pattern()
    results: dict[str, dict[str, Any]] = {}
    for name in ENCODERS:
        try:
            results[name] = {"works": True, "psnr": round(_round_trip(name, frames), 2)}
        except SanawmError as e:
            results[name] = {"works": False, "reason": e.message}
    working = {n: r["psnr"] for n, r in results.items() if r["works"]}
    shown = ", ".join(f"{n} ({p:.1f} dB)" for n, p in working.items()) or "no encoder"
    missing = ", ".join(n for n in ENCODERS if n not in working)
    found = f"{FRAMES} frames encoded and decoded back: {shown}"
    found += f"; not here: {missing}" if missing else ""
    data = {"encoders": results, "wanted": wanted}
    if wanted not in working:
        reason = results.get(wanted, {}).get("reason", f"{wanted} is not supported")
        fix = f"use --encoder {next(iter(working), 'libx264')}"
        return Check("codecs", "FAIL", f"{wanted} does not work: {reason}", fix, (found,), data)
    return Check("codecs", "ok", found, data=data)


def moving_pattern() -> np.ndarray:
    """Return frames with edges, soft shades and movement, uint8 `(FRAMES, HEIGHT, WIDTH, 3)`."""
    y, x = np.mgrid[:HEIGHT, :WIDTH].astype(np.float32)
    frames = np.empty((FRAMES, HEIGHT, WIDTH, 3), dtype=np.uint8)
    for t in range(FRAMES):
        shade = np.stack([x * 1.4, y * 2.2, 128 + 90 * np.sin((x + y + 4 * t) / 19)], axis=-1)
        box = (abs(x - 20 - 4 * t) < 14) & (abs(y - 48) < 20)
        frames[t] = np.where(box[..., None], (230, 60, 40), np.clip(shade, 0, 255))
    return frames


def _round_trip(encoder: str, frames: np.ndarray) -> float:
    """Return the PSNR of frames that were encoded and decoded; raise when that fails."""
    settings = VideoSettings(WIDTH, HEIGHT, Fraction(16), encoder=encoder, frames_per_chunk=12)
    check_encoder(encoder, width=WIDTH, height=HEIGHT)
    with tempfile.TemporaryDirectory(prefix="sanawm-doctor-") as folder:
        path = Path(folder) / "frames.mp4"
        with VideoWriter(path, settings) as writer:
            for start in range(0, FRAMES, 12):
                writer.write(frames[start : start + 12])
        back = np.stack(list(VideoReader(path).frames()))
    if back.shape != frames.shape:
        raise SanawmError(f"{len(back)} of {FRAMES} frames came back")
    found = psnr(float(np.square(frames.astype(np.float64) - back).mean()), peak=255.0)
    if found < LEAST_PSNR:
        raise SanawmError(f"the frames came back changed (PSNR {found:.1f} dB)")
    return found
