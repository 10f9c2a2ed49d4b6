"""What a model's configuration says that its KV depends on, as bytes to hash."""
from __future__ import annotations

import json
from typing import Any

# What no number in the KV depends on.
_HARMLESS = frozenset([
    "_name_or_path", "_commit_hash", "transformers_version", "architectures", "use_cache", "dtype", "torch_dtype",
    "bos_token_id", "eos_token_id", "pad_token_id", "return_dict", "output_attentions", "output_hidden_states",
    "id2label", "label2id", "problem_type", "_attn_implementation_autoset", "initializer_range"])


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items() if k not in _HARMLESS}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if isinstance(value, (int, float, str, bool, type(None))) else str(value)


def configuration_bytes(config: Any) -> bytes:
    """Of a Hugging Face configuration; the same for the same model in every process."""
    return json.dumps(_plain(config.to_dict()), sort_keys=True).encode()
