"""Peak memory of a refine run must not grow with the clip: 61 latent frames against 31.

Each run is a process of its own with the tiny model and random latents of 16x24 (384 tokens a
latent frame, so that anything kept per frame would show), but for the whole chain, which begins
with the preset's picture and has its size. The peak is what the system reports when the process
ends. Exits with 1 when a longer run needs over 5 % more.

glibc keeps freed blocks for later, how much depends on timing: two equal runs differ by some
percent. The runs that count are therefore told to give large blocks back (`HELD`), so that the
peak is what was held; the last row shows the default for comparison and is not judged.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors.numpy import save_file

from tests.io.clips import encode_plain

CHANNELS, HEIGHT, WIDTH = 16, 16, 24
TIME, SPACE = 4, 8
FRAMES = (31, 61)
LIMIT = 1.05
#: Settings of glibc's allocator: blocks of 128 KiB and more go back to the system when freed.
HELD = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "131072"}


class Kind(NamedTuple):
    """One kind of run: its name, what it adds to the command, and whether the result counts."""

    name: str
    options: tuple[str, ...] = ()
    judged: bool = True
    source: str = "latents"


KINDS = (
    Kind("video"),
    Kind("video of a video", source="video"),
    Kind("image and camera", source="image"),
    Kind("video, overlapped", ("--schedule", "overlap")),
    Kind("latents only", ("--no-video", "--save-latents", "refined.safetensors")),
    Kind("all outputs", ("--save-latents", "refined.safetensors", "--frames-dir", "frames",
                         "--preview", "sheet.png")),
    Kind("video, default", judged=False),
)  # fmt: skip


def write_latents(path: Path, frames: int) -> Path:
    """Write random latents; the first frames of a longer clip are those of a shorter one."""
    clip = np.random.default_rng(0).standard_normal((frames, CHANNELS, HEIGHT, WIDTH))
    save_file({"latents": clip.astype(np.float32).transpose(1, 0, 2, 3)[None].copy()}, path)
    return path


def write_clip(path: Path, frames: int) -> Path:
    """Write a video of noise that encodes to `frames` latent frames."""
    shape = (TIME * (frames - 1) + 1, HEIGHT * SPACE, WIDTH * SPACE, 3)
    return encode_plain(path, np.random.default_rng(0).integers(0, 256, shape, np.uint8))


def peak_bytes(arguments: list[str], *, folder: Path, environment: dict[str, str]) -> int:
    """Run `sanawm` in a process of its own and return the most memory it held.

    This process must stay smaller than what it measures: a child starts with its parent's peak.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "sanawm", "--quiet", *arguments],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        env=os.environ | environment,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"sanawm {' '.join(arguments)}: exit code {process.returncode}")
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def source_options(kind: Kind, frames: int, *, folder: Path) -> list[str]:
    """Return the options of an input of `frames` latent frames, which is written into `folder`."""
    last = TIME * (frames - 1)
    if kind.source == "image":
        return ["--action", f"w-{last}", "--num-frames", str(last + 1)]
    if kind.source == "video":
        source = write_clip(folder / f"clip-{frames}.mp4", frames)
    else:
        source = write_latents(folder / f"latents-{frames}.safetensors", frames)
    return [f"--{kind.source}", str(source), "--set", "input.action="]


def measure(kind: Kind, frames: int, *, folder: Path) -> int:
    """Return the peak of a run of `kind` over `frames` latent frames."""
    place = folder / f"{kind.name}-{frames}"
    place.mkdir()
    video = () if "--no-video" in kind.options else ("-o", "out.mp4")
    source = source_options(kind, frames, folder=folder)
    arguments = ["refine", "-c", "tiny", *source, "--threads", "1", *video, *kind.options]
    return peak_bytes(arguments, folder=place, environment=HELD if kind.judged else {})


def main() -> int:
    """Print the table; return 1 when memory grows."""
    print(f"{'run':<20}" + "".join(f"{f'{n} latent frames':>18}" for n in FRAMES) + "   ratio")
    worst = 0.0
    with tempfile.TemporaryDirectory() as name:
        for kind in KINDS:
            short, long = (measure(kind, frames, folder=Path(name)) for frames in FRAMES)
            ratio = long / short
            worst = max(worst, ratio if kind.judged else 0.0)
            mark = "" if kind.judged else "  (not judged)"
            print(
                f"{kind.name:<20}{short / 1e6:>15.1f} MB{long / 1e6:>15.1f} MB{ratio:>8.3f}{mark}",
                flush=True,
            )
    print(f"limit {LIMIT}: {'kept' if worst <= LIMIT else 'BROKEN'}")
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
