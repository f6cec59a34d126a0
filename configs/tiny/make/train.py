"""Make the trained `tiny` model set: `python -m configs.tiny.make.train STEP --work FOLDER`.

Steps: data, vae. Each goes on where it stopped; its results lie in the work folder.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from .ranks import start_processes, this_rank

CLIPS = 1200


def main() -> None:
    """Run one step, in as many processes as asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step", choices=["data", "vae"])
    parser.add_argument("--work", type=Path, default=Path("out/tiny-model"))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5000)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    if "RANK" not in os.environ:
        arguments = [args.step, "--work", str(args.work), "--steps", str(args.steps)]
        start_processes(arguments, count=args.ranks, meeting=args.work / f"{args.step}.meeting")
        return
    rank = this_rank()
    if args.step == "data":
        from .data import render_clips

        render_clips(args.work / "data", count=CLIPS, rank=rank.number, ranks=rank.count)
    elif args.step == "vae":
        from .train_vae import train_vae

        train_vae(args.work, steps=args.steps, rank=rank)


if __name__ == "__main__":
    main()
