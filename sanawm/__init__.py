"""sanawm: the streaming refiner of SANA-WM, as a library and a command.

    import sanawm

    pipe = sanawm.Pipeline.from_config("tiny")
    prompt = pipe.encode_prompt("a red tower on sand ground")
    chunks = pipe.refine(latents, prompt)             # one refined block at a time
    sanawm.write_video(pipe.decode(chunks), "out.mp4", fps=16)

Names are loaded when they are first used, so importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_EXPORTS = {
    "ActionWalk": "sanawm.camera.actions",
    "FrameChunk": "sanawm.chunks",
    "LatentShape": "sanawm.shapes",
    "LatentsSource": "sanawm.io.latents",
    "LiveSession": "sanawm.live",
    "Notes": "sanawm.notes",
    "Pipeline": "sanawm.pipeline",
    "RefinedChunk": "sanawm.chunks",
    "SanawmError": "sanawm.errors",
    "write_video": "sanawm.writers",
}
__all__ = [*_EXPORTS, "__version__"]

if TYPE_CHECKING:
    from .camera.actions import ActionWalk as ActionWalk
    from .chunks import FrameChunk as FrameChunk
    from .chunks import RefinedChunk as RefinedChunk
    from .errors import SanawmError as SanawmError
    from .io.latents import LatentsSource as LatentsSource
    from .live import LiveSession as LiveSession
    from .notes import Notes as Notes
    from .pipeline import Pipeline as Pipeline
    from .shapes import LatentShape as LatentShape
    from .writers import write_video as write_video


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'sanawm' has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)
