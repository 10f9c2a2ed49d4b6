"""Which model a vLLM engine runs, from its configuration alone: no engine is started."""
import types

import pytest

pytest.importorskip("vllm")
from aquifer.vllm import identity  # noqa: E402


def config(folder, **changes):
    model = types.SimpleNamespace(model=str(folder), model_weights="", seed=0, quantization=None, revision=None,
                                  dtype="float32", max_model_len=4096,
                                  hf_config=types.SimpleNamespace(to_dict=lambda: {"layers": 2}))
    load = types.SimpleNamespace(load_format=changes.pop("load_format", "auto"))
    parallel = types.SimpleNamespace(tensor_parallel_size=changes.pop("tp", 1))
    for name, value in changes.items():
        setattr(model, name, value)
    return types.SimpleNamespace(model_config=model, load_config=load, parallel_config=parallel)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(identity, "_vllm_version", lambda: "1")
    weights = tmp_path / "model"
    weights.mkdir()
    (weights / "model.safetensors").write_bytes(b"weights")
    return weights


def test_the_same_files_are_the_same_model(folder):
    assert identity.model_digest(config(folder)) == identity.model_digest(config(folder))


def test_other_bytes_are_another_model(folder):
    before = identity.model_digest(config(folder))
    (folder / "model.safetensors").write_bytes(b"Weights")  # As many bytes.
    assert identity.model_digest(config(folder)) != before


def test_how_long_texts_may_be_counts(folder):
    assert identity.model_digest(config(folder)) != identity.model_digest(config(folder, max_model_len=8192))


def test_dummy_weights_of_another_tp_size_are_another_model(folder):
    one = identity.model_digest(config(folder, load_format="dummy"))
    assert one != identity.model_digest(config(folder, load_format="dummy", tp=2))
    assert one != identity.model_digest(config(folder, load_format="dummy", seed=1))


@pytest.mark.parametrize("changes", [{"model_weights": "s3://bucket/model"}, {"load_format": "runai_streamer"},
                                     {"load_format": "dummy", "quantization": "fp8"}])
def test_what_cannot_be_known_is_refused(folder, changes):
    with pytest.raises(ValueError):
        identity.model_digest(config(folder, **changes))


def test_a_folder_without_weights_is_refused(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError):
        identity.model_digest(config(folder))
