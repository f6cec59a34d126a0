"""The parameters of `sanawm inspect`, `compare`, `bench` and `doctor`. They set no settings key."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer


def _parameter(name: str, type_: Any, declared: Any) -> inspect.Parameter:
    """Return a parameter that may be left out."""
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[type_ | None, declared],
    )


def _option(
    name: str, type_: Any, help_: str, metavar: str | None = None, least: float | None = None
) -> inspect.Parameter:
    """Return an option; `least` is the smallest number that it takes."""
    option = typer.Option(name, help=help_, metavar=metavar, show_default=False, min=least)
    return _parameter(name.removeprefix("--").replace("-", "_"), type_, option)


JSON = _option("--json", bool, "Print the report as JSON.")
OVERWRITE = _option("--overwrite", bool, "Replace existing outputs.")

INSPECT = (
    inspect.Parameter(
        "files",
        inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[
            list[str],
            typer.Argument(
                metavar="FILE",
                show_default=False,
                help="Latents, prompt embeddings, noise, checkpoint folder or file, run state, "
                "camera path, video, picture, config or report.",
            ),
        ],
    ),
    _option("--stats", bool, "Read the values too: min, max, mean, std and NaN of every tensor."),
    _option("--keys", str, "List the tensors whose names match, like '*.attn1.*'.", "GLOB"),
    _option(
        "--convert",
        str,
        "Write a weights-only .pt (or a folder's model.pt) as safetensors, bit for bit.",
        "OUT.safetensors",
    ),
    OVERWRITE,
    JSON,
)

COMPARE = (
    *(
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=Annotated[
                str,
                typer.Argument(
                    metavar=name.upper(),
                    show_default=False,
                    help="Video, folder of frames, picture, or latents file.",
                ),
            ],
        )
        for name in ("a", "b")
    ),
    _option("--psnr-min", float, "Exit 1 when the PSNR of the clip is below this, dB.", "DB"),
    _option("--ssim-min", float, "Exit 1 when the mean SSIM is below this (1: equal).", "X"),
    _option(
        "--atol",
        float,
        "Exit 1 when any value differs by more than this: levels of 255, or latent units.",
        "X",
        0,
    ),
    _option(
        "--block-frames",
        int,
        "Frames a block, where the files do not tell (of latents: latent frames).",
        "N",
        1,
    ),
    _option("--plot", str, "Draw error and flicker over the frames into this .png.", "FILE.png"),
    _option("--side-by-side", str, "Write a video with A left and B right.", "FILE.mp4"),
    OVERWRITE,
    JSON,
)

DOCTOR = (JSON,)

BENCH = (
    _option("--blocks", int, "Blocks that are measured, once the window is full (5).", "N", 1),
    _option("--repeat", int, "Clips; the least of their medians counts (1).", "N", 1),
    JSON,
)
