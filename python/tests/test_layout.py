"""Layouts and keys: the same names in every language."""
from __future__ import annotations

import hashlib
import json
import pathlib
import subprocess
import sys
from array import array

import pytest

import aquifer

DERIVE_KEYS = pathlib.Path(__file__).resolve().parents[2] / "tools" / "derive-keys"


def test_tokens_per_block_follow_from_the_model():
    group = aquifer.KvGroup(layers=32, kv_heads=8, key_dim=128, value_dim=128, dtype=aquifer.DType.BFLOAT16)
    layout = aquifer.Layout(model=bytes(32), kv_format="x", groups=(group,))
    assert layout.tokens_per_block == 64
    assert layout.block_bytes() == 8 << 20


def test_a_layout_that_cannot_be_stored_names_the_field(layout):
    with pytest.raises(aquifer.Invalid, match="kv_format"):
        aquifer.Layout(model=bytes(32), kv_format="", groups=layout.groups).fingerprint()
    with pytest.raises(ValueError, match="32 bytes"):
        aquifer.Layout(model=b"short", kv_format="x", groups=layout.groups)


def test_any_part_of_the_identity_changes_every_key(layout):
    tokens = list(range(64))
    keys = aquifer.derive_keys(layout.root(), tokens, 16)
    assert len(keys) == 4 * 32
    roots = [layout.root("other"), layout.root(adapter=hashlib.sha256(b"lora").digest()),
             layout.root(cache_salt="user"),
             aquifer.Layout(model=bytes(32), kv_format="test", groups=layout.groups, tokens_per_block=16).root()]
    chains = {aquifer.derive_keys(root, tokens, 16) for root in roots}
    assert len(chains | {keys}) == 5
    assert aquifer.derive_keys(layout.root(), [1] + tokens[1:], 16)[:32] != keys[:32]
    assert aquifer.derive_keys(layout.root(), tokens[:-1] + [0], 16)[:96] == keys[:96]


@pytest.mark.parametrize("said", [
    lambda layout: layout.root(cache_salt="alice\0bob"), lambda layout: layout.root(cache_salt="\0"),
    lambda layout: layout.root("acme\0"), lambda layout: layout.root(cache_salt="\ud800"),
    lambda layout: aquifer.Layout(model=bytes(32), kv_format="x\0y", groups=layout.groups).fingerprint(),
    lambda layout: aquifer.connect(tenant="acme\0eve"), lambda layout: aquifer.connect("/run/node\0.sock"),
    lambda layout: aquifer.open_cache(nvme_directories=["/drive\0"])])
def test_a_name_that_the_library_would_cut_is_refused(layout, said):
    """Whose salt is "alice\\0bob" would have what belongs to "alice"."""
    with pytest.raises(aquifer.Invalid, match="NUL|UTF-8"):
        said(layout)


def test_tokens_may_come_in_any_form_and_a_chain_can_go_on(layout):
    numbers = list(range(100))
    keys = aquifer.derive_keys(layout.root(), numbers, 16)
    assert len(keys) == 6 * 32  # The tokens of a partial block get none.
    assert aquifer.derive_keys(layout.root(), array("I", numbers), 16) == keys
    assert aquifer.derive_keys(layout.root(), array("q", numbers), 16) == keys
    assert aquifer.derive_keys(layout.root(), memoryview(array("I", numbers)), 16) == keys
    assert aquifer.derive_keys(keys[32:64], numbers[32:], 16) == keys[64:]
    assert aquifer.derive_keys(layout.root(), [], 16) == b""


def test_extras_belong_to_their_block(layout):
    tokens = list(range(64))
    keys = aquifer.derive_keys(layout.root(), tokens, 16)
    image = aquifer.derive_keys(layout.root(), tokens, 16, [aquifer.Extra(block=1, tag=1, value=b"cat")])
    assert image[:32] == keys[:32]
    assert image[32:64] != keys[32:64]


def test_pages_are_fitted_and_heads_are_dealt_out():
    assert aquifer.fit_pages(64, 16, can_cut=True) == 64
    assert aquifer.fit_pages(64, 128, can_cut=False) == 128
    with pytest.raises(aquifer.Invalid, match="48"):
        aquifer.fit_pages(64, 48, can_cut=True)
    assert aquifer.heads_of_rank(8, 2, 1) == aquifer.Heads(4, 8, True)
    assert aquifer.heads_of_rank(1, 2, 1) == aquifer.Heads(0, 1, False)


def test_keys_are_those_of_the_format_document(layout):
    """tools/derive-keys is a second implementation, made from docs/formats/key.md alone."""
    asked = {
        "layouts": [{"model": layout.model.hex(), "tokens_per_block": 16, "kv_format": "test", "groups": [
            {"kind": "full", "dtype": "float32", "layers": 2, "kv_heads": 2, "key_dim": 64, "value_dim": 64}]}],
        "chains": [{"tenant": "acme", "layout_fingerprint": layout.fingerprint().hex(),
                    "adapter_digest": bytes(32).hex(), "cache_salt": "user", "tokens_per_block": 16,
                    "tokens": list(range(48)), "extras": [{"block": 1, "tag": 1, "value": "cat"}]}]}
    printed = subprocess.run([sys.executable, str(DERIVE_KEYS)], input=json.dumps(asked), text=True,
                             capture_output=True, check=True).stdout
    answer = json.loads(printed)
    assert answer["layouts"][0]["fingerprint"] == layout.fingerprint().hex()
    root = layout.root("acme", cache_salt="user")
    assert answer["chains"][0]["root"] == root.hex()
    keys = aquifer.derive_keys(root, list(range(48)), 16, [aquifer.Extra(1, 1, b"cat")])
    assert "".join(answer["chains"][0]["keys"]) == keys.hex()
