"""Which model an engine runs: a digest of its configuration and of every byte of its weights.

Files are hashed once and remembered by path, size, device, inode and times of change, in a file of this user's.
"""
from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import re
import stat
from typing import Any, Iterable, Iterator, Optional

from ..configuration import TOKEN_IDS, configuration_bytes

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_PROCESSORS = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")
# Settings of multimodal models: what is accepted, how it is carried and kept. Items are hashed behind what these change.
_OF_NO_CONSEQUENCE = frozenset((
    "limit_per_prompt", "enable_mm_embeds", "allow_missing_mm_embeddings", "media_io_kwargs", "mm_processor_cache_gb",
    "mm_processor_cache_type", "mm_hasher_algorithm", "mm_shm_cache_max_object_size_mb", "mm_encoder_tp_mode",
    "interleave_mm_strings", "skip_mm_profiling", "mm_tensor_ipc", "mm_ipc_gpu_memory_gb"))
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
    return "\0".join([os.path.realpath(path), *map(str, (facts.st_size, facts.st_dev, facts.st_ino, facts.st_mtime_ns,
                                                         facts.st_ctime_ns))])


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
        if not isinstance(known, dict):  # Somebody else's, or what a disk has made of it.
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


def _started() -> float:
    """When this process was, to about a second."""
    import psutil  # vLLM needs it as well.
    return float(psutil.Process().create_time())


def _way_to(path: str) -> Iterator[str]:
    """All that a path leads through: links, folders, and those that links lead through."""
    seen, waiting = set(), [os.path.abspath(path)]
    while waiting:
        part = waiting.pop()
        if part in seen:
            continue
        seen.add(part)
        yield part
        if os.path.islink(part):
            waiting.append(os.path.normpath(os.path.join(os.path.realpath(os.path.dirname(part)), os.readlink(part))))
        waiting.append(os.path.dirname(part))


def _check_as_at_start(paths: Iterable[str]) -> None:
    """Raises ValueError unless these are what they were when the engine started, so that they are what it has read
    since. A link on the way that was turned, and a folder that was put in another's place, count as well."""
    end, given = _started() + _CLOCK_SECONDS, set(paths)
    given |= set(map(os.path.realpath, given))
    for path in {part for each in given for part in _way_to(each)}:
        facts = os.lstat(path)
        # Folders on the way get new entries all the time. One that was only moved has another time of change alone.
        is_only_written_in = stat.S_ISDIR(facts.st_mode) and path not in given and facts.st_mtime > end
        if facts.st_ctime > end and not is_only_written_in:
            raise ValueError(f"{path} was written to after the engine started, so it may have loaded something else; "
                             "start it again, or have it load from a path that is older than it")


def digest_as_at_start(folder: str, files: list[str]) -> bytes:
    """Of files in a folder, into which nothing was written since the engine started, either."""
    _check_as_at_start([folder, *files])
    digest = files_digest(files)
    _check_as_at_start([folder, *files])  # It may have taken minutes.
    return digest


def _files_below(folder: str, has_code: bool) -> list[str]:
    """What is loaded from a checkpoint's folder: weights, the lists of them, what an encoder does to images first, and
    the model's own code."""
    found = [os.path.join(folder, name) for name in os.listdir(folder)
             if name.endswith((*_WEIGHTS, ".index.json")) or name in _PROCESSORS]
    if not any(name.endswith(_WEIGHTS) for name in found):
        raise ValueError(f"{folder} has no weights, so nobody knows which model it is")
    if has_code:
        found += map(str, pathlib.Path(folder).rglob("*.py"))
    return found


def _is_commit(revision: Optional[str]) -> bool:
    return revision is not None and re.fullmatch("[0-9a-f]{40}", revision) is not None


def _digest_of_hub(model: Any, download_dir: Optional[str]) -> bytes:
    """Of what the engine has just downloaded, or found."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name
    store = os.path.join(os.path.expanduser(download_dir or constants.HF_HUB_CACHE),
                         repo_folder_name(repo_id=model.model, repo_type="model"))
    commit = getattr(model.revision, "resolved", None)  # vLLM looks once where a branch is, before it loads.
    if commit is None:
        branch = os.path.join(store, "refs", model.revision or constants.DEFAULT_REVISION)
        _check_as_at_start([branch])
        commit = pathlib.Path(branch).read_text().strip()
    code = f"{model.model}\0{commit}".encode() if model.trust_remote_code else b""
    return files_digest(_files_below(os.path.join(store, "snapshots", commit), False)) + code


def _check_code(model: Any) -> None:
    """A model's own code is in its folder or commit, unless that says otherwise."""
    if not model.trust_remote_code or _is_commit(model.code_revision):
        return
    is_elsewhere = "--" in str(getattr(model.hf_config, "auto_map", None))  # "repository--file.class"
    if is_elsewhere or (model.code_revision is not None and not os.path.isdir(model.model)):
        raise ValueError("its code comes from a branch, which may have moved; name a commit as the code's revision")


def _weights(vllm_config: Any, model: Any) -> bytes:
    load = vllm_config.load_config
    load_format = str(getattr(load.load_format, "value", load.load_format))
    if getattr(model, "model_weights", None):
        raise ValueError("its weights come from object storage, where nobody knows what they are")
    if load_format == "dummy":
        if model.quantization is not None:
            raise ValueError("it has quantized dummy weights, which are not the same in every engine")
        # Each rank's shard begins its random numbers anew: another TP size is another model.
        return f"dummy\0{model.seed}\0{vllm_config.parallel_config.tensor_parallel_size}\0{_vllm_version()}".encode()
    if load_format not in _KNOWN_FORMATS:
        raise ValueError(f"its weights are loaded as {load_format}, and not from files that could be hashed")
    # Which files of a checkpoint are read.
    choice = json.dumps([load_format, load.ignore_patterns]).encode()
    if os.path.isdir(model.model):
        return choice + digest_as_at_start(model.model, _files_below(model.model, model.trust_remote_code))
    from vllm import envs
    if envs.VLLM_USE_MODELSCOPE:
        raise ValueError("it comes from ModelScope by name; download it, and name the folder")
    if _is_commit(model.revision):
        return choice + f"revision\0{model.model}\0{model.revision}\0{model.trust_remote_code}".encode()
    return choice + _digest_of_hub(model, load.download_dir)


def _vllm_version() -> str:
    import vllm
    return str(vllm.__version__)


def _code(model: Any) -> bytes:
    """Which code computes it: another class may make another KV of the same weights."""
    _check_code(model)
    return json.dumps([getattr(model, "architectures", None), _classes(model), getattr(model, "model_class_overrides", None),
                       model.code_revision, str(getattr(model.model_impl, "value", model.model_impl))],
                      sort_keys=True, default=str).encode()


def _classes(model: Any) -> list[Optional[str]]:
    """What is registered under the names of its architectures, which may be a plugin's. Nothing is imported for it."""
    registered = getattr(getattr(model, "registry", None), "models", None) or {}
    names = [*(getattr(model, "architectures", None) or []), getattr(model, "architecture", None)]
    return [_class_name(registered.get(name)) for name in names]


def _class_name(entry: Any) -> Optional[str]:
    loaded = getattr(entry, "model_cls", None)
    if loaded is not None:
        return f"{loaded.__module__}:{loaded.__qualname__}"
    return f"{entry.module_name}:{entry.class_name}" if hasattr(entry, "module_name") else None


def _encoder(model: Any) -> list[bytes]:
    """How images are encoded, but for what is done before they are hashed, and for where they are kept."""
    settings = getattr(model, "multimodal_config", None)
    if settings is None:
        return []
    told = {name: str(value) for name, value in vars(settings).items() if name not in _OF_NO_CONSEQUENCE}
    return [json.dumps(told, sort_keys=True).encode()]


def _parts(vllm_config: Any, model: Any) -> list[bytes]:
    # TOKEN_IDS count here: Moondream 3 puts the embedding of its beginning token in front of every image.
    return [configuration_bytes(model.hf_config, TOKEN_IDS), _code(model), str(model.dtype).encode(),
            f"{model.quantization}\0{getattr(model, 'quantization_config', None)}".encode(),
            str(model.max_model_len).encode(),  # Some rotary embeddings follow it.
            _weights(vllm_config, model), *_encoder(model)]


def model_digest(vllm_config: Any) -> bytes:
    """Reads every weight unless that was done before: not for a thread that others wait for."""
    parts = _parts(vllm_config, vllm_config.model_config)
    # A drafting model's layers keep their KV in the same blocks. (n-grams are drafted by the model itself.)
    draft = getattr(getattr(vllm_config, "speculative_config", None), "draft_model_config", None)
    if draft is not None and draft is not vllm_config.model_config:
        parts += _parts(vllm_config, draft)
    whole = hashlib.sha256(b"aquifer.vllm.model.v3\0")
    for part in parts:
        whole.update(len(part).to_bytes(8, "little") + part)
    return whole.digest()
