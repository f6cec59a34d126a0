"""One side of `whole_job`, in a process of its own: `make` the models, or run `ours` or `theirs`.

Prints one line of JSON: seconds, cpu, first, peak, blocks.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from .transformer import DIM, TEXT, random_transformer
from .vae import CONFIG as VAE_CONFIG

CHANNELS = VAE_CONFIG["latent_channels"]
DTYPE = torch.bfloat16
FPS, CRF, SEED = 16, 23, 42
#: Latent frames of the warm-up: the sink and one block.
WARM = 4
#: Most latent frames that a run may ask for.
LONGEST = 121


def make(args: argparse.Namespace) -> None:
    """Save both models with random weights, in bf16, and random latents and text embeddings."""
    from diffusers import AutoencoderKLLTX2Video, FlowMatchEulerDiscreteScheduler

    torch.manual_seed(0)
    transformer = random_transformer(
        layers=args.layers, in_channels=CHANNELS, out_channels=CHANNELS
    )
    transformer.to(DTYPE).save_pretrained(args.folder / "refiner" / "transformer")
    AutoencoderKLLTX2Video(**VAE_CONFIG).to(DTYPE).save_pretrained(args.folder / "vae")
    FlowMatchEulerDiscreteScheduler(shift=1.0).save_pretrained(args.folder / "scheduler")
    latents = torch.randn(1, CHANNELS, LONGEST, args.height, args.width)
    text = torch.randn(1, TEXT, DIM)
    save_file({"latents": latents.to(DTYPE), "text": text.to(DTYPE)}, inputs(args.folder))


def inputs(folder: Path) -> Path:
    """Return the file of latents and text embeddings."""
    return folder / "inputs.safetensors"


class Ours:
    """The library: refine, decode and write block by block."""

    def __init__(self, args: argparse.Namespace, text: Tensor) -> None:
        from sanawm import Pipeline
        from sanawm.text.embeddings import PromptEmbeds

        settings = {
            "model.refiner": args.folder / "refiner",
            "model.vae": args.folder / "vae",
            "runtime.precision": "bf16",
            "runtime.device": "cpu",
            "runtime.threads": args.threads,
            "runtime.compile": str(args.compile).lower(),
            "runtime.seed": SEED,
            "video.fps": FPS,
        }
        self.pipe = Pipeline.from_config(sets=[f"{k}={v}" for k, v in settings.items()])
        self.prompt = PromptEmbeds(text, None)
        self.blocks: list[float] = []
        self.first: Callable[[], None] = lambda: None

    def chunks(self, latents: Tensor) -> Any:
        """Yield decoded chunks."""
        before = time.process_time()
        for chunk in self.pipe.decode(self.pipe.refine(latents, self.prompt)):
            self.blocks.append(time.process_time() - before)
            yield chunk
            before = time.process_time()

    def frames(self, latents: Tensor) -> np.ndarray:
        """Return all frames of a short clip."""
        return np.concatenate([chunk.frames for chunk in self.chunks(latents)])

    def job(self, latents: Tensor, path: Path) -> None:
        """Make the file."""
        from sanawm.io.video import VideoSettings, VideoWriter

        self.blocks.clear()
        space = self.pipe.decoder.config.ratios.space
        size = {"height": latents.shape[3] * space, "width": latents.shape[4] * space}
        settings = VideoSettings(**size, fps=Fraction(FPS), crf=CRF)
        with VideoWriter(path, settings, on_chunk=lambda *_: self.first()) as writer:
            for chunk in self.chunks(latents):
                writer.write(chunk.frames)


class Theirs:
    """What a user of diffusers writes."""

    def __init__(self, args: argparse.Namespace, text: Tensor) -> None:
        from diffusers import (
            AutoencoderKLLTX2Video,
            FlowMatchEulerDiscreteScheduler,
            SanaWMLTX2RefinerTransformer3DModel,
        )
        from diffusers.pipelines.sana_wm.refiner import SanaWMLTX2Refiner

        torch.set_num_threads(args.threads)
        self.pipe = SanaWMLTX2Refiner(
            transformer=SanaWMLTX2RefinerTransformer3DModel.from_pretrained(
                args.folder / "refiner" / "transformer", torch_dtype=DTYPE
            ),
            vae=AutoencoderKLLTX2Video.from_pretrained(args.folder / "vae", torch_dtype=DTYPE),
            scheduler=FlowMatchEulerDiscreteScheduler.from_pretrained(args.folder / "scheduler"),
            connectors=None,
            tokenizer=None,
            text_encoder=None,
        )
        mask = torch.ones(text.shape[:2], dtype=torch.int64)
        self.pipe._encode_prompt = lambda prompt, device, dtype: (text, mask)
        self.pipe.set_progress_bar_config(disable=True)
        self.blocks: list[float] = []
        self.first: Callable[[], None] = lambda: None

    def video(self, latents: Tensor) -> np.ndarray:
        """Return the clip as floats in [0, 1]."""
        generator = torch.Generator().manual_seed(SEED)
        return self.pipe(latents, "x", fps=float(FPS), generator=generator)

    def frames(self, latents: Tensor) -> np.ndarray:
        """Return all frames of a short clip."""
        return (self.video(latents) * 255).round().astype("uint8")

    def job(self, latents: Tensor, path: Path) -> None:
        """Make the file."""
        from diffusers.utils import encode_video

        watcher = threading.Thread(target=self._watch, args=(path,), daemon=True)
        watcher.start()
        encode_video(self.video(latents), fps=FPS, output_path=str(path))

    def _watch(self, path: Path) -> None:
        """Wait for the encoder's first bytes; the file can be played only when it is closed."""
        while not path.is_file() or path.stat().st_size < 4096:
            time.sleep(0.02)
        self.first()


def resident(key: str) -> int:
    """Return a figure of /proc/self/status, bytes: VmRSS or VmHWM."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"no {key} in /proc/self/status")


def measure(side: Ours | Theirs, latents: Tensor, path: Path) -> dict[str, Any]:
    """Warm up, run the job, and return what it took."""
    side.frames(latents[:, :, :WARM])
    level = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts anew
    seen: list[float] = []
    start, cpu = time.perf_counter(), time.process_time()
    side.first = lambda: seen.append(time.perf_counter() - start)
    side.job(latents, path)
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "cpu": time.process_time() - cpu,
        "first": min(seen, default=seconds),
        "peak": resident("VmHWM") - level,
        "blocks": list(side.blocks),
    }


def main_of_side(arguments: list[str]) -> int:
    """Do what the parent asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("side", choices=("make", "ours", "theirs"))
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--frames", type=int, default=WARM)
    parser.add_argument("--dump", type=Path)
    for name in ("height", "width", "layers", "threads"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    os.environ["DIFFUSERS_VERBOSITY"] = "error"
    torch.set_grad_enabled(False)
    if args.side == "make":
        make(args)
        return 0
    given = load_file(inputs(args.folder))
    latents = given["latents"][:, :, : args.frames]
    side = (Ours if args.side == "ours" else Theirs)(args, given["text"])
    if args.dump is not None:
        np.save(args.dump, side.frames(latents))
        return 0
    path = args.folder / f"{args.side}.mp4"
    path.unlink(missing_ok=True)
    print(json.dumps(measure(side, latents, path)))
    return 0


if __name__ == "__main__":
    sys.exit(main_of_side(sys.argv[1:]))
