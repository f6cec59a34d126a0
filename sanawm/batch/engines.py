"""Choose and start the engine of a batch."""

from __future__ import annotations

import os

import torch

from sanawm.components import choose_device
from sanawm.notes import Notes

from .engine import Engine, OnBlock
from .jobs import WorkerSetup
from .local import VISIBLE, LocalEngine
from .request import BatchRequest


def start_engine(
    request: BatchRequest,
    *,
    devices: set[str],
    threads: set[int | None],
    most: int,
    notes: Notes,
    on_block: OnBlock,
) -> Engine:
    """Start the workers that `request` asks for, at most `most`.

    devices, threads: what the jobs' settings name (`auto`, `cuda:1`). Raises `MachineError`.
    """
    own = torch.get_num_threads()
    setup = WorkerSetup(cache=request.cache, threads=own, command=request.command)
    if request.engine == "ray":
        from .ray_engine import RayEngine

        return RayEngine(
            request.jobs,
            setup,
            most=most,
            notes=notes,
            address=request.ray_address,
            gpus=request.gpus_per_job,
            cpus=request.cpus_per_job,
        )
    cuda = any(choose_device(name).type == "cuda" for name in devices)
    count = torch.cuda.device_count() if cuda else 0
    # Jobs that name their devices must see them all, unless each is told how many it gets.
    chosen = any(":" in name for name in devices) and request.gpus_per_job is None
    each = 1 if request.gpus_per_job is None else int(request.gpus_per_job)
    slots = request.jobs or (max(count // max(each, 1), 1) if count and not chosen else 1)
    slots = min(slots, most)
    masks = None
    if count and not chosen:
        masks = device_masks(slots, count=count, each=each, visible=os.environ.get(VISIBLE))
        if slots * each > count:
            notes.warn(f"{slots} processes of {each} devices share {count} CUDA devices")
    cores = os.cpu_count() or 1
    if not count and None in threads and slots * own > cores and slots > 1:
        notes.info(
            f"{slots} processes on {cores} cores: jobs that set no threads use {own} each "
            "(--cpus-per-job sets them)"
        )
    return LocalEngine(slots, setup, notes=notes, on_block=on_block, devices=masks)


def device_masks(slots: int, *, count: int, each: int, visible: str | None) -> list[str]:
    """Return what each process sees as CUDA_VISIBLE_DEVICES: `each` of `count` devices, in turn.

    `visible` is the batch's own CUDA_VISIBLE_DEVICES, whose names are kept.
    """
    names = [n.strip() for n in visible.split(",")][:count] if visible else []
    names = names or [str(n) for n in range(count)]
    return [",".join(names[(s * each + k) % count] for k in range(each)) for s in range(slots)]
