"""Write a tiny but real Gemma-3 in the released layout: config, shards with index, tokenizer.

`make_tiny_gemma` serves the maker of the embedded preset and the tests. Everything follows
from its arguments: same arguments, same bytes. The folder looks like `gemma3_12b/` of the release:
class `Gemma3ForConditionalGeneration` with a vision tower that nobody needs, tensor names
`language_model.model.*`, bfloat16 shards, and a byte-fallback BPE tokenizer in Gemma's form.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

#: Ids 0 to 9; the first five stand where Gemma has them.
SPECIAL = (
    "<pad>", "<eos>", "<bos>", "<unk>", "<mask>",
    "<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<end_of_image>", "<image_soft_token>",
)  # fmt: skip
_ROLES = {
    "pad_token": "<pad>",
    "eos_token": "<eos>",
    "bos_token": "<bos>",
    "unk_token": "<unk>",
    "boi_token": "<start_of_image>",
    "eoi_token": "<end_of_image>",
    "image_token": "<image_soft_token>",
}
#: Words that scene descriptions are made of; the tokenizer's merges are trained on sentences of
#: them.
COLOURS = (
    "red", "orange", "yellow", "green", "blue", "violet", "purple", "pink", "brown", "white",
    "grey", "black", "golden", "silver", "turquoise", "dark", "bright", "pale",
)  # fmt: skip
THINGS = (
    "tower", "house", "castle", "bridge", "tree", "forest", "mountain", "river", "lake", "stone",
    "wall", "gate", "garden", "street", "field", "meadow", "cliff", "island", "lighthouse",
    "harbour", "village", "temple", "statue", "fountain", "column", "cube", "sphere", "cone",
    "pyramid", "cylinder", "wooden fence", "flower", "window", "roof", "path", "valley",
)  # fmt: skip
PLACES = (
    "ground", "grass", "sand", "snow", "water", "rock", "pavement", "desert", "beach", "hill",
)  # fmt: skip
SKIES = (
    "sky", "sunset", "sunrise", "clouds", "storm", "fog", "mist", "moonlight", "evening light",
    "morning sun", "rain", "stars",
)  # fmt: skip
MOTIONS = (
    "The camera moves forward", "The camera turns to the left", "The camera turns to the right",
    "The camera looks up", "The camera looks down", "The view glides slowly around it",
    "We walk along the path", "The scene is quiet and still", "Wind moves the leaves",
    "Long shadows fall across the scene", "A first-person view of an open world",
    "Photorealistic, detailed, high quality, cinematic lighting",
)  # fmt: skip


def make_tiny_gemma(
    folder: Path,
    *,
    seed: int = 0,
    vocab: int = 640,
    hidden: int = 32,
    layers: int = 3,
    heads: int = 2,
    kv_heads: int = 1,
    head_dim: int = 16,
    intermediate: int = 64,
    sliding_window: int = 1024,
    sliding_window_pattern: int = 6,
    shards: int = 2,
    dtype: torch.dtype = torch.bfloat16,
) -> Path:
    """Write the model and its tokenizer to `folder` and return it.

    hidden: text width E (a multiple of `heads`); layers: decoder layers, so layers + 1 states.
    vocab: rows of the embedding (>= 400); the tokenizer uses at most that many.
    """
    folder.mkdir(parents=True, exist_ok=True)
    text: dict[str, Any] = {
        "head_dim": head_dim,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "model_type": "gemma3_text",
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "query_pre_attn_scalar": head_dim,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": sliding_window,
        "sliding_window_pattern": sliding_window_pattern,
        "vocab_size": vocab,
    }
    config = tiny_config(text, dtype=dtype)
    write_json(folder / "config.json", config)
    write_shards(folder, random_weights(config, seed=seed, dtype=dtype), shards=shards)
    write_tokenizer(folder, vocab=vocab)
    return folder


def tiny_config(text: dict[str, Any], *, dtype: torch.dtype) -> dict[str, Any]:
    """Return `config.json` in the form of the release (written by transformers 4)."""
    return {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "boi_token_index": SPECIAL.index("<start_of_image>"),
        "eoi_token_index": SPECIAL.index("<end_of_image>"),
        "eos_token_id": [SPECIAL.index("<eos>"), SPECIAL.index("<end_of_turn>")],
        "image_token_index": SPECIAL.index("<image_soft_token>"),
        "initializer_range": 0.02,
        "mm_tokens_per_image": 1,
        "model_type": "gemma3",
        "text_config": text,
        "torch_dtype": str(dtype).removeprefix("torch."),
        "vision_config": {
            "hidden_size": 8,
            "image_size": 8,
            "intermediate_size": 8,
            "model_type": "siglip_vision_model",
            "num_attention_heads": 1,
            "num_hidden_layers": 1,
            "patch_size": 4,
            "vision_use_head": False,
        },
    }


def random_weights(config: dict[str, Any], *, seed: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return seeded weights under the released names, scaled so that states stay near 1."""
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    with torch.device("meta"):
        model = Gemma3ForConditionalGeneration(Gemma3Config.from_dict(config))
    generator = torch.Generator().manual_seed(seed)
    weights: dict[str, Tensor] = {}
    for name, value in sorted(model.state_dict().items()):
        if name == "lm_head.weight":  # tied to the embedding, so the release does not store it
            continue
        draw = torch.randn(value.shape, generator=generator)
        scale = 0.1 if value.ndim == 1 else 1 / math.sqrt(value[0].numel())
        weights[released_name(name)] = (draw * scale).to(dtype)
    return weights


def released_name(name: str) -> str:
    """Return the name in the released files for a name in transformers 5."""
    for ours, theirs in (
        ("model.language_model.", "language_model.model."),
        ("model.vision_tower.", "vision_tower.vision_model."),
        ("model.multi_modal_projector.", "multi_modal_projector."),
    ):
        if name.startswith(ours):
            return theirs + name[len(ours) :]
    raise ValueError(name)


def write_shards(folder: Path, weights: dict[str, Tensor], *, shards: int) -> None:
    """Write `weights` as numbered shards of about equal size, with their index."""
    from safetensors.torch import save_file

    total = sum(t.nbytes for t in weights.values())
    parts: list[dict[str, Tensor]] = [{} for _ in range(shards)]
    done = 0
    for name, tensor in weights.items():
        parts[min(done * shards // total, shards - 1)][name] = tensor
        done += tensor.nbytes
    weight_map: dict[str, str] = {}
    for number, part in enumerate(parts, 1):
        file = f"model-{number:05d}-of-{shards:05d}.safetensors"
        save_file(part, str(folder / file), metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    write_json(folder / "model.safetensors.index.json", index)


def corpus() -> list[str]:
    """Return sentences in which every word of the lists occurs, in a fixed order."""
    sentences = list(MOTIONS)
    for i in range(len(COLOURS) * len(THINGS)):
        colour, other = COLOURS[i % len(COLOURS)], COLOURS[(i * 5 + 3) % len(COLOURS)]
        thing, place = THINGS[i % len(THINGS)], PLACES[(i * 3) % len(PLACES)]
        sky, motion = SKIES[(i * 7) % len(SKIES)], MOTIONS[i % len(MOTIONS)]
        sentences.append(
            f"a {colour} and {other} {thing} on {other} {place} under a {colour} {sky}, "
            f"with the {THINGS[(i * 11 + 5) % len(THINGS)]} in the distance. {motion}."
        )
    return sentences


def write_tokenizer(folder: Path, *, vocab: int) -> None:
    """Train the BPE on `corpus` and write `tokenizer.json` and its companions in Gemma's form."""
    from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors
    from tokenizers.models import BPE

    words, merges = _train_merges(vocab - len(SPECIAL) - 256)
    names = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    model = BPE(
        vocab={name: i for i, name in enumerate(names)},
        merges=merges,
        unk_token="<unk>",
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[("<bos>", 2)]
    )
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    settings: dict[str, Any] = {
        "add_bos_token": True,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1000000000000000019884624838656,
        "spaces_between_special_tokens": False,
        "tokenizer_class": "GemmaTokenizer",
        **_ROLES,
    }
    write_json(folder / "tokenizer_config.json", settings)
    write_json(folder / "special_tokens_map.json", _ROLES)


def _train_merges(count: int) -> tuple[list[str], list[tuple[str, str]]]:
    """Return at most `count` vocabulary entries (letters first, then merges) and the merges."""
    from tokenizers import Tokenizer, normalizers, pre_tokenizers
    from tokenizers.models import BPE
    from tokenizers.trainers import BpeTrainer

    tokenizer = Tokenizer(BPE())
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")  # merges within words
    letters = [chr(c) for c in range(0x21, 0x7F)] + ["▁", "\n"]
    trainer = BpeTrainer(
        vocab_size=count, initial_alphabet=letters, show_progress=False, special_tokens=[]
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    state = json.loads(tokenizer.to_str())["model"]
    words = sorted(state["vocab"], key=state["vocab"].__getitem__)
    return words, [(a, b) for a, b in state["merges"]]


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Write `data` as indented UTF-8 JSON."""
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
