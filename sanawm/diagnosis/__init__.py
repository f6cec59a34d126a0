"""Check the machine before a run: versions, devices, codecs, memory, disk, config, arithmetic."""

from .check import Check, Status
from .examine import examine

__all__ = ["Check", "Status", "examine"]
