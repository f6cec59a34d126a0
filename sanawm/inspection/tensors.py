"""Files of tensors: latents, prompt embeddings, noise, run states, weights, arrays."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sanawm.errors import CheckpointError, InputError
from sanawm.io.latents import LATENTS_KEY, NOISE_KEY, LatentsSource
from sanawm.io.run_state import KEY as STATE_KEY
from sanawm.io.tensor_writer import dtype_code
from sanawm.tensorfile import MAX_HEADER, TensorFiles, fingerprint_file, list_some, read_header

from .finding import Finding, Look, TensorRow, dims, size_text
from .statistics import Statistics, pieces_of, statistics_of

if TYPE_CHECKING:
    import torch

EMBEDS, MASK, CAPTION = "prompt_embeds", "prompt_mask", "stage1_caption"
STAGE1_NOISE = "stage1_noise"
#: Tensors whose file `refine` reads as an input: a broken one is malformed input, not weights.
INPUT_TENSORS = (LATENTS_KEY, NOISE_KEY, STAGE1_NOISE, EMBEDS, CAPTION)
STAGE1 = "stage 1"
#: Names that only one component has, and what it is. The first match wins.
MARKS = (
    ("transformer_blocks.0.attn1.to_q.weight", "refiner transformer"),
    ("video_connector.learnable_registers", "text connectors of the refiner"),
    ("decoder.conv_in.conv.weight", "VAE"),
    ("x_embedder.proj.weight", STAGE1),
    ("embed_tokens.weight", "Gemma text encoder"),
)


def look_at_safetensors(path: Path, look: Look) -> Finding:
    """Describe a safetensors file by its header, and by its values with `look.stats`.

    Raises `CheckpointError` for a broken file, `InputError` when its names show that it is an input
    of `refine`.
    """
    try:
        infos, metadata = read_header(path)
    except CheckpointError as e:
        if path.suffix == ".state" or set(_peek_names(path)) & {*INPUT_TENSORS, STATE_KEY}:
            raise InputError(e.message, fix=e.fix) from None
        raise
    if STATE_KEY in metadata or path.suffix == ".state":
        from .state import look_at_state

        return look_at_state(path, look)
    if LATENTS_KEY in infos:
        return _latents(path, look)
    files = TensorFiles(path)
    if EMBEDS in infos or CAPTION in infos:
        found = _embeddings(path, files, look)
    elif set(infos) <= {NOISE_KEY, STAGE1_NOISE} and infos:
        found = _noise(path, files)
    else:
        found = _weights(path, files)
    found.data["metadata"] = metadata
    found.lines += [f"{k} {v}" for k, v in sorted(metadata.items()) if k != "format"]
    found.tensors = look.rows(file_rows(files), lambda name: _values(files.read(name)))
    files.close()
    return found


def _peek_names(path: Path) -> list[str]:
    """Return the names in the header of a broken safetensors file, as far as it can be read."""
    with path.open("rb") as f:
        length = int.from_bytes(f.read(8), "little")
        blob = f.read(length) if length <= MAX_HEADER else b""
    try:
        header = json.loads(blob)
        return [*header, *header.get("__metadata__", {})]
    except (ValueError, AttributeError, TypeError, RecursionError):
        return []


def file_rows(files: TensorFiles) -> list[TensorRow]:
    """Return the tensors of opened safetensors files, in the order of their names."""
    infos = sorted(files.infos.items())
    return [TensorRow(name, info.dtype, info.shape, info.nbytes) for name, info in infos]


def _values(tensor: torch.Tensor) -> Statistics:
    return statistics_of(pieces_of(tensor))


def _latents(path: Path, look: Look) -> Finding:
    """Describe latents in any of their formats; raise `InputError` where `refine` would."""
    source = LatentsSource.open(path)
    shape, metadata = source.shape, source.metadata
    per_value = {"float64": 8, "float32": 4}.get(source.dtype, 2)
    count = shape.batch * shape.channels * shape.frames * shape.tokens_per_frame
    rate = f", {metadata['fps']} frames per second" if "fps" in metadata else ""
    lines = [
        f"shape {dims(shape)} (batch, channels, latent frames, height, width), {source.dtype}, "
        f"{size_text(count * per_value)}",
        *(f"{key} {value}" for key, value in sorted(metadata.items()) if key != "fps"),
    ]
    title = f"latents, {shape.frames} latent frames of {shape.width}x{shape.height}{rate}"
    data = {"shape": list(shape), "dtype": source.dtype, "metadata": metadata}
    row = TensorRow(LATENTS_KEY, source.dtype, tuple(shape), count * per_value)
    asked = [row] if look.stats or look.keys is not None else []
    rows = look.rows(asked, lambda name: _values_by_frame(source))
    return Finding(path, "latents", title, lines, data, rows)


def _values_by_frame(source: LatentsSource) -> Statistics:
    """Return the values of latents, read a frame at a time; NaN are counted, not refused."""
    frames = range(source.shape.frames)
    return statistics_of(p for t in frames for p in pieces_of(source.unchecked(t, t + 1)))


def _embeddings(path: Path, files: TensorFiles, look: Look) -> Finding:
    infos = files.infos
    if EMBEDS in infos and MASK not in infos:
        raise InputError(
            f"{path}: {EMBEDS} without {MASK}", fix="write the file with --save-prompt-embeds"
        )
    if look.stats and EMBEDS in infos:
        from sanawm.text.embeddings import load_prompt_embeds

        load_prompt_embeds(path)  # for its checks of the values
    parts, data = [], {}
    if EMBEDS in infos:
        parts.append(f"the refiner ({dims(infos[EMBEDS].shape)})")
        data["refiner"] = list(infos[EMBEDS].shape)
    if CAPTION in infos:
        parts.append(f"stage 1 ({dims(infos[CAPTION].shape)})")
        data["stage1"] = list(infos[CAPTION].shape)
    return Finding(path, "prompt-embeds", f"prompt embeddings for {' and '.join(parts)}", data=data)


def _noise(path: Path, files: TensorFiles) -> Finding:
    who = {NOISE_KEY: "the refiner", STAGE1_NOISE: "stage 1"}
    parts = [f"{who[name]} ({dims(info.shape)})" for name, info in sorted(files.infos.items())]
    for name, info in files.infos.items():
        if len(info.shape) != 5:
            raise InputError(f"{path}: {name} has shape {info.shape}, expected five axes")
    return Finding(path, "noise", f"noise for {' and '.join(parts)}")


def _weights(path: Path, files: TensorFiles) -> Finding:
    names = list(files)
    what = component_of(names)
    print_ = files.fingerprint(component=what or "unknown")
    del print_["path"], print_["component"]
    title = f"weights, {what}" if what else "tensors of no known model"
    lines = weight_lines(file_rows(files))
    lines.append(f"hash {print_['header_sha256']}")
    return Finding(path, "weights", title, lines, {"component": what, **print_})


def component_of(names: Iterable[str]) -> str | None:
    """Return what model tensors of these names belong to, whatever stands in front of them."""
    found = list(names)
    for mark, what in MARKS:
        if any(name == mark or name.endswith("." + mark) for name in found):
            return what
    return None


def weight_lines(rows: list[TensorRow]) -> list[str]:
    """Return count, dtypes and sizes of weights, and their largest groups."""
    kinds = Counter(row.dtype for row in rows)
    shown = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    total = sum(row.nbytes for row in rows)
    lines = [f"{len(rows)} tensors ({shown or 'none'}), {size_text(total)}"]
    groups: Counter[str] = Counter()
    for row in rows:
        groups[row.name.split(".")[0]] += row.nbytes
    if len(groups) > 1:
        top = [f"{name} {size_text(size)}" for name, size in groups.most_common()]
        lines.append(f"largest parts: {list_some(top, 6)}")
    return lines


def look_at_pt(path: Path, look: Look) -> Finding:
    """Describe a `.pt` file read by torch's weights-only loader: latents, or a checkpoint."""
    import torch

    from sanawm.checkpoint import read_pt
    from sanawm.stage1.weights import CONTAINERS, read_generator

    content = read_pt(path)
    holds_latents = isinstance(content, Mapping) and LATENTS_KEY in content
    if isinstance(content, torch.Tensor) or holds_latents:
        return _latents(path, look)
    tensors = read_generator(path)
    rows = [tensor_row(name, tensor) for name, tensor in sorted(tensors.items())]
    what = component_of(tensors)
    data: dict[str, Any] = {"component": what, "bytes": path.stat().st_size, "entries": None}
    lines = weight_lines(rows)
    entry = next((c for c in CONTAINERS if isinstance(content, Mapping) and c in content), None)
    if entry is not None:
        others = [str(k) for k in content if k != entry]
        beside = f" (beside it: {list_some(others)})" if others else ""
        lines.insert(0, f"of the entry `{entry}`{beside}, names without `model.`")
        data["entries"] = [str(k) for k in content]
    digest = fingerprint_file(path, component=what or "unknown")["header_sha256"]
    data["header_sha256"] = digest
    lines.append(f"hash {digest}")
    lines.append("sanawm inspect FILE --convert OUT.safetensors writes it without pickle")
    listed = look.rows(rows, lambda name: _values(tensors[name]))
    title = f"torch checkpoint, {what or 'no known model'}"
    return Finding(path, "weights", title, lines, data, listed)


def tensor_row(name: str, tensor: torch.Tensor) -> TensorRow:
    """Return the row of a tensor in memory; its dtype goes by the name that safetensors has."""
    code = dtype_code(tensor.dtype) or str(tensor.dtype).removeprefix("torch.")
    return TensorRow(name, code, tuple(tensor.shape), tensor.nbytes)


def look_at_array(path: Path, look: Look, trajectory: Callable[[Path, Look], Finding]) -> Finding:
    """Describe a `.npy` or `.npz`: latents, intrinsics, or else a trajectory."""
    from sanawm.camera.arrayfile import npy_shape, read_npz

    if path.suffix.lower() == ".npz":
        with read_npz(path) as archive:
            if LATENTS_KEY in archive.names:
                return _latents(path, look)
        return trajectory(path, look)
    shape = npy_shape(path)
    if len(shape) == 5:
        return _latents(path, look)
    lens = shape in ((4,), (3, 3)) or (len(shape) == 2 and shape[1] == 4) or shape[1:] == (3, 3)
    return _intrinsics(path) if lens else trajectory(path, look)


def _intrinsics(path: Path) -> Finding:
    from sanawm.camera.intrinsics import read_intrinsics
    from sanawm.notes import Notes

    lens = read_intrinsics(path, notes=Notes())
    first = " ".join(f"{v:g}" for v in lens[0])
    title = f"intrinsics of {len(lens)} frame{'s' if len(lens) > 1 else ''}"
    data = {"frames": len(lens), "first": [float(v) for v in lens[0]]}
    return Finding(path, "intrinsics", title, [f"first fx fy cx cy = {first} (pixels)"], data)
