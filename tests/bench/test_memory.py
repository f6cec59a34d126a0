"""Memory does not grow with the clip: the bench's first rows, as a slow test."""

from __future__ import annotations

from pathlib import Path

import pytest

from .memory import FRAMES, KINDS, LIMIT, Kind, measure


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS[:3], ids=lambda k: k.name)
def test_a_clip_twice_as_long_needs_no_more_memory(tmp_path: Path, kind: Kind) -> None:
    short, long = (measure(kind, frames, folder=tmp_path) for frames in FRAMES)
    assert long <= LIMIT * short
