"""Folders of a release: the refiner, its parts, the VAE, text encoders, stage 1.

Headers and names are compared with the architecture that the folder's own settings describe, on
torch's meta device: a folder that is described here is complete.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sanawm.errors import CheckpointError, MissingFile, SanawmError
from sanawm.matching import match_stage1, match_transformer, match_vae
from sanawm.notes import Notes
from sanawm.tensorfile import TensorFiles, read_json

from .finding import Finding, Look
from .statistics import pieces_of, statistics_of
from .tensors import STAGE1, component_of, file_rows, look_at_pt, weight_lines

CONNECTORS = "LTX2TextConnectors"
REFINERS = ("LTX2VideoTransformer3DModel", "SanaWMLTX2RefinerTransformer3DModel")
VAES = ("AutoencoderKLCausalLTX2Video", "AutoencoderKLLTX2Video")


def look_at_checkpoint(folder: Path, look: Look, notes: Notes) -> Finding | None:
    """Describe the checkpoint in a folder; None when it holds none.

    Raises `CheckpointError` or `MissingFile` where loading it would fail.
    """
    if (folder / "transformer" / "config.json").is_file():
        return _refiner_root(folder, look, notes)
    if (folder / "model.pt").is_file() or (folder / "config.yaml").is_file():
        return _stage1(folder, look, notes)
    config = folder / "config.json"
    if config.is_file():
        return _by_config(folder, read_json(config), look, notes)
    release = _release(folder, look, notes)
    bare = release is None and any(folder.glob("*.safetensors"))
    if bare and component_of(TensorFiles(folder)) == STAGE1:
        return _stage1(folder, look, notes)
    return release


def _by_config(folder: Path, config: dict[str, Any], look: Look, notes: Notes) -> Finding:
    """Describe a component by what its `config.json` says it is."""
    name, kind = config.get("_class_name"), config.get("model_type")
    if name == CONNECTORS:
        return _connectors(folder, look)
    if name in REFINERS:
        return _transformer(folder, look, notes)
    if name in VAES:
        return _vae(folder, look, notes)
    if isinstance(kind, str) and kind.startswith("gemma"):
        return _gemma(folder, kind, look)
    raise CheckpointError(
        f"{folder / 'config.json'}: {name or kind or 'no model named'} is no part of SANA-WM",
        fix=f"expected {REFINERS[0]}, {CONNECTORS}, {VAES[0]} or a Gemma",
    )


def _describe(
    folder: Path, files: TensorFiles, look: Look, *, component: str, title: str, lines: list[str]
) -> Finding:
    """Return the finding of one component whose files were checked."""
    rows = file_rows(files)
    data = {"component": component, **files.fingerprint(component=component)}
    listed = look.rows(rows, lambda name: statistics_of(pieces_of(files.read(name))))
    files.close()
    lines = [*lines, *weight_lines(rows), f"hash {data['header_sha256']}"]
    return Finding(folder, "checkpoint", title, lines, data, listed)


def _transformer(folder: Path, look: Look, notes: Notes) -> Finding:
    from sanawm.refiner.config import RefinerConfig

    config = RefinerConfig.from_json(folder / "config.json")
    files, used = match_transformer(folder, config, notes=notes)
    title = f"refiner transformer, {config.num_layers} layers x {config.width}, complete"
    lines = [
        f"{config.num_attention_heads} heads x {config.attention_head_dim}, "
        f"{config.in_channels} latent channels, VAE ratios "
        f"{'x'.join(map(str, config.vae_scale_factors))}, rope {config.rope_type}",
        f"{len(used)} tensors are read by the video pass, {len(list(files)) - len(used)} are not",
    ]
    return _describe(folder, files, look, component="refiner/transformer", title=title, lines=lines)


def _connectors(folder: Path, look: Look) -> Finding:
    from sanawm.text.connectors import check_connectors

    config = check_connectors(folder)
    title = f"text connectors of the refiner, width {config.width}, complete"
    files = TensorFiles(folder)
    return _describe(folder, files, look, component="refiner/connectors", title=title, lines=[])


def _vae(folder: Path, look: Look, notes: Notes) -> Finding:
    from sanawm.vae import VAEConfig

    config = VAEConfig.from_json(folder / "config.json", notes=notes)
    files = match_vae(folder, config, notes=notes)
    causal = "causal" if config.decoder_causal else "not causal (sees later frames)"
    ratios = config.ratios
    title = f"VAE, {config.latent_channels} latent channels, {causal}, complete"
    lines = [f"{ratios.time} frames and {ratios.space}x{ratios.space} pixels a latent"]
    return _describe(folder, files, look, component="vae", title=title, lines=lines)


def _gemma(folder: Path, kind: str, look: Look) -> Finding:
    from sanawm.text.gemma import GEMMA2, GEMMA3, read_gemma_config

    family = GEMMA2 if kind in GEMMA2.kinds else GEMMA3
    info = read_gemma_config(folder, family=family)
    user = "the refiner" if family is GEMMA3 else "stage 1"
    title = f"{family.name} text encoder for {user}, {info.layers} layers x {info.width}"
    tokenizer = [n for n in ("tokenizer.json", "tokenizer.model") if (folder / n).is_file()]
    if not tokenizer:
        raise MissingFile(f"{folder}: no tokenizer.json or tokenizer.model", fix="fetch it again")
    lines = [f"tokenizer {', '.join(tokenizer)}"]
    files = TensorFiles(folder)
    return _describe(folder, files, look, component=kind, title=title, lines=lines)


def _stage1(folder: Path, look: Look, notes: Notes) -> Finding:
    """Describe a stage-1 folder; its tensors are compared with its YAML, or with the release's."""
    from sanawm.stage1.config import Stage1Config
    from sanawm.stage1.weights import open_stage1, weights_file

    yaml = folder / "config.yaml"
    config = Stage1Config.from_file(yaml, notes=notes) if yaml.is_file() else None
    file = weights_file(folder)
    shape = config or Stage1Config.released()
    fit = f"complete for {yaml.name}" if config else "complete for the released architecture"
    try:
        source = match_stage1(file, shape, notes=notes)
    except CheckpointError:
        if config is not None:
            raise
        source = open_stage1(file)  # raises again when the file itself cannot be read
        fit = "of another architecture than the released one; its YAML is not in this folder"
    title = f"stage 1 weights, {fit}"
    line = f"{shape.depth} blocks x {shape.width}, {shape.latent_channels} latent channels"
    lines = [line] if config else []
    if isinstance(source, TensorFiles):
        return _describe(folder, source, look, component="stage1", title=title, lines=lines)
    found = look_at_pt(file, look)
    return Finding(folder, "checkpoint", title, lines + found.lines, found.data, found.tensors)


def _refiner_root(folder: Path, look: Look, notes: Notes) -> Finding:
    """Describe a refiner root: `transformer/` and `connectors/`."""
    transformer = _transformer(folder / "transformer", look, notes)
    parts = [transformer]
    if (folder / "connectors").is_dir():
        parts.append(_connectors(folder / "connectors", look))
    missing = [] if len(parts) == 2 else ["no connectors/: prompts cannot be encoded"]
    return _joined(folder, "refiner", parts, missing)


def _release(folder: Path, look: Look, notes: Notes) -> Finding | None:
    """Describe a folder of components; None when none of its folders is one."""
    parts: list[Finding] = []
    broken: list[str] = []
    for child in sorted(p for p in folder.iterdir() if p.is_dir()):
        holds = (child / "config.json", child / "transformer" / "config.json", child / "model.pt")
        if not any(p.is_file() for p in holds):
            continue
        try:
            found = look_at_checkpoint(child, look, notes)
        except SanawmError as e:
            broken.append(f"broken: {e.message}")
            continue
        if found is not None:
            parts.append(found)
    if not parts and not broken:
        return None
    if not parts:
        raise CheckpointError(f"{folder}: {broken[0].removeprefix('broken: ')}")
    return _joined(folder, "models", parts, broken)


def _joined(folder: Path, what: str, parts: list[Finding], lines: list[str]) -> Finding:
    """Return one finding of several components in a folder."""
    title = f"{what}: {', '.join(p.path.name for p in parts)}"
    text = []
    for part in parts:
        text += [f"{part.path.name}/: {part.title}", *(f"  {line}" for line in part.lines)]
    tensors = [t._replace(name=f"{p.path.name}/{t.name}") for p in parts for t in p.tensors]
    data = {"components": [p.as_dict() for p in parts], "problems": lines}
    return Finding(folder, "checkpoint", title, text + lines, data, tensors)
