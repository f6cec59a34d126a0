"""Versions, devices, memory and disks."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

from sanawm import __version__
from sanawm.errors import SanawmError
from sanawm.estimate import MemoryEstimate
from sanawm.io.files import free_space
from sanawm.measure import capacity_bytes, memory_bytes
from sanawm.notes import counted

from .check import Check

#: Below this much free memory or disk a run is likely to fail, bytes; below the second it may.
LEAST_MEMORY, LITTLE_MEMORY = 512 << 20, 2 << 30
LEAST_DISK, LITTLE_DISK = 64 << 20, 2 << 30


def check_versions() -> Check:
    """Compare the installed packages with what this version of sanawm asks for."""
    from packaging.requirements import Requirement

    found = {"python": platform.python_version(), "sanawm": __version__}
    wrong: list[str] = []
    try:
        needed = [Requirement(text) for text in metadata.requires("sanawm") or []]
    except metadata.PackageNotFoundError:
        needed = []
    for one in needed:
        if one.marker is not None and not one.marker.evaluate({"extra": ""}):
            continue
        version = _version(one.name)
        found[one.name] = version or "missing"
        if version is None:
            wrong.append(f"{one.name} is missing")
        elif not one.specifier.contains(version, prereleases=True):
            wrong.append(f"{one.name} {version} (expected {one.specifier})")
    found["ffmpeg"] = _ffmpeg()
    main = ", ".join(f"{n} {found[n]}" for n in ("sanawm", "python", "torch", "av") if n in found)
    others = ", ".join(f"{n} {v}" for n, v in found.items() if f"{n} {v}" not in main)
    if wrong:
        fix = "install sanawm again with pip in a fresh environment"
        return Check("versions", "FAIL", "; ".join(wrong), fix, (main, others), {"versions": found})
    return Check("versions", "ok", main, None, (others,), {"versions": found})


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _ffmpeg() -> str:
    """Return the version of FFmpeg's codec library that PyAV brings."""
    import av

    return "libavcodec " + ".".join(map(str, av.library_versions["libavcodec"]))


def check_devices(wanted: str) -> Check:
    """List processor and CUDA devices; fail when the device of the settings is not there."""
    import torch

    from sanawm.components import choose_device

    threads = torch.get_num_threads()
    cards = [_card(i) for i in range(torch.cuda.device_count())] if _has_cuda() else []
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "a CPU build"
    data: dict[str, Any] = {
        "cpu": _processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "cuda": cards,
        "torch_build": build,
    }
    lines = [f"cuda:{i}  {c['name']}, {c['bytes'] / 1e9:.1f} GB" for i, c in enumerate(cards)]
    counts = f"{counted(data['cores'] or 'unknown', 'core')}, {counted(threads, 'thread')}"
    found = f"{data['cpu']}, {counts}; torch is {build}"
    try:
        chosen = choose_device(wanted)
    except SanawmError as e:
        return Check("devices", "FAIL", e.message, e.fix, (found, *lines), data)
    data["chosen"] = str(chosen)
    return Check("devices", "ok", f"{found}; runs use {chosen}", None, tuple(lines), data)


def _has_cuda() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def _card(number: int) -> dict[str, Any]:
    import torch

    properties = torch.cuda.get_device_properties(number)
    return {"name": properties.name, "bytes": properties.total_memory}


def _processor() -> str:
    """Return the processor's name."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def check_memory(needed: MemoryEstimate | None = None) -> Check:
    """Say how much main memory is free, and what a run is thought to take, on a card or here."""
    free, total = memory_bytes()
    if total == 0:
        return Check("memory", "note", "this system does not say how much memory it has")
    found = f"{free / 1e9:.1f} of {total / 1e9:.1f} GB free"
    data = {"free_bytes": free, "total_bytes": total}
    if needed is not None:
        there = capacity_bytes(needed.device)
        data["needed_bytes"] = needed.peak
        found += f"; a run takes about {needed.peak / 1e9:.1f} GB ({needed.where})"
        if there and needed.peak > there:
            if needed.device.type == "cuda":
                found += f", the card has {there / 1e9:.1f} GB"
            return Check("memory", "FAIL", found, needed.ways_to_less, data=data)
        if needed.device.type == "cpu" and needed.peak > free:
            return Check("memory", "note", found, "end other programs", data=data)
    if free < LEAST_MEMORY:
        return Check("memory", "FAIL", found, "end other programs", data=data)
    if free < LITTLE_MEMORY:
        return Check("memory", "note", found, "the released models need far more", data=data)
    return Check("memory", "ok", found, data=data)


def check_disk(name: str, folder: Path, *, fetched: int = 0) -> Check:
    """Say how much room a folder has, and whether it can be written to.

    fetched: bytes that the first run fetches into it from the hub.
    """
    place = folder.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    free = free_space(folder)
    found = f"{folder}: {free / 1e9:.1f} GB free"
    data = {"path": str(folder), "exists": folder.exists(), "free_bytes": free}
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        fix = "choose a folder that you may write to"
        return Check(name, "FAIL", f"{folder}: cannot be written to", fix, data=data)
    if fetched:
        data["fetched_bytes"] = fetched
        found += f"; the first run fetches about {fetched / 1e9:.0f} GB into it"
        if free < fetched:
            fix = "free some space, or choose another disk with HF_HOME=FOLDER"
            return Check(name, "FAIL", found, fix, data=data)
    if free < LEAST_DISK:
        return Check(name, "FAIL", found, "free some space, or use another disk", data=data)
    if free < LITTLE_DISK:
        return Check(name, "note", found, "long or large clips may not fit", data=data)
    return Check(name, "ok", found, data=data)
