"""Which model an engine runs: a digest of its configuration and of every byte of its weights.

Files are hashed once and remembered by path, size, inode and time of change, in a file of this user's.
"""
from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import re
from typing import Any, Iterable, Iterator

from ..configuration import configuration_bytes

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_KNOWN_FORMATS = ("auto", "hf", "safetensors", "pt", "mistral")
_CHUNK = 16 << 20
_CLOCK_SECONDS = 2.0  # How far the times of a file and of a process may be apart.


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


@contextlib.contextmanager
def _remembered() -> Iterator[dict[str, str]]:
    """The digests that are known by name; what is added is known the next time. One process has it at a time."""
    file = _remembered_file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = open(file.with_suffix(".lock"), "w")
    except OSError:  # A container that nobody may write to hashes every time.
        yield {}
        return
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            known = json.loads(file.read_text())
        except (OSError, ValueError):
            known = {}
        before = dict(known)
        yield known
        if known != before:
            new = file.with_suffix(".new")
            with contextlib.suppress(OSError):
                new.write_text(json.dumps(known))
                new.replace(file)


def files_digest(paths: Iterable[str]) -> bytes:
    """Of the files' names and bytes. Processes that ask for the same files hash them once."""
    whole = hashlib.sha256()
    with _remembered() as known:
        for path in sorted(paths):
            name = _name_of(path)
            if name not in known:
                known[name] = _file_digest(path)
            whole.update(f"{os.path.basename(path)}\0{known[name]}\0".encode())
    return whole.digest()


def weight_files(folder: str) -> list[str]:
    return [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(_WEIGHTS)]


def _started() -> float:
    """When this process was, to about a second."""
    import psutil  # vLLM needs it as well.
    return float(psutil.Process().create_time())


def _check_as_loaded(folder: str) -> None:
    """The engine has read the weights by now, and we read them after it."""
    for path in weight_files(folder):
        if os.stat(path).st_ctime > _started() + _CLOCK_SECONDS:
            raise ValueError(f"{path} was written to after the engine started, so it may have loaded something else; "
                             "start it again")


def _digest_of_folder(folder: str) -> bytes:
    files = weight_files(folder)
    if not files:
        raise ValueError(f"{folder} has no weights, so nobody knows which model it is")
    return files_digest(files)


def _weights(vllm_config: Any, model: Any) -> bytes:
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
        _check_as_loaded(model.model)
        return _digest_of_folder(model.model)
    if model.revision and re.fullmatch("[0-9a-f]{40}", model.revision):
        return f"revision\0{model.model}\0{model.revision}".encode()
    from huggingface_hub import snapshot_download  # The engine has it: it has just loaded the model.
    return _digest_of_folder(snapshot_download(model.model, revision=model.revision, local_files_only=True))


def _vllm_version() -> str:
    import vllm
    return str(vllm.__version__)


def _code(model: Any) -> bytes:
    """Which code computes it: another class may make another KV of the same weights."""
    return json.dumps([getattr(model, "architectures", None), getattr(model, "model_class_overrides", None),
                       getattr(model, "code_revision", None)], sort_keys=True, default=str).encode()


def _parts(vllm_config: Any, model: Any) -> list[bytes]:
    return [configuration_bytes(model.hf_config), _code(model), str(model.dtype).encode(),
            f"{model.quantization}\0{getattr(model, 'quantization_config', None)}".encode(),
            str(model.max_model_len).encode(),  # Some rotary embeddings follow it.
            _weights(vllm_config, model)]


def model_digest(vllm_config: Any) -> bytes:
    """Reads every weight unless that was done before: not for a thread that others wait for."""
    parts = _parts(vllm_config, vllm_config.model_config)
    # A drafting model's layers keep their KV in the same blocks. (n-grams are drafted by the model itself.)
    draft = getattr(getattr(vllm_config, "speculative_config", None), "draft_model_config", None)
    if draft is not None and draft is not vllm_config.model_config:
        parts += _parts(vllm_config, draft)
    whole = hashlib.sha256(b"aquifer.vllm.model.v2\0")
    for part in parts:
        whole.update(len(part).to_bytes(8, "little") + part)
    return whole.digest()
