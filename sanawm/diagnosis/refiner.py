"""Run the tiny refiner against latents that another implementation made of the same weights.

The stored file is written by `python -m configs.tiny.make.doctor_reference`, which runs diffusers'
public refiner. It names the weights it was made with: beside other weights it says nothing.
"""

from __future__ import annotations

import hashlib
from importlib import resources
from pathlib import Path

from sanawm.config import resolve
from sanawm.errors import SanawmError
from sanawm.refiner.weights import load_refiner, transformer_folder
from sanawm.tensorfile import TensorFiles

from .check import Check

#: Largest difference to the stored latents (float32; they are of size 1).
TOLERANCE = 1e-4
PRESET = "tiny"
REMAKE = "python -m configs.tiny.make.doctor_reference"


def reference_path() -> Path:
    """Return where the stored latents lie."""
    return Path(str(resources.files("sanawm.configs") / "doctor" / "refiner.safetensors"))


def refiner_id(root: Path) -> str:
    """Return a hash of the weights and settings of the refiner transformer in `root`."""
    folder = transformer_folder(root)
    weights = str(TensorFiles(folder).fingerprint(component="refiner")["header_sha256"])
    config = (folder / "config.json").read_bytes()
    return hashlib.sha256(weights.encode() + config).hexdigest()


def check_refiner(reference: Path | None = None) -> Check:
    """Refine the stored clip with the tiny refiner, and compare with the stored result."""
    path = reference or reference_path()
    root = Path(resolve([PRESET]).get("model.refiner"))
    try:
        files = TensorFiles(path)
        made_with, found = files.metadata.get("refiner"), refiner_id(root)
        if made_with != found:
            text = "not checked: the stored latents belong to other weights of the tiny preset"
            both = {"stored_for": made_with, "found": found}
            return Check("refiner", "note", text, f"run {REMAKE}", data=both)
        error = _error(root, files)
    except SanawmError as e:
        return Check("refiner", "FAIL", e.message, e.fix or "install sanawm again")
    maker = files.metadata.get("made_by", "another implementation")
    text = f"tiny refiner against latents of {maker}: largest difference {error:.1e}"
    data = {"max_error": error, "tolerance": TOLERANCE, "made_by": maker}
    if not error <= TOLERANCE:
        fix = "this torch computes other numbers here; try --threads 1, or another torch build"
        return Check("refiner", "FAIL", f"{text}, allowed {TOLERANCE:g}", fix, data=data)
    return Check("refiner", "ok", f"{text} (allowed {TOLERANCE:g})", data=data)


def _error(root: Path, files: TensorFiles) -> float:
    """Return the largest difference to the stored latents, on the CPU in float32."""
    import torch

    from sanawm.refiner.noise import GivenNoise
    from sanawm.refiner.stream import RefinerStream
    from sanawm.shapes import LatentShape, Window

    settings = resolve([PRESET]).settings
    options = settings.refiner
    window = Window(options.sink_size, options.block_size, options.kv_max_frames)
    names = ("clean", "eps", "prompt_embeds", "prompt_mask", "refined")
    clean, eps, embeds, mask, expected = (files.read(name) for name in names)
    files.close()
    model = load_refiner(root, device="cpu", dtype=torch.float32)
    stream = RefinerStream(
        model,
        model.prepare_text(embeds, mask),
        shape=LatentShape(*clean.shape),
        fps=float(files.metadata["fps"]),
        window=window,
        sigmas=options.sigmas,
        noise=GivenNoise.of(eps, sink=window.sink),
    )
    stream.start(clean[:, :, : window.sink])
    error = 0.0
    for span in window.blocks(clean.shape[2]):
        block = stream.refine(clean[:, :, span.start : span.stop]).latents
        error = max(error, float((block - expected[:, :, span.start : span.stop]).abs().max()))
    return error
