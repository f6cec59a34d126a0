"""Write what `sanawm doctor` compares with: the tiny refiner as diffusers runs it.

    python -m configs.tiny.make.doctor_reference        writes configs/doctor/refiner.safetensors

Run it whenever the weights of the tiny refiner change. Clip, noise and prompt come from a fixed
seed; the refined latents from diffusers' public `SanaWMLTX2Refiner`, in float32. Nothing of this
package computes them. Needs the test extra (diffusers).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import diffusers
import torch
from safetensors.torch import save_file
from torch import Tensor

from sanawm.config import resolve
from sanawm.diagnosis.refiner import PRESET, refiner_id

TARGET = Path(__file__).parents[2] / "doctor" / "refiner.safetensors"
#: Long enough that the window slides: 1 sink frame and 5 blocks of 3, in a window of 11.
FRAMES, HEIGHT, WIDTH, TOKENS, FPS = 16, 4, 6, 12, 16.0


def public_refiner(root: Path) -> Any:
    """Return diffusers' refiner pipeline over the transformer in `root`, in float32."""
    from diffusers import FlowMatchEulerDiscreteScheduler, SanaWMLTX2RefinerTransformer3DModel
    from diffusers.pipelines.sana_wm.refiner import SanaWMLTX2Refiner

    transformer = SanaWMLTX2RefinerTransformer3DModel.from_pretrained(
        root / "transformer", torch_dtype=torch.float32, low_cpu_mem_usage=False
    )
    pipeline = SanaWMLTX2Refiner(
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=1.0),
        text_max_sequence_length=64,
        connectors=None,
        tokenizer=None,
        text_encoder=None,
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def refine(pipeline: Any, clean: Tensor, eps: Tensor, embeds: Tensor, mask: Tensor) -> Tensor:
    """Return the latents that the pipeline refines from given noise and embeddings."""
    from diffusers.pipelines.sana_wm import refiner as module

    options = resolve([PRESET]).settings.refiner
    given: Iterator[Tensor] = iter(eps.split(options.block_size, dim=2))
    pipeline._encode_prompt = lambda prompt, *, device, dtype: (embeds.to(device, dtype), mask)
    drawn = module.randn_tensor
    module.randn_tensor = lambda shape, **how: next(given).reshape(shape)
    try:
        return pipeline(
            clean,
            "",
            fps=FPS,
            sink_size=options.sink_size,
            block_size=options.block_size,
            kv_max_frames=options.kv_max_frames,
            sigmas=options.sigmas,
            output_type="latent",
        )
    finally:
        module.randn_tensor = drawn


def main(target: Path = TARGET) -> None:
    """Write the reference."""
    torch.set_num_threads(1)
    root = Path(resolve([PRESET]).get("model.refiner"))
    pipeline = public_refiner(root)
    config = pipeline.transformer.config
    generator = torch.Generator().manual_seed(2026)
    size = (1, config.in_channels, FRAMES, HEIGHT, WIDTH)
    clean = torch.randn(size, generator=generator)
    eps = torch.randn(size, generator=generator)[:, :, resolve([PRESET]).get("refiner.sink_size") :]
    embeds = torch.randn(1, TOKENS, config.caption_channels, generator=generator)
    mask = torch.ones(1, TOKENS, dtype=torch.int64)
    refined = refine(pipeline, clean, eps, embeds, mask)
    tensors = {
        "clean": clean,
        "eps": eps,
        "prompt_embeds": embeds,
        "prompt_mask": mask,
        "refined": refined,
    }
    metadata = {
        "made_by": f"diffusers {diffusers.__version__}, torch {torch.__version__}",
        "refiner": refiner_id(root),
        "fps": str(FPS),
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    save_file({k: v.contiguous() for k, v in tensors.items()}, target, metadata=metadata)
    target.chmod(0o644)
    print(f"{target}: {target.stat().st_size / 1e3:.0f} kB, refiner {metadata['refiner'][:16]}…")


if __name__ == "__main__":
    main()
