"""Which model an engine runs: a digest of its configuration and of every byte of its weights.

Files are hashed once and remembered by path, size, inode and time of change, in a file of this user's.
"""
from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pathlib
import re
from typing import Any, Iterable

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_KNOWN_FORMATS = ("auto", "hf", "safetensors", "pt", "mistral")
_CHUNK = 16 << 20

# What a configuration says that no number in the KV depends on.
_HARMLESS = frozenset([
    "_name_or_path", "_commit_hash", "transformers_version", "architectures", "use_cache", "dtype", "torch_dtype",
    "bos_token_id", "eos_token_id", "pad_token_id", "return_dict", "output_attentions", "output_hidden_states",
    "id2label", "label2id", "problem_type", "initializer_range"])


def _remembered_file() -> pathlib.Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return pathlib.Path(base) / "aquifer" / "weights.json"


def _file_digest(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _name_of(path: str) -> str:
    facts = os.stat(path)
    return f"{os.path.realpath(path)}\0{facts.st_size}\0{facts.st_ino}\0{facts.st_ctime_ns}"


def names_of(paths: Iterable[str]) -> str:
    """Another text when one of the files was replaced or written to."""
    return "\0".join(map(_name_of, sorted(paths)))


def files_digest(paths: Iterable[str]) -> bytes:
    """Of the files' names and bytes. Processes that ask for the same files hash them once."""
    remembered = _remembered_file()
    remembered.parent.mkdir(parents=True, exist_ok=True)
    whole = hashlib.sha256()
    with open(remembered.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            known = json.loads(remembered.read_text())
        except (OSError, ValueError):
            known = {}
        before = dict(known)
        for path in sorted(paths):
            name = _name_of(path)
            if name not in known:
                known[name] = _file_digest(path)
            whole.update(f"{os.path.basename(path)}\0{known[name]}\0".encode())
        if known != before:
            new = remembered.with_suffix(".new")
            new.write_text(json.dumps(known))
            new.replace(remembered)
    return whole.digest()


def weight_files(folder: str) -> list[str]:
    return [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(_WEIGHTS)]


def _configuration(config: Any) -> bytes:
    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {str(k): plain(v) for k, v in value.items() if k not in _HARMLESS}
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return value if isinstance(value, (int, float, str, bool, type(None))) else str(value)
    return json.dumps(plain(config.to_dict()), sort_keys=True).encode()


def _digest_of_folder(folder: str) -> bytes:
    files = weight_files(folder)
    if not files:
        raise ValueError(f"{folder} has no weights, so nobody knows which model it is")
    return files_digest(files)


def _weights(vllm_config: Any) -> bytes:
    model = vllm_config.model_config
    load_format = str(getattr(vllm_config.load_config.load_format, "value", vllm_config.load_config.load_format))
    if getattr(model, "model_weights", None):
        raise ValueError("its weights come from object storage, where nobody knows what they are")
    if load_format == "dummy":
        if model.quantization is not None:
            raise ValueError("it has quantized dummy weights, which are not the same in every engine")
        # Each rank's shard begins its random numbers anew: another TP size is another model.
        return f"dummy\0{model.seed}\0{vllm_config.parallel_config.tensor_parallel_size}\0{_vllm_version()}".encode()
    if load_format not in _KNOWN_FORMATS:
        raise ValueError(f"its weights are loaded as {load_format}, and not from files that could be hashed")
    if os.path.isdir(model.model):
        return _digest_of_folder(model.model)
    if model.revision and re.fullmatch("[0-9a-f]{40}", model.revision):
        return f"revision\0{model.model}\0{model.revision}".encode()
    from huggingface_hub import snapshot_download  # The engine has it: it has just loaded the model.
    return _digest_of_folder(snapshot_download(model.model, revision=model.revision, local_files_only=True))


def _vllm_version() -> str:
    import vllm
    return str(vllm.__version__)


def model_digest(vllm_config: Any) -> bytes:
    """Reads every weight unless that was done before: not for a thread that others wait for."""
    model = vllm_config.model_config
    whole = hashlib.sha256(b"aquifer.vllm.model.v1\0")
    for part in (_configuration(model.hf_config), str(model.dtype).encode(), str(model.quantization).encode(),
                 str(model.max_model_len).encode(),  # Some rotary embeddings follow it.
                 _weights(vllm_config)):
        whole.update(len(part).to_bytes(8, "little") + part)
    return whole.digest()
