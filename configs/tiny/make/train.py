"""Make the trained `tiny` model set: `python -m configs.tiny.make.train [STEP ...] --work FOLDER`.

Steps, in their order: data, vae, latents, decoder, refiner, stage1, made, tune, export, figures.
Without names all of them run. Each goes on where it stopped, and is skipped once it is done;
everything lies in the work folder, the result in its `export/`. Two processes, one a core.

`begin` takes the models of an export, such as the preset, as what the steps so far have made.
`figures --export FOLDER` measures any export.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

from .ranks import Rank, start_processes, this_rank

CLIPS = 900
#: Training steps of each model.
LENGTHS = {"vae": 1200, "decoder": 1300, "refiner": 800, "tune": 1700, "stage1": 900}
STEPS = (
    "data", "vae", "latents", "decoder", "refiner", "stage1", "made", "tune", "export", "figures",
)  # fmt: skip
ALONE = ("made", "export")
#: Training clips that stage 1 makes again for the refiner.
MADE = 560
PRESET = Path(__file__).parent.parent


def main() -> None:
    """Run the steps that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("steps", nargs="*", choices=["begin", *STEPS, []], default=[])
    parser.add_argument("--work", type=Path, default=Path("out/tiny-model"))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--length", type=int, help="training steps, instead of the model's own")
    parser.add_argument(
        "--export", type=Path, help="models to begin from (the preset), or to measure"
    )
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    for step in args.steps or STEPS:
        if step == "begin":
            _begin(args.export or PRESET, args.work)
            continue
        if step == "figures":
            _figures(args.export or args.work / "export")
            continue
        if "RANK" in os.environ:
            _run(step, args.work, length=args.length, rank=this_rank())
            return
        arguments = [step, "--work", str(args.work)]
        if args.length is not None:
            arguments += ["--length", str(args.length)]
        count = 1 if step in ALONE else args.processes
        start_processes(arguments, count=count, meeting=args.work / f"{step}.meeting")


def _run(step: str, work: Path, *, length: int | None, rank: Rank) -> None:
    run: Callable[[], None] = {
        "data": lambda: _data(work, rank),
        "vae": lambda: _vae(work, length or LENGTHS["vae"], rank),
        "latents": lambda: _latents(work, rank),
        "decoder": lambda: _decoder(work, length or LENGTHS["decoder"], rank),
        "refiner": lambda: _refiner(work, length or LENGTHS["refiner"], rank),
        "tune": lambda: _tune(work, length or LENGTHS["tune"], rank),
        "stage1": lambda: _stage1(work, length or LENGTHS["stage1"], rank),
        "made": lambda: _made(work, rank),
        "export": lambda: _export(work),
    }[step]
    run()


def _begin(export: Path, work: Path) -> None:
    from .begin import begin_from

    begin_from(export, work, steps=LENGTHS)


def _data(work: Path, rank: Rank) -> None:
    from .data import render_clips

    render_clips(work / "data", count=CLIPS, rank=rank.number, ranks=rank.count)


def _vae(work: Path, length: int, rank: Rank) -> None:
    from .train_vae import train_vae

    train_vae(work, steps=length, rank=rank)


def _decoder(work: Path, length: int, rank: Rank) -> None:
    from .train_vae import train_decoder

    train_decoder(work, steps=length, rank=rank)


def _latents(work: Path, rank: Rank) -> None:
    import torch.distributed as dist

    from .latents import encode_clips, write_statistics

    encode_clips(work, rank=rank)
    if rank.count > 1:
        dist.barrier()
    if rank.number == 0:
        write_statistics(work)


def _refiner(work: Path, length: int, rank: Rank) -> None:
    from .train_refiner import train_refiner

    train_refiner(work, steps=length, rank=rank)


def _tune(work: Path, length: int, rank: Rank) -> None:
    from .train_refiner import tune_refiner

    tune_refiner(work, steps=length, rank=rank)


def _stage1(work: Path, length: int, rank: Rank) -> None:
    from .train_stage1 import train_stage1

    train_stage1(work, steps=length, rank=rank)


def _made(work: Path, rank: Rank) -> None:
    from .train_stage1 import make_clips

    make_clips(work, count=MADE, rank=rank)


def _export(work: Path) -> None:
    from .export import export

    export(work, work / "export")


def _figures(export: Path) -> None:
    from .figures import write_figures

    write_figures(export)


if __name__ == "__main__":
    main()
