"""Which model a vLLM engine runs, from its configuration alone: no engine is started."""
import os
import time
import types

import pytest

pytest.importorskip("vllm")
from aquifer.vllm import identity  # noqa: E402


def config(folder, **changes):
    model = types.SimpleNamespace(model=str(folder), model_weights="", seed=0, quantization=None, revision=None,
                                  dtype="float32", max_model_len=4096, trust_remote_code=False, code_revision=None,
                                  model_impl="auto", hf_config=types.SimpleNamespace(to_dict=lambda: {"layers": 2}))
    load = types.SimpleNamespace(load_format=changes.pop("load_format", "auto"),
                                 ignore_patterns=changes.pop("ignore_patterns", ["original/**/*"]),
                                 download_dir=changes.pop("download_dir", None))
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


@pytest.mark.parametrize("name", ["bos_token_id", "eos_token_id", "pad_token_id"])
def test_tokens_that_a_model_puts_in_itself_count(folder, name):
    """A checkpoint whose configuration is mended has the same weights."""
    def told(token):
        said = {"model_type": "moondream3", "text_config": {"model_type": "moondream3_text", name: token}, name: token}
        return types.SimpleNamespace(to_dict=lambda: said)
    digests = {identity.model_digest(config(folder, hf_config=told(token))) for token in (0, 1, 1)}
    assert len(digests) == 2


@pytest.mark.parametrize("text", ["[]", "7", "{", "\0"])
def test_what_is_remembered_and_makes_no_sense_is_not_believed(folder, tmp_path, text):
    before = identity.model_digest(config(folder))
    remembered = tmp_path / "cache" / "aquifer" / "weights.json"
    assert remembered.stat().st_size
    remembered.write_text(text)
    assert identity.model_digest(config(folder)) == before
    assert remembered.read_text().startswith('{"')


def test_other_bytes_are_another_model(folder):
    before = identity.model_digest(config(folder))
    (folder / "model.safetensors").write_bytes(b"Weights")  # As many bytes.
    assert identity.model_digest(config(folder)) != before


def test_how_long_texts_may_be_counts(folder):
    assert identity.model_digest(config(folder)) != identity.model_digest(config(folder, max_model_len=8192))


@pytest.mark.parametrize("changes", [{"architectures": ["Other"]}, {"model_class_overrides": {"Llama": "mine:Llama"}},
                                     {"quantization": "fp8"}, {"quantization_config": {"ignore": ["0.k_proj"]}},
                                     {"dtype": "bfloat16"}, {"model_impl": "transformers"}])
def test_how_it_is_computed_counts(folder, changes):
    assert identity.model_digest(config(folder)) != identity.model_digest(config(folder, **changes))


def test_the_class_that_a_plugin_registers_by_a_known_name_counts(folder):
    def told(entry):
        registry = types.SimpleNamespace(models={"LlamaForCausalLM": entry})
        return identity.model_digest(config(folder, architectures=["LlamaForCausalLM"], registry=registry))

    def lazy(module):
        return types.SimpleNamespace(module_name=module, class_name="LlamaForCausalLM")
    own = type("LlamaForCausalLM", (), {"__module__": "plugin.llama"})
    loaded = types.SimpleNamespace(model_cls=own)
    assert told(lazy("vllm.llama")) == told(lazy("vllm.llama"))
    assert told(lazy("plugin.llama")) == told(loaded)
    assert len({told(None), told(lazy("vllm.llama")), told(loaded)}) == 3


def test_the_registry_of_this_vllm_tells_classes_without_loading_them():
    from vllm.model_executor.models import ModelRegistry
    model = types.SimpleNamespace(registry=ModelRegistry, architectures=["LlamaForCausalLM"], architecture=None)
    assert identity._classes(model) == ["vllm.model_executor.models.llama:LlamaForCausalLM", None]


def test_what_an_encoder_does_to_images_counts(folder):
    seen = set()
    for text in (None, "{}", '{"image_mean": [0.5]}'):
        if text is not None:
            (folder / "preprocessor_config.json").write_text(text)
        seen.add(identity.model_digest(config(folder)))
    for settings in ({}, {"mm_encoder_attn_dtype": "fp8"}, {"mm_encoder_attn_dtype": "fp8", "skip_mm_profiling": True}):
        seen.add(identity.model_digest(config(folder, multimodal_config=types.SimpleNamespace(**settings))))
    assert len(seen) == 5  # The last setting changes no answer.


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


def test_dummy_weights_of_another_release_are_another_model(folder, monkeypatch):
    before = identity.model_digest(config(folder, load_format="dummy"))
    monkeypatch.setattr(identity, "_vllm_version", lambda: "2")
    assert identity.model_digest(config(folder, load_format="dummy")) != before


def test_dummy_weights_of_another_tp_size_are_another_model(folder):
    one = identity.model_digest(config(folder, load_format="dummy"))
    assert one != identity.model_digest(config(folder, load_format="dummy", tp=2))
    assert one != identity.model_digest(config(folder, load_format="dummy", seed=1))


@pytest.mark.parametrize("changes", [{"model_weights": "s3://bucket/model"}, {"load_format": "runai_streamer"},
                                     {"load_format": "dummy", "quantization": "fp8"}])
def test_what_cannot_be_known_is_refused(folder, changes):
    with pytest.raises(ValueError):
        identity.model_digest(config(folder, **changes))


@pytest.mark.parametrize("load_format", ["hf", "safetensors", "pt", "mistral"])
def test_which_files_are_read_counts(folder, load_format):
    """A folder may have the weights of several models."""
    (folder / "model.pt").write_bytes(b"other weights")
    assert identity.model_digest(config(folder)) != identity.model_digest(config(folder, load_format=load_format))


def test_what_is_ignored_counts(folder):
    assert identity.model_digest(config(folder)) != identity.model_digest(config(folder, ignore_patterns=["*.bin"]))


def test_the_list_of_weights_counts(folder):
    """Files that it does not name are not read."""
    digests = [identity.model_digest(config(folder))]
    for name in ("model", "other"):
        (folder / "model.safetensors.index.json").write_text(f'{{"weight_map": {{"a": "{name}.safetensors"}}}}')
        digests.append(identity.model_digest(config(folder)))
    assert len(set(digests)) == 3


def test_code_counts_where_it_is_trusted(folder):
    def both():
        return identity.model_digest(config(folder)), identity.model_digest(config(folder, trust_remote_code=True))
    before = both()
    (folder / "layers").mkdir()
    (folder / "layers" / "modeling.py").write_text("LAYERS = 2")
    after = both()
    assert after[0] == before[0] and after[1] != before[1]


@pytest.mark.parametrize("changes", [{}, {"code_revision": "main"}])
def test_code_of_a_branch_is_refused(folder, changes):
    elsewhere = types.SimpleNamespace(to_dict=lambda: {"layers": 2}, auto_map={"AutoModel": "them/code--model.Model"})
    with pytest.raises(ValueError, match="branch"):
        identity.model_digest(config(folder, trust_remote_code=True, hf_config=elsewhere, **changes))
    identity.model_digest(config(folder, trust_remote_code=True, hf_config=elsewhere, code_revision="a" * 40))
    identity.model_digest(config(folder, hf_config=elsewhere, **changes))


def test_an_image_that_is_mounted_in_anothers_place_is_hashed(folder, monkeypatch):
    """Files of two images may be the same but for the device that they are on, and their time."""
    seen, facts = set(), dict(st_size=1, st_dev=1, st_ino=1, st_mtime_ns=1, st_ctime_ns=1)
    for changes in ({}, {"st_dev": 2}, {"st_mtime_ns": 2}):
        monkeypatch.setattr(os, "stat", lambda path: types.SimpleNamespace(**{**facts, **changes}))
        seen.add(identity._name_of("/image/model.safetensors"))
    assert len(seen) == 3


# ---- What the engine has loaded ----

def refused(*args, **changes):
    with pytest.raises(ValueError, match="written to after the engine started"):
        identity.model_digest(config(*args, **changes))


def test_when_an_engine_started_is_known():
    assert abs(identity._started() - time.time()) < 24 * 3600


def test_weights_that_were_written_under_a_running_engine_are_refused(folder, running):
    """It has loaded what was there before."""
    running()
    identity.model_digest(config(folder))
    (folder / "model.safetensors").write_bytes(b"others")
    refused(folder)


def test_weights_that_went_from_a_linked_folder_under_a_running_engine_are_refused(folder, tmp_path, running):
    """It has loaded them."""
    (folder / "other.safetensors").write_bytes(b"others")
    (tmp_path / "current").symlink_to(folder)
    running()
    identity.model_digest(config(tmp_path / "current"))
    (folder / "other.safetensors").unlink()
    refused(tmp_path / "current")


def test_a_link_that_is_turned_under_a_running_engine_is_refused(folder, tmp_path, running):
    """To weights that were there all the time."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "model.safetensors").write_bytes(b"others")
    for name, target in (("current", folder), ("outer", tmp_path)):
        (tmp_path / name).symlink_to(target)
    running()
    same = identity.model_digest(config(folder))
    assert same == identity.model_digest(config(tmp_path / "current"))
    assert same == identity.model_digest(config(tmp_path / "outer" / "model"))
    (tmp_path / "new").symlink_to(other)
    (tmp_path / "new").replace(tmp_path / "current")
    refused(tmp_path / "current")
    refused(tmp_path / "outer" / "current")
    assert same == identity.model_digest(config(folder))


def test_a_folder_that_takes_anothers_place_under_a_running_engine_is_refused(folder, tmp_path, running):
    for name in ("old", "new"):
        (tmp_path / name / "model").mkdir(parents=True)
        (tmp_path / name / "model" / "model.safetensors").write_bytes(name.encode())
    running()
    (tmp_path / "old" / "notes").write_text("Others write here, too.")
    identity.model_digest(config(tmp_path / "old" / "model"))
    (tmp_path / "old").rename(tmp_path / "older")
    (tmp_path / "new").rename(tmp_path / "old")
    refused(tmp_path / "old" / "model")
    (folder / "model.safetensors").rename(folder / "backup")
    (folder / "backup").rename(folder / "model.safetensors")
    refused(folder)


def test_a_link_that_is_turned_while_weights_are_read_is_refused(folder, tmp_path, running, monkeypatch):
    (tmp_path / "current").symlink_to(folder)
    running()

    def turn(path):
        (tmp_path / "current").unlink()
        (tmp_path / "current").symlink_to(folder)
        return ""
    monkeypatch.setattr(identity, "_file_digest", turn)
    refused(tmp_path / "current")


# ---- Models by name ----

class Hub:
    """What huggingface_hub keeps of one model."""

    def __init__(self, folder):
        self._store = folder / "models--them--model"

    def add(self, commit, weights):
        snapshot = self._store / "snapshots" / commit
        snapshot.mkdir(parents=True)
        (snapshot / "model.safetensors").write_bytes(weights)

    def point(self, branch, commit):
        (self._store / "refs").mkdir(exist_ok=True)
        (self._store / "refs" / branch).write_text(commit)


ONE, OTHER = "1" * 40, "2" * 40


@pytest.fixture
def hub(tmp_path, monkeypatch):
    from huggingface_hub import constants
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return Hub(tmp_path / "hub")


def revision(commit):
    """As vLLM has it once it has looked where a branch is."""
    from huggingface_hub._revision import ResolvedRevision
    return ResolvedRevision(commit)


def test_a_model_by_name_is_the_commit_that_was_loaded(folder, hub):
    hub.add(ONE, b"weights")
    hub.add(OTHER, b"others")
    hub.point("main", OTHER)
    one, other = (identity.model_digest(config("them/model", revision=revision(commit))) for commit in (ONE, OTHER))
    assert one != other
    assert one == identity.model_digest(config(folder))  # The same bytes.
    with_code = identity.model_digest(config("them/model", revision=revision(ONE), trust_remote_code=True))
    assert with_code != one


def test_a_commit_is_known_by_its_name_and_a_branch_that_looks_like_one_is_not(folder, hub):
    """Its code counts where it is trusted."""
    hub.add(ONE, b"weights")
    known = {identity.model_digest(config("them/model", **changes)) for changes in (
        {"revision": ONE}, {"revision": OTHER}, {"revision": ONE, "trust_remote_code": True},
        {"revision": ONE, "trust_remote_code": True, "code_revision": ONE},
        {"revision": ONE, "trust_remote_code": True, "code_revision": OTHER})}
    assert len(known) == 5
    hub.point(ONE + "-mended", ONE)
    assert identity.model_digest(config("them/model", revision=ONE + "-mended")) == identity.model_digest(config(folder))


def test_a_branch_that_moves_under_a_running_engine_is_refused(folder, hub, running):
    """Where vLLM did not say which commit it loaded."""
    hub.add(ONE, b"weights")
    hub.add(OTHER, b"others")
    hub.point("main", ONE)
    running()
    assert identity.model_digest(config("them/model")) == identity.model_digest(
        config("them/model", revision=revision(ONE)))
    hub.point("main", OTHER)
    refused("them/model")


def test_weights_are_looked_for_where_they_were_downloaded_to(folder, hub, tmp_path):
    hub.add(ONE, b"something else")
    Hub(tmp_path / "downloads").add(ONE, b"weights")
    changes = {"revision": revision(ONE), "download_dir": str(tmp_path / "downloads")}
    assert identity.model_digest(config("them/model", **changes)) == identity.model_digest(config(folder))


def test_a_model_of_modelscope_by_name_is_refused(folder, hub, monkeypatch):
    """Hugging Face may have another of that name."""
    hub.add(ONE, b"weights")
    monkeypatch.setattr("vllm.envs.VLLM_USE_MODELSCOPE", True)
    with pytest.raises(ValueError, match="ModelScope"):
        identity.model_digest(config("them/model", revision=revision(ONE)))
    identity.model_digest(config(folder))


def test_a_folder_without_weights_is_refused(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError):
        identity.model_digest(config(folder))
