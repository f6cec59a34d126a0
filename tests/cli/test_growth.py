"""The video can be watched while it grows, from another process than the one that makes it."""

from __future__ import annotations

import json
import time
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

from .command import STRIDE, finish, report_of, start, video_frames
from .conftest import make_latents, save_latents

BLOCKS = 20


def playable(path: Path) -> int:
    """Return the frames that a player gets out of a file that is still being written."""
    frames = 0
    try:
        with av.open(str(path)) as container:
            for _ in container.decode(video=0):
                frames += 1
    except av.error.InvalidDataError:
        pass  # the newest piece is half written
    return frames


def written(log: Path) -> int:
    """Return the frames of the chunks that the log calls written."""
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    events = [json.loads(line) for line in lines if '"chunk_written"' in line]
    return max((e["frames"] for e in events), default=0)


def test_a_second_process_plays_all_chunks_but_the_newest(in_tmp: Path) -> None:
    z = save_latents(in_tmp / "z.safetensors", make_latents(1 + 3 * BLOCKS, 6, 8))
    log = Path("log.jsonl")
    process = start(
        "--log-file", log, "refine", "--latents", z, "-o", "o.mp4", "--threads", 1,
        "--frames-dir", "frames",
    )  # fmt: skip
    looks = []
    while process.poll() is None:
        known = written(log)
        if known > (looks[-1][0] if looks else 0) and Path("o.part.mp4").exists():
            looks.append((known, playable(Path("o.part.mp4"))))
        time.sleep(0.005)
    assert finish(process).code == 0
    assert len(looks) >= 5, "the run was too fast to look at it"
    for known, seen in looks:
        assert seen >= known - STRIDE
    assert looks[0][0] <= 3 * STRIDE
    # The finished file is the part's bytes, complete: every frame, in order, in place.
    frames = video_frames(Path("o.mp4"))
    assert len(frames) == BLOCKS * STRIDE == report_of(Path("o.mp4"))["frames"]["written"]
    with av.open("o.mp4") as container:
        stream = container.streams.video[0]
        times = [f.pts * stream.time_base for f in container.decode(stream)]
        assert (stream.frames, stream.average_rate) == (len(times), 16)
    assert times == [Fraction(i, 16) for i in range(BLOCKS * STRIDE)]
    assert np.abs(np.diff(frames.astype(int), axis=0)).mean() > 1
