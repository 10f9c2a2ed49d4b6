"""Which model a vLLM engine runs, from its configuration alone: no engine is started."""
import time
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
    draft = types.SimpleNamespace(draft_model_config=changes.pop("draft", None))
    for name, value in changes.items():
        setattr(model, name, value)
    return types.SimpleNamespace(model_config=model, load_config=load, parallel_config=parallel,
                                 speculative_config=draft)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(identity, "_vllm_version", lambda: "1")
    monkeypatch.setattr(identity, "_started", lambda: time.time() + 3600)  # An engine that starts after all of this.
    weights = tmp_path / "model"
    weights.mkdir()
    (weights / "model.safetensors").write_bytes(b"weights")
    return weights


def test_the_same_files_are_the_same_model(folder):
    assert identity.model_digest(config(folder)) == identity.model_digest(config(folder))


def test_files_are_hashed_once(folder, tmp_path, monkeypatch):
    before = identity.model_digest(config(folder))
    monkeypatch.setattr(identity, "_file_digest", lambda path: pytest.fail("it was read again"))
    assert identity.model_digest(config(folder)) == before


def test_a_host_where_nothing_can_be_remembered_knows_the_model_all_the_same(folder, tmp_path, monkeypatch):
    before = identity.model_digest(config(folder))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert identity.model_digest(config(folder)) == before


def test_other_bytes_are_another_model(folder):
    before = identity.model_digest(config(folder))
    (folder / "model.safetensors").write_bytes(b"Weights")  # As many bytes.
    assert identity.model_digest(config(folder)) != before


def test_how_long_texts_may_be_counts(folder):
    assert identity.model_digest(config(folder)) != identity.model_digest(config(folder, max_model_len=8192))


@pytest.mark.parametrize("changes", [{"architectures": ["Other"]}, {"model_class_overrides": {"Llama": "mine:Llama"}},
                                     {"quantization": "fp8"}, {"quantization_config": {"ignore": ["0.k_proj"]}},
                                     {"dtype": "bfloat16"}])
def test_how_it_is_computed_counts(folder, changes):
    assert identity.model_digest(config(folder)) != identity.model_digest(config(folder, **changes))


def test_a_drafting_model_counts(folder, tmp_path):
    """Its layers are in the same blocks."""
    other = tmp_path / "draft"
    other.mkdir()
    (other / "model.safetensors").write_bytes(b"draft")
    one = identity.model_digest(config(folder, draft=config(other).model_config))
    assert one == identity.model_digest(config(folder, draft=config(other).model_config))
    (other / "model.safetensors").write_bytes(b"Draft")
    assert one != identity.model_digest(config(folder, draft=config(other).model_config))
    assert one != identity.model_digest(config(folder))


def test_dummy_weights_of_another_tp_size_are_another_model(folder):
    one = identity.model_digest(config(folder, load_format="dummy"))
    assert one != identity.model_digest(config(folder, load_format="dummy", tp=2))
    assert one != identity.model_digest(config(folder, load_format="dummy", seed=1))


@pytest.mark.parametrize("changes", [{"model_weights": "s3://bucket/model"}, {"load_format": "runai_streamer"},
                                     {"load_format": "dummy", "quantization": "fp8"}])
def test_what_cannot_be_known_is_refused(folder, changes):
    with pytest.raises(ValueError):
        identity.model_digest(config(folder, **changes))


def test_weights_that_were_written_under_a_running_engine_are_refused(folder, monkeypatch):
    """It has loaded what was there before."""
    monkeypatch.undo()
    assert abs(identity._started() - time.time()) < 24 * 3600
    monkeypatch.setattr(identity, "_started", lambda: time.time() - 60)
    with pytest.raises(ValueError, match="written to after the engine started"):
        identity.model_digest(config(folder))


def test_a_folder_without_weights_is_refused(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError):
        identity.model_digest(config(folder))
