"""What is this file? Latents, checkpoints, run states, trajectories, videos and the rest.

for line in inspect_path(Path("out.mp4")).text():
    print(line)
"""

from .finding import KINDS, Finding, Look, TensorRow
from .look import inspect_path
from .statistics import Statistics

__all__ = ["KINDS", "Finding", "Look", "Statistics", "TensorRow", "inspect_path"]
