"""Write a tiny but real Gemma-2 in the layout of its Hugging Face repository.

`make_tiny_gemma2` serves the maker of the embedded preset and the tests. Everything follows from
its arguments: same arguments, same bytes. The folder looks like `gemma-2-2b-it`: class
`Gemma2ForCausalLM`, tensor names `model.*` without an output head (it is tied to the embedding),
bfloat16 shards, and the tokenizer of `tiny_gemma`.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .tiny_gemma import SPECIAL, write_json, write_shards, write_tokenizer

#: Entries of the tokenizer settings that only Gemma-3 has.
_PICTURE_ROLES = ("boi_token", "eoi_token", "image_token")


def make_tiny_gemma2(
    folder: Path,
    *,
    seed: int = 0,
    vocab: int = 640,
    hidden: int = 32,
    layers: int = 2,
    heads: int = 2,
    kv_heads: int = 1,
    head_dim: int = 16,
    intermediate: int = 64,
    sliding_window: int = 4096,
    shards: int = 2,
    dtype: torch.dtype = torch.bfloat16,
) -> Path:
    """Write the model and its tokenizer to `folder` and return it.

    hidden: text width E (a multiple of `heads`), the DiT's caption width. vocab: rows of the
    embedding (>= 400); the tokenizer uses at most that many. shards: 1 writes a single
    `model.safetensors`, more write shards and their index.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = tiny_config2(
        {
            "head_dim": head_dim,
            "hidden_size": hidden,
            "intermediate_size": intermediate,
            "num_attention_heads": heads,
            "num_hidden_layers": layers,
            "num_key_value_heads": kv_heads,
            "query_pre_attn_scalar": head_dim,
            "sliding_window": sliding_window,
            "vocab_size": vocab,
        },
        dtype=dtype,
    )
    write_json(folder / "config.json", config)
    weights = _random_weights(config, seed=seed, dtype=dtype)
    if shards == 1:
        _write_single(folder, weights)
    else:
        write_shards(folder, weights, shards=shards)
    write_tokenizer(folder, vocab=vocab)
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        settings = json.loads((folder / name).read_text(encoding="utf-8"))
        kept = {key: value for key, value in settings.items() if key not in _PICTURE_ROLES}
        write_json(folder / name, kept)
    return folder


def tiny_config2(sizes: dict[str, int], *, dtype: torch.dtype) -> dict[str, Any]:
    """Return `config.json` in the form of the release (written by transformers 4)."""
    return {
        "architectures": ["Gemma2ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_logit_softcapping": 50.0,
        "bos_token_id": SPECIAL.index("<bos>"),
        "cache_implementation": "hybrid",
        "eos_token_id": [SPECIAL.index("<eos>"), SPECIAL.index("<end_of_turn>")],
        "final_logit_softcapping": 30.0,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "initializer_range": 0.02,
        "max_position_embeddings": 8192,
        "model_type": "gemma2",
        "pad_token_id": SPECIAL.index("<pad>"),
        "rms_norm_eps": 1e-06,
        "rope_theta": 10000.0,
        "torch_dtype": str(dtype).removeprefix("torch."),
        "use_cache": True,
        **sizes,
    }


def _random_weights(config: dict[str, Any], *, seed: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return seeded weights under the released names, scaled so that states stay near 1."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    with torch.device("meta"):
        model = Gemma2ForCausalLM(Gemma2Config.from_dict(config))
    generator = torch.Generator().manual_seed(seed)
    weights: dict[str, Tensor] = {}
    for name, value in sorted(model.state_dict().items()):
        if name == "lm_head.weight":  # tied to the embedding, so the release does not store it
            continue
        draw = torch.randn(value.shape, generator=generator)
        scale = 0.1 if value.ndim == 1 else 1 / math.sqrt(value[0].numel())
        weights[name] = (draw * scale).to(dtype)
    return weights


def _write_single(folder: Path, weights: dict[str, Tensor]) -> None:
    from safetensors.torch import save_file

    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
