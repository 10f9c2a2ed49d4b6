"""Aquifer for Hugging Face transformers: prompts whose beginning was computed before, by anyone and at any
time, are prefilled only from there on.

    recall = aquifer.transformers.Recall(model, aquifer.connect())
    output = model.generate(**inputs, past_key_values=recall.cache(session="chat 7"))

    with recall:                            # the same for every generate() of the model, a pipeline's too
        pipe("Once upon a time")

For models whose every layer keeps all of its past (DynamicCache with plain layers). Others are refused by
name when a Recall is made. What a forward pass is given decides whether its KV may be shared: token ids alone,
with at most padding on the left. A cache that sees anything else goes on as a plain DynamicCache.

A Recall belongs to one model. Recalling happens in the thread that runs the model, before its forward pass;
storing on a thread of its own, from tensors that nobody changes any more.
"""
from __future__ import annotations

import atexit
import copy
import dataclasses
import functools
import itertools
import threading
import time
import weakref
from array import array
from typing import Any, Callable, Optional

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer

from .cache import Cache, Chain, Registered
from .errors import Busy, Error, Invalid, Late
from .layout import DType, KvGroup, Layout, derive_keys, text_bytes
from .moment import CudaMoment, HostMoment, Moment
from .storing import Layers, Report, RowToStore, Store, Storer, row_map, warn_once
from .tensors import TensorMap
from .weights import check_has_bytes, check_keeps_nothing_else, model_digest, weights_version

__all__ = ["AquiferCache", "Recall", "Statistics", "model_digest"]

# Changes when the bytes of a block mean something else.
KV_FORMAT = "transformers.dynamic.v1"

_DTYPES = {torch.float32: DType.FLOAT32, torch.float16: DType.FLOAT16, torch.bfloat16: DType.BFLOAT16}

# Rotary embeddings whose angles depend on how long the text is by now: the same tokens have another KV.
_MOVING_ROPES = ("dynamic", "longrope")

# What a forward pass may be given for its KV to follow from the token ids.
_KNOWN_INPUTS = frozenset([
    "input_ids", "attention_mask", "position_ids", "past_key_values", "use_cache", "logits_to_keep",
    "return_dict", "cache_position", "output_attentions", "output_hidden_states"])

# What a forward pass gives for each token that it computes, in its arguments or in the configuration.
_OF_EVERY_TOKEN = ("output_attentions", "output_hidden_states", "output_router_logits")

_LEAST_DEADLINE = 0.05  # Seconds.
_UNKNOWN_DEADLINE = 1.0  # While nobody has reported how long computing takes.
_MATCH_SECONDS = 0.25  # A match takes microseconds; a node that is silent for so long has nothing.
_REGISTER_SECONDS = 2.0  # In the middle of a forward pass.
_WAITING_BYTES = 2 << 30


@dataclasses.dataclass
class Statistics:
    """Since the Recall was made."""
    recalled_tokens: int = 0  # Not computed, because they were there. A batch's rows count one by one.
    computed_tokens: int = 0
    stored_blocks: int = 0
    failed_blocks: int = 0  # Lost on the way to the node: to the GPU, to the node, or to the time.
    short_loads: int = 0  # Fewer blocks came than were promised; the rest was computed.
    dropped_stores: int = 0  # They failed as a whole, or too much waited to be stored.
    given_up: dict[str, int] = dataclasses.field(default_factory=dict)  # Caches that became plain, by reason.


# ---- What it keeps ----

@dataclasses.dataclass(frozen=True)
class _Shape:
    """What a model keeps for each token, seen by trying."""
    layers: int
    kv_heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    devices: tuple[torch.device, ...]  # One a layer.
    needs_places: bool  # Without position ids it puts tokens elsewhere than at their places (RoBERTa).

    def group(self) -> KvGroup:
        return KvGroup(layers=self.layers, kv_heads=self.kv_heads, key_dim=self.key_dim,
                       value_dim=self.value_dim, dtype=_DTYPES[self.dtype])


def _refuse(model: Any, why: str) -> Invalid:
    return Invalid(f"{type(model).__name__} cannot be recalled: {why}")


def _check_kind(model: Any) -> None:
    config = model.config
    if getattr(config, "is_encoder_decoder", False):
        raise _refuse(model, "it is an encoder with a decoder, and only decoders are known")
    if hasattr(model, "peft_config") or getattr(model, "_hf_peft_config_loaded", False):
        raise _refuse(model, "it has PEFT adapters, which change the KV and can be switched at any time; merge them")
    if _is_training(model):
        raise _refuse(model, "it, or a module of it, is in training mode, where dropout makes every KV another; call "
                             "model.eval()")
    for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        try:
            check_has_bytes(name, tensor)
        except Invalid as error:
            raise _refuse(model, str(error)) from error
        if tensor.is_inference():
            raise _refuse(model, f"{name} was made in torch.inference_mode(), where torch does not count who writes to it; "
                                 "load the model outside of it")
    text = config.get_text_config(decoder=True)
    for layer in DynamicCache(config=text).layers:
        if type(layer) is not DynamicLayer:
            raise _refuse(model, f"a layer keeps its past in a {type(layer).__name__}, and only layers that keep all "
                                 "of it (DynamicLayer) are known; sliding windows and state spaces are not")
    if any(hasattr(module, "rope_deltas") for module in model.modules()) or _says(config.to_dict(), "mrope_section"):
        raise _refuse(model, "it places tokens by the images in front of them (M-RoPE), and remembers where it was with "
                             "the last images it saw, whoever's they were")
    if getattr(text, "keep_window_size", None) is not None:
        raise _refuse(model, f"beyond {text.keep_window_size} tokens (keep_window_size) it attends to the strongest alone, "
                             "and which of equally strong ones those are depends on the length of the text, so a prefix has "
                             "not one KV")
    ropes = getattr(text, "rope_parameters", None) or {}
    nested = [rope for rope in ropes.values() if isinstance(rope, dict)]
    for rope in nested or [ropes]:
        if rope.get("rope_type") in _MOVING_ROPES:
            raise _refuse(model, f"its rotary embedding ({rope['rope_type']}) turns with the length of the text, so a "
                                 "prefix has not one KV")


def _is_training(model: Any) -> bool:
    """Or a module of it: each drops out by itself. A walk without names, since every forward pass is preceded by
    one: 0.07 ms for 423 modules, and 0.32 ms by modules()."""
    waiting = [model]
    while waiting:
        module = waiting.pop()
        if module is not None:
            if module.training:
                return True
            waiting.extend(module._modules.values())
    return False


def _says(value: Any, name: str) -> bool:
    """Whether a configuration has a setting of this name, at any depth."""
    if isinstance(value, dict):
        return value.get(name) is not None or any(_says(each, name) for each in value.values())
    return isinstance(value, (list, tuple)) and any(_says(each, name) for each in value)


def _try_kindly(model: Any) -> _Shape:
    """What a model itself says against the texts that it is tried with is why it cannot be recalled."""
    try:
        return _try(model)
    except (Error, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise _refuse(model, f"it fails with a text of four tokens: {type(error).__name__}: {error}") from error


@torch.no_grad()
def _try(model: Any) -> _Shape:
    """Two short texts that differ in the last token alone: shows the KV's shape, and that no token's KV
    depends on what comes after it; and one of them with position ids, which shows where tokens are without."""
    device = model.get_input_embeddings().weight.device

    def run(last: int, **given: Any) -> DynamicCache:
        cache = DynamicCache(config=model.config.get_text_config(decoder=True))
        model(input_ids=torch.tensor([[1, 2, 1, last]], device=device), past_key_values=cache, use_cache=True, **given)
        return cache
    caches = run(3), run(4)
    if not caches[0].layers:
        raise _refuse(model, "it keeps nothing in the cache that it is given")
    shapes = set()
    for first, second in zip(caches[0].layers, caches[1].layers):
        if not first.is_initialized:
            raise _refuse(model, "not every layer keeps a KV")
        shapes.add((first.keys.shape[:2] + first.keys.shape[3:], first.values.shape[1:2] + first.values.shape[3:],
                    first.keys.dtype, first.values.dtype))
        if not _are_alike(first, second, 3):
            raise _refuse(model, "the KV of its tokens depends on what follows them (it is not causal)")
    if len(shapes) != 1:
        raise _refuse(model, f"its layers differ in shape or type: {sorted(map(str, shapes))}")
    keys, values = caches[0].layers[0].keys, caches[0].layers[0].values
    if keys.dtype not in _DTYPES or values.dtype != keys.dtype or values.shape[1] != keys.shape[1]:
        raise _refuse(model, f"it keeps K as {keys.dtype} and V as {values.dtype}")
    try:
        placed = run(3, position_ids=torch.arange(4, device=device).unsqueeze(0))
        needs_places = not all(_are_alike(one, other, 4) for one, other in zip(caches[0].layers, placed.layers))
    except TypeError:  # It takes no position ids.
        needs_places = False
    return _Shape(len(caches[0].layers), keys.shape[1], keys.shape[3], values.shape[3], keys.dtype,
                  tuple(layer.keys.device for layer in caches[0].layers), needs_places)


def _are_alike(one: Any, other: Any, tokens: int) -> bool:
    """Whether two layers have the same KV of the first tokens, but for rounding."""
    return all(torch.allclose(ours[:, :, :tokens].float(), theirs[:, :, :tokens].float(), rtol=1e-2, atol=1e-3)
               for ours, theirs in ((one.keys, other.keys), (one.values, other.values)))


# ---- A sequence ----

class _Row:
    """One sequence of a batch: where it begins behind the padding, its tokens, and the keys of its blocks."""

    def __init__(self, padding: int, root: bytes, tokens_per_block: int):
        self.padding = padding
        self.tokens = array("I")
        self.keys = b""
        self.stored = 0  # Blocks that are stored, were there, or are given up on.
        self._root = root
        self._block = tokens_per_block

    def extend(self, tokens: array) -> None:
        self.tokens.extend(tokens)
        known = len(self.keys) // 32
        whole = len(self.tokens) // self._block
        if whole > known:
            self.keys += derive_keys(self.parent(known), self.tokens[known * self._block:whole * self._block],
                                     self._block)

    def truncate(self, tokens: int) -> None:
        del self.tokens[max(tokens, 0):]
        whole = len(self.tokens) // self._block
        self.keys = self.keys[:whole * 32]
        self.stored = min(self.stored, whole)

    def parent(self, block: int) -> bytes:
        return self.keys[(block - 1) * 32:block * 32] if block > 0 else self._root

    @property
    def blocks(self) -> int:
        return len(self.keys) // 32


class AquiferCache(DynamicCache):
    """What to pass to generate() as past_key_values. Made by Recall.cache(); for one conversation, and used
    again like any DynamicCache when it goes on."""

    def __init__(self, recall: "Recall", session: Optional[str] = None, cache_salt: str = ""):
        super().__init__(config=recall.model.config.get_text_config(decoder=True))
        for name in (session or "", cache_salt):
            text_bytes(name)  # One that cannot be said fails here, and not in the middle of a forward pass.
        self.recall = recall
        self.session = session
        self.recalled_tokens = 0  # Of each row of the last prompt.
        self.plain: Optional[str] = None  # Why it is a DynamicCache and no more.
        self._begin: Optional[Moment] = None  # Of the forward pass that is under way, where it is to be timed.
        self._salt = cache_salt
        self._rows: list[_Row] = []
        self._length = 0
        self._version: Optional[int] = None  # Of the weights that its KV was computed with.

    # What changes a cache from outside.

    def crop(self, *args: Any, **kwargs: Any) -> None:
        before, known = self.get_seq_length(), self._length
        super().crop(*args, **kwargs)
        self._length = self.get_seq_length()
        # A forward pass that failed may have left a part of what it was given: gone, if what was there before is left.
        has_failed = any(len(row.tokens) > known - row.padding for row in self._rows)
        is_mended = has_failed and before > known >= self._length
        if (before != known and not is_mended) or not self._holds(self._length):
            self._give_up("it was changed from outside")
        for row in self._rows:
            row.truncate(self._length - row.padding)

    def reset(self) -> None:
        super().reset()
        self._rows, self._length, self.plain, self.recalled_tokens = [], 0, None, 0

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        self._give_up("beam search")
        super().reorder_cache(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._give_up("its batch was repeated")
        super().batch_repeat_interleave(repeats)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self._give_up("its batch was cut")
        super().batch_select_indices(indices)

    def __deepcopy__(self, memo: dict[int, Any]) -> "AquiferCache":
        """How one beginning is kept for several texts: a cache of its own, of the same Recall."""
        copied = AquiferCache.__new__(AquiferCache)
        memo[id(self)] = copied
        memo[id(self.recall)] = self.recall
        memo[id(self._begin)] = None  # No forward pass of the copy is under way.
        copied.__dict__.update({name: copy.deepcopy(value, memo) for name, value in self.__dict__.items()})
        return copied

    def _holds(self, length: int) -> bool:
        """So many tokens, in every layer: where a forward pass failed, some have more."""
        return all(layer.get_seq_length() == length for layer in self.layers)

    def _give_up(self, why: str) -> None:
        if self.plain is None:
            self.plain = why
            self._rows = []
            counts = self.recall.statistics.given_up
            counts[why] = counts.get(why, 0) + 1

    # Around a forward pass. `_before` may change what it is given.

    def _before(self, inputs: dict[str, Any]) -> None:
        why = self._why_unknown(inputs)
        if why is not None:
            self._give_up(why)
            return
        if self._length == 0:
            why = self.recall._why_not_known()
            if why is not None:
                self._give_up(why)
                return
            self._version = self.recall._version
            self._rows = [_Row(padding, self.recall.root(self._salt), self.recall.layout.tokens_per_block)
                          for padding in self._padding_of(inputs)]
        elif any(len(row.tokens) < self._length - row.padding for row in self._rows):
            self._give_up("it was changed from outside")
            return
        why = "training mode" if _is_training(self.recall.model) else self._why_moved(inputs)
        if why is not None:
            self._give_up(why)
            return
        self._append(inputs["input_ids"])
        if self._length == 0:
            self._recall_into(inputs)

    def _why_unknown(self, inputs: dict[str, Any]) -> Optional[str]:
        strange = [name for name, value in inputs.items() if name not in _KNOWN_INPUTS and value is not None]
        if strange:
            return f"a forward pass was given {', '.join(sorted(strange))}"
        ids = inputs.get("input_ids")
        if ids is None or ids.dim() != 2:
            return "a forward pass without token ids"
        mask = inputs.get("attention_mask")
        if mask is not None and not (isinstance(mask, torch.Tensor) and mask.dim() == 2
                                     and mask.shape[1] == self._length + ids.shape[1]):
            return "an attention mask that is not the batch's padding"
        if not self._holds(self._length):
            return "it was changed from outside"
        if torch.is_grad_enabled():
            return "gradients"
        if torch.is_autocast_enabled(ids.device.type):
            return "autocast"  # Its KV is of another type than the model's, or was computed in one.
        return None

    @staticmethod
    def _padding_of(inputs: dict[str, Any]) -> list[int]:
        ids, mask = inputs["input_ids"], inputs.get("attention_mask")
        if mask is None:
            return [0] * ids.shape[0]
        return (mask.shape[1] - mask.ne(0).sum(dim=1)).tolist()

    def _why_moved(self, inputs: dict[str, Any]) -> Optional[str]:
        """Whether every token has the place that it has in its own text, and sees all in front of it."""
        ids, mask, positions = inputs["input_ids"], inputs.get("attention_mask"), inputs.get("position_ids")
        if ids.shape[0] != len(self._rows):
            return "its batch changed"
        end, is_padded = self._length + ids.shape[1], any(row.padding for row in self._rows)
        if is_padded:
            paddings = torch.tensor([row.padding for row in self._rows], device=ids.device).unsqueeze(1)
            columns = torch.arange(end, device=ids.device).unsqueeze(0)
            sees_all = mask is not None and torch.equal(mask.ne(0), columns >= paddings)
            places = (columns - paddings)[:, self._length:]
        else:  # Most are, and every token that is generated passes here: a third of the operations.
            sees_all = mask is None or bool(mask.all())
            places = torch.arange(self._length, end, device=ids.device).unsqueeze(0)
        if not sees_all:
            return "padding without an attention mask" if mask is None else "padding that is not on the left"
        if positions is None and self.recall._shape.needs_places:
            return "no position ids, without which this model places tokens elsewhere"
        if positions is None:
            return "padding without position ids" if is_padded else None
        if positions.shape[-1] != places.shape[1] or positions.dim() != 2:
            return "position ids of another shape"
        if not bool(((positions == places) | (places < 0) if is_padded else positions == places).all()):
            return "position ids that are not the tokens' places"
        return None

    def _append(self, ids: torch.Tensor) -> None:
        for row, tokens in zip(self._rows, ids.to("cpu", torch.int32)):
            row.truncate(self._length - row.padding)  # A forward pass that failed did not compute what it was given.
            row.extend(array("I", tokens[max(row.padding - self._length, 0):].numpy().tobytes()))

    def _recall_into(self, inputs: dict[str, Any]) -> None:
        wanted = inputs.get("logits_to_keep")
        config = self.recall.model.config
        if not isinstance(wanted, int) or wanted <= 0 or any(
                inputs.get(name) or getattr(config, name, None)
                or getattr(config.get_text_config(decoder=True), name, None) for name in _OF_EVERY_TOKEN):
            return  # Somebody wants what only computing every token gives.
        count = inputs["input_ids"].shape[1]
        columns = self.recall._load(self, self._rows, count - wanted)
        self.recalled_tokens = columns
        if columns == 0:
            return
        self._length = columns
        self._name_what_is_there()
        for name in ("input_ids", "position_ids", "cache_position"):
            if inputs.get(name) is not None:
                inputs[name] = inputs[name][..., columns:]

    def _after(self, computed: int) -> None:
        if self.plain is None:
            self._length += computed
            if any(row.blocks > row.stored for row in self._rows):
                self.recall._store_later(self)

    def _name_what_is_there(self) -> None:
        """A turn that is all recalled stores nothing, and is of its session all the same."""
        for index, row in enumerate(self._rows):
            name = self._name(index)
            if name is not None and row.stored > 0:
                last = Chain(self.recall._known, row.keys[(row.stored - 1) * 32:row.stored * 32])
                try:
                    self.recall._cache.hint(last, name)
                except Error as error:
                    warn_once(f"a session is not remembered: {error}")

    def note_stored(self, done: RowToStore) -> None:
        """Blocks that were refused or lost on the way are not tried again: the cache knew why. Those of a text
        that was cropped in the meantime are none of its blocks any more."""
        if done.index < len(self._rows):
            row = self._rows[done.index]
            if row.keys[done.first * 32:].startswith(done.keys):
                row.stored = max(row.stored, done.first + len(done.keys) // 32)

    def _take_new(self) -> Optional[Store]:
        """What is not stored yet, with the tensors that hold it. They are never written to again: a layer
        grows by making new ones. None: all of it is, by now."""
        known = self.recall._known_storing
        block = known.layout.tokens_per_block
        # Looked at once: the storing thread may be done with some of them between two looks.
        first_of = [row.stored for row in self._rows]
        rows = [RowToStore(index, row.padding, first, row.keys[first * 32:], row.parent(first), self._name(index))
                for index, (row, first) in enumerate(zip(self._rows, first_of)) if row.blocks > first]
        if not rows:
            return None
        origin = 0
        layers = [(layer.keys, layer.values) for layer in self.layers]
        if self.recall._gpu is None and any(keys.device.type != "cpu" for keys, _ in layers):
            origin = min(row.padding + row.first * block for row in rows)
            layers = [(keys[:, :, origin:].to("cpu"), values[:, :, origin:].to("cpu")) for keys, values in layers]
        return Store(known, rows, layers, origin, self.recall._moment())

    def _name(self, row: int) -> Optional[str]:
        if self.session is None:
            return None
        return self.session if len(self._rows) == 1 else f"{self.session}/{row}"


class Recall:
    """A model and the cache that its prompts are recalled from. Close it, or use it as a context manager:
    inside, every generate() of the model that brings no cache of its own uses one of ours."""

    def __init__(self, model: Any, cache: Cache, *, cache_salt: str = "", digest: Optional[bytes] = None,
                 deadline: Optional[float] = None, always: bool = False, background: bool = False,
                 waiting_bytes: int = _WAITING_BYTES):
        """Raises Invalid, with the reason, for a model that cannot be recalled.

        `digest` is the model's identity where it is known, such as the digest of an immutable revision; else
        every weight is hashed, once: now, or with `background` on a thread, and nothing is recalled or stored
        until then. `deadline` is for a recall, in seconds; None: as long as computing would take, at least
        50 ms. `always`: recall also what would be computed faster. `waiting_bytes`: the most KV that waits to be
        stored, in the memory of the device that computed it; where one text's is more, it waits alone. What is over
        it is not stored.
        """
        text_bytes(cache_salt)
        model = getattr(model, "_orig_mod", model)  # Of torch.compile(model): generate() calls the one inside.
        self.model = model
        self.statistics = Statistics()
        self._given_digest = digest
        self._look()
        self._cache = cache.join()
        self._salt = cache_salt
        self._deadline = deadline
        self._always = always
        self._roots: dict[str, bytes] = {}
        self._known: Registered = None  # type: ignore[assignment]
        self._known_storing: Registered = None  # type: ignore[assignment]
        self._version: Optional[int] = None  # Of the weights that are identified; None: none are.
        self.busy_identifying = False
        self._closed = False
        self._entered = 0
        self._ours: Any = None  # The generate() that we gave the model.
        self._others: Any = None  # What it had of its own before; None: its class's.
        self._storer = Storer(cache.join(), self.statistics, waiting_bytes)
        weakref.finalize(self, self._storer.end).atexit = False  # At the end of the process it is closed.
        self._identify(background)
        of = weakref.ref(self)
        self._hooks = [model.register_forward_pre_hook(functools.partial(_before_forward, of), with_kwargs=True),
                       model.register_forward_hook(functools.partial(_after_forward, of), with_kwargs=True)]
        weakref.finalize(self, _remove, self._hooks)
        self._at_exit = weakref.WeakMethod(self.close)
        atexit.register(_call, self._at_exit)

    # ---- For its user ----

    def cache(self, session: Optional[str] = None, cache_salt: Optional[str] = None) -> AquiferCache:
        """A new cache for generate(). `session` names a conversation, so that it can be prestaged, pinned and
        forgotten by that name; `cache_salt` keeps users apart."""
        return AquiferCache(self, session, self._salt if cache_salt is None else cache_salt)

    def flush(self, timeout: float = 30.0) -> bool:
        """Waits until all that was computed so far is stored; False: not within the time."""
        return self._storer.flush(timeout)

    def close(self) -> None:
        """Stores what is left, for at most ten seconds, and lets go of the model."""
        if self._closed:
            return
        self._closed = True
        self._leave_generate()
        self.flush(10.0)
        _remove(self._hooks)
        self._storer.close()
        atexit.unregister(self._at_exit)
        self._cache.close()

    def __enter__(self) -> "Recall":
        self._entered += 1
        if self._ours is None:
            self._others = self.model.__dict__.get("generate")
            self._ours = self.model.generate = _generating(weakref.ref(self), self.model.generate)
        return self

    def __exit__(self, *_: object) -> None:
        self._entered -= 1
        if self._entered == 0:
            self._leave_generate()

    def _leave_generate(self) -> None:
        """Where somebody has put another in front of ours since, that one stays, and ours does nothing any more."""
        self._entered = 0
        if self._ours is not None and self.model.__dict__.get("generate") is self._ours:
            if self._others is None:
                del self.model.generate
            else:
                self.model.generate = self._others
        self._ours = self._others = None

    def root(self, cache_salt: str) -> bytes:
        found = self._roots.get(cache_salt)
        if found is None:
            if len(self._roots) >= 4096:
                self._roots.clear()
            found = self._roots[cache_salt] = self.layout.root(self._cache.tenant, cache_salt=cache_salt)
        return found

    # ---- Identity ----

    def _look(self) -> None:
        """At the model as it is now. Raises Invalid for one that cannot be recalled."""
        _check_kind(self.model)
        self._shape = _try_kindly(self.model)
        if self._given_digest is None:
            try:
                check_keeps_nothing_else(self.model)
            except Invalid as error:
                raise _refuse(self.model, str(error)) from error
        # Where all of the KV is on one GPU it is copied from and to there; else by way of the host's memory.
        devices = set(self._shape.devices)
        self._gpu = devices.pop() if len(devices) == 1 and self._shape.devices[0].type == "cuda" else None
        # Elsewhere a moment of the host's says nothing of how far the devices are.
        self._is_timed = self._gpu is not None or self._shape.devices[0].type == "cpu"
        # A layout to count tokens per block by; nothing is found under it.
        self.layout = Layout(model=bytes(32), kv_format=KV_FORMAT, groups=(self._shape.group(),))

    def _identify(self, background: bool) -> None:
        self.busy_identifying = True
        if background and self._given_digest is None:
            threading.Thread(target=self._identify_later, name="aquifer-identify", daemon=True).start()
        else:
            self._identify_now()

    def _identify_now(self, timeout: Optional[float] = None) -> None:
        try:
            version = weights_version(self.model)
            digest = self._given_digest if self._given_digest is not None else model_digest(self.model)
            layout = dataclasses.replace(self.layout, model=digest)
            self._known = self._cache.register(layout, timeout)
            self._known_storing = self._storer.client.register(layout, timeout)
            self._roots = {}
            self.layout = layout
            self._version = version
        finally:
            self.busy_identifying = False

    def _identify_later(self) -> None:
        try:
            self._identify_now()
        except Invalid as error:
            warn_once(str(_refuse(self.model, str(error))))
        except (Error, RuntimeError):
            pass  # The node refuses it for now, or the GPU has no room. The next prompt tries again.

    def _why_not_known(self) -> Optional[str]:
        """None: it is known which model it is. Somebody may have trained it, loaded other weights into it, or moved it,
        since it was looked at."""
        if self.busy_identifying:
            return "nobody knew yet which model it is"
        try:
            if self._version is not None and (self._given_digest is not None
                                              or weights_version(self.model) == self._version):
                return None
            self._version = None
            self._look()
            self._identify_now(_REGISTER_SECONDS)
            return None
        except (Error, RuntimeError) as error:  # The node is silent, the GPU full, or it cannot be recalled any more.
            return f"nobody knows which model it is: {error}"

    def _has_other_weights(self, cache: AquiferCache) -> bool:
        """Than those that it began with: what it holds is of neither the one nor the other."""
        return self._given_digest is None and weights_version(self.model) != cache._version

    # ---- Recall ----

    def _load(self, cache: AquiferCache, rows: list[_Row], most: int) -> int:
        """Fills the cache with as many columns as every row has, at most `most`; how many."""
        try:
            return self._load_columns(cache, rows, most)
        except (Error, RuntimeError) as error:  # The node is away, or busy, or the GPU has no room: compute.
            self.statistics.short_loads += 1
            for layer in cache.layers:
                layer.reset()  # It may have got some of them.
            if not isinstance(error, (Busy, Late)):
                warn_once(f"a load failed, and is computed: {error}")
            return 0

    def _load_columns(self, cache: AquiferCache, rows: list[_Row], most: int) -> int:
        block = self.layout.tokens_per_block
        chains = [Chain(self._known, row.keys) for row in rows]
        asked = [self._cache.begin_match(chain) if len(chain) else None for chain in chains]
        wait = self._deadline or _MATCH_SECONDS
        matches = [pending.result(wait) if pending is not None else None for pending in asked]
        counts = [0 if match is None else match.matched if self._always else match.pays for match in matches]
        columns = min(most, *(row.padding + count * block for row, count in zip(rows, counts)))
        # Whole blocks are loaded, and the last is used as far as the columns go.
        needed = [max(0, -(-(columns - row.padding) // block)) for row in rows]
        if sum(needed) == 0:
            return 0
        layers = self._empty_layers(rows, columns)
        self._await_gpu()
        estimate = sum(match.recompute_ms for match in matches if match is not None) / 1000
        deadline = self._deadline or (max(estimate, _LEAST_DEADLINE) if estimate else _UNKNOWN_DEADLINE)
        end = time.monotonic() + deadline
        for index, (row, chain, count) in enumerate(zip(rows, chains, needed)):
            if count == 0:
                continue
            loaded = self._load_row(layers, index, row, chain.part_of(0, count), end)
            if loaded < count:
                self.statistics.short_loads += 1
                columns = min(columns, row.padding + loaded * block)
        return self._install(cache, layers, columns, rows)

    def _load_row(self, layers: Layers, index: int, row: _Row, chain: Chain, end: float) -> int:
        """How many blocks came, from the first. The last may be longer than what there is room for: it is loaded beside
        the others then, since tensors with columns that nobody uses are slow to go on from."""
        def load(part: Chain, tensors: TensorMap) -> int:
            loaded = self._cache.load(part, tensors, [0], timeout=max(end - time.monotonic(), 0.001))
            if loaded.is_broken:
                warn_once(f"a load came short, and the rest is computed: {loaded.message}")
            return loaded.blocks

        block = self.layout.tokens_per_block
        columns = layers[0][0].shape[2]
        fitting = min(len(chain), (columns - row.padding) // block)
        loaded = 0
        if fitting > 0:
            loaded = load(chain.part_of(0, fitting), row_map(self.layout, layers, index, row.padding))
        if loaded < fitting or fitting == len(chain):
            return loaded
        beside = self._new_layers(torch.empty, 1, block)
        self._await_gpu()
        if load(chain.part_of(fitting), row_map(self.layout, beside, 0, 0)) == 0:
            return loaded
        first = row.padding + fitting * block
        for ours, one in zip(layers, beside):
            for to, tensor in zip(ours, one):
                to[index, :, first:] = tensor[0, :, :columns - first]
        return len(chain)

    def _await_gpu(self) -> None:
        """Before new tensors are loaded into: whoever had that memory before is done with it then."""
        if self._gpu is not None:
            torch.cuda.current_stream(self._gpu).synchronize()

    def _empty_layers(self, rows: list[_Row], columns: int) -> Layers:
        """What is in front of a row is masked, but must be a number."""
        return self._new_layers(torch.zeros if any(row.padding for row in rows) else torch.empty, len(rows), columns)

    def _new_layers(self, make: Callable[..., torch.Tensor], batch: int, columns: int) -> Layers:
        shape = self._shape
        return [(make(batch, shape.kv_heads, columns, shape.key_dim, dtype=shape.dtype, device=self._gpu),
                 make(batch, shape.kv_heads, columns, shape.value_dim, dtype=shape.dtype, device=self._gpu))
                for _ in range(shape.layers)]

    def _install(self, cache: AquiferCache, layers: Layers, columns: int,
                 rows: list[_Row]) -> int:
        block = self.layout.tokens_per_block
        recalled = [max(columns - row.padding, 0) for row in rows]
        if columns <= 0 or sum(recalled) == 0:
            return 0
        for layer, device, (keys, values) in zip(cache.layers, self._shape.devices, layers):
            keys, values = keys[:, :, :columns].to(device), values[:, :, :columns].to(device)
            layer.lazy_initialization(keys, values)
            layer.keys, layer.values = keys, values
        for row, tokens in zip(rows, recalled):
            row.stored = max(row.stored, tokens // block)
        self.statistics.recalled_tokens += sum(recalled)
        return columns

    # ---- Store ----

    def _store_later(self, cache: AquiferCache) -> None:
        if self.busy_identifying:
            return
        try:
            if self._has_other_weights(cache):
                cache._give_up("the weights changed while it was used")
            elif any(layer.keys.dtype != self._shape.dtype for layer in cache.layers):
                cache._give_up("its KV is of another type than the model's was")
            elif (new := cache._take_new()) is not None:
                self._storer.offer(cache, new)
        except (Error, RuntimeError) as error:
            # It is no model to recall any more; or the GPU has no room, or has failed, which whoever computes will hear.
            self.statistics.dropped_stores += 1
            warn_once(f"a store failed: {error}")

    # ---- Time ----

    def _moment(self) -> Moment:
        """Now, in the work that fills the KV."""
        return HostMoment() if self._gpu is None else CudaMoment(self._gpu)

    def _begin_of(self, ids: torch.Tensor) -> Optional[Moment]:
        """Of a forward pass that is to be timed: one text's, and not a step of one token."""
        rows, tokens = ids.shape
        return self._moment() if self._is_timed and rows == 1 and tokens > 1 and not self.busy_identifying else None


# ---- Hooks, of one Recall each: a model may have several. They do not keep it alive, and no compiler is to read them. ----

@torch.compiler.disable
def _before_forward(of: Any, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    cache = kwargs.get("past_key_values")
    if not isinstance(cache, AquiferCache) or cache.recall is not of():
        return None
    if kwargs.get("use_cache") is False and cache.get_seq_length() == 0:
        # Who wants none gives all tokens to every pass: they must not meet those of the pass before.
        cache._give_up("a forward pass without a cache")
        return args, {**kwargs, "past_key_values": None}
    if cache.plain is not None:
        return None
    if args:
        if len(args) != 1 or "input_ids" in kwargs:
            cache._give_up("a forward pass with positional arguments")
            return None
        kwargs = {**kwargs, "input_ids": args[0]}
    else:
        kwargs = dict(kwargs)
    cache._before(kwargs)
    cache._begin = cache.recall._begin_of(kwargs["input_ids"]) if cache.plain is None else None
    return (), kwargs


@torch.compiler.disable
def _after_forward(of: Any, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    cache = kwargs.get("past_key_values")
    if not isinstance(cache, AquiferCache) or cache.plain is not None or cache.recall is not of():
        return
    recall, context = cache.recall, cache._length
    rows, computed = kwargs["input_ids"].shape
    if cache._begin is not None:
        recall._storer.report(Report(recall._cache, recall._known, computed, context, cache._begin, recall._moment()))
        cache._begin = None
    cache._after(computed)
    recall.statistics.computed_tokens += rows * computed


def _generating(of: Any, generate: Any) -> Any:
    def generate_with_recall(*args: Any, **kwargs: Any) -> Any:
        recall = of()
        if recall is not None and recall._entered > 0 and kwargs.get("past_key_values") is None:
            given = kwargs.get("generation_config") or (args[1] if len(args) > 1 else None)

            def setting(name: str) -> Any:
                """As generate() looks for it: what a configuration does not say, the model's own does."""
                said = getattr(given, name, None)
                return kwargs.get(name, getattr(recall.model.generation_config, name, None) if said is None else said)
            if setting("use_cache") is not False and setting("cache_implementation") is None:
                kwargs["past_key_values"] = recall.cache()
                if (setting("prefill_chunk_size") or recall.layout.tokens_per_block) < recall.layout.tokens_per_block:
                    warn_once(f"a prompt in chunks of {setting('prefill_chunk_size')} tokens recalls nothing: its first "
                              f"has not one block of {recall.layout.tokens_per_block}")
        return generate(*args, **kwargs)
    return generate_with_recall


def _remove(hooks: list[Any]) -> None:
    for hook in hooks:
        hook.remove()


def _call(method: Any) -> None:
    bound = method()
    if bound is not None:
        bound()
