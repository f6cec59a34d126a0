"""Peak memory of a refine run must not grow with the clip: 61 latent frames against 31.

Each run is a process of its own with the tiny model and random latents of 16x24 (384 tokens a
latent frame, so that anything kept per frame would show). The peak is what the system reports when
the process ends. Exits with 1 when the longer run needs over 5 % more.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file

CHANNELS, HEIGHT, WIDTH = 16, 16, 24
FRAMES = (31, 61)
LIMIT = 1.05


class Kind(NamedTuple):
    """One kind of run: its name and what it adds to the command."""

    name: str
    options: tuple[str, ...]


KINDS = (
    Kind("video", ()),
    Kind("video, overlapped", ("--schedule", "overlap")),
    Kind("latents only", ("--no-video", "--save-latents", "refined.safetensors")),
    Kind("all outputs", ("--save-latents", "refined.safetensors", "--frames-dir", "frames",
                         "--preview", "sheet.png")),
)  # fmt: skip


def write_latents(path: Path, frames: int) -> Path:
    """Write random latents; the first frames of a longer clip are those of a shorter one."""
    generator = torch.Generator().manual_seed(0)
    shape = (CHANNELS, HEIGHT, WIDTH)
    clip = [torch.randn(shape, generator=generator) for _ in range(frames)]
    save_file({"latents": torch.stack(clip, dim=1)[None].contiguous()}, path)
    return path


def peak_bytes(arguments: list[str], *, folder: Path) -> int:
    """Run `sanawm` in a process of its own and return the most memory it held."""
    process = subprocess.Popen(
        [sys.executable, "-m", "sanawm", "--quiet", *arguments],
        cwd=folder,
        stdout=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"sanawm {' '.join(arguments)}: exit code {process.returncode}")
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def measure(kind: Kind, frames: int, *, folder: Path) -> int:
    """Return the peak of a run of `kind` over `frames` latent frames."""
    place = folder / f"{kind.name}-{frames}"
    place.mkdir()
    latents = write_latents(folder / f"latents-{frames}.safetensors", frames)
    video = () if "--no-video" in kind.options else ("-o", "out.mp4")
    options = ("--threads", "1", "--set", "input.action=", *video, *kind.options)
    return peak_bytes(["refine", "-c", "tiny", "--latents", str(latents), *options], folder=place)


def main() -> int:
    """Print the table; return 1 when memory grows."""
    print(f"{'run':<20}" + "".join(f"{n:>5} frames" for n in FRAMES) + "   ratio")
    worst = 0.0
    with tempfile.TemporaryDirectory() as name:
        for kind in KINDS:
            short, long = (measure(kind, frames, folder=Path(name)) for frames in FRAMES)
            ratio = long / short
            worst = max(worst, ratio)
            print(f"{kind.name:<20}{short / 1e6:>9.1f} MB{long / 1e6:>9.1f} MB{ratio:>8.3f}",
                  flush=True)  # fmt: skip
    print(f"limit {LIMIT}: {'kept' if worst <= LIMIT else 'BROKEN'}")
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
