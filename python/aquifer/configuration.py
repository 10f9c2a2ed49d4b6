"""What a model's configuration says that its KV depends on, as bytes to hash."""
from __future__ import annotations

import json
from typing import Any

TOKEN_IDS = frozenset(["bos_token_id", "eos_token_id", "pad_token_id"])  # As a rule they only say where texts end.
# What no number in the KV depends on.
_HARMLESS = TOKEN_IDS | frozenset([
    "_name_or_path", "_commit_hash", "transformers_version", "architectures", "use_cache", "dtype", "torch_dtype",
    "return_dict", "output_attentions", "output_hidden_states", "id2label", "label2id", "problem_type",
    "_attn_implementation_autoset", "initializer_range"])


def _plain(value: Any, harmless: frozenset[str], may_be_config: bool = True, is_config: bool = False) -> Any:
    """What is harmless is so in the configuration of a model, and of a model inside of it, which has a type; by the same
    names something else may be said elsewhere: how activations are quantised has a "dtype"."""
    if isinstance(value, dict):
        drops = is_config or (may_be_config and "model_type" in value)
        return {str(k): _plain(v, harmless, may_be_config and k != "quantization_config") for k, v in value.items()
                if not (drops and k in harmless)}
    if isinstance(value, (list, tuple)):
        return [_plain(item, harmless, may_be_config) for item in value]
    return value if isinstance(value, (int, float, str, bool, type(None))) else str(value)


def configuration_bytes(config: Any, but_for: frozenset[str] = frozenset()) -> bytes:
    """Of a Hugging Face configuration; the same for the same model in every process. `but_for`: these count here, though
    elsewhere they are harmless."""
    return json.dumps(_plain(config.to_dict(), _HARMLESS - but_for, is_config=True), sort_keys=True).encode()
