"""Compare two clips, pictures or latents, frame by frame; never both in memory.

comparison = compare_paths(Path("a.mp4"), Path("b.mp4"))
comparison.equal, comparison.clip.psnr, comparison.blocks[0].ssim
"""

from .compare import Comparison, compare_paths
from .rows import BlockPlan, BlockRow, Flicker, FrameRow
from .similarity import psnr, ssim

__all__ = [
    "BlockPlan",
    "BlockRow",
    "Comparison",
    "Flicker",
    "FrameRow",
    "compare_paths",
    "psnr",
    "ssim",
]
