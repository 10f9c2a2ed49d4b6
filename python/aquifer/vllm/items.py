"""Which images, sounds and videos a request has: each is named by what the engine was given for it.

vLLM goes by an item's identifier, which is no name: a client may have made it up (`multi_modal_uuids`), or it is that
of a request. And what vLLM has computed under an identifier, pages of its own prefix cache and outputs of the encoder,
it uses for whatever comes under the same one later. So what is computed behind an item is stored only while its
identifier has stood for this item alone ever since the engine started.

Items have megabytes, and are hashed on a thread, in the order in which they came."""
from __future__ import annotations

import hashlib
import os
import queue
import threading
import weakref
from typing import Any, Optional

import numpy
import torch
from vllm.logger import init_logger

logger = init_logger("vllm." + __name__)  # vLLM shows what is below its own name.

_MOST_WAITING = 1024  # Items.
_SLOTS = 1 << 20  # For identifiers; of two that share one, the first is believed.
_NOBODY = (1 << 64) - 1  # In a slot: no item is believed.


class Item:
    """A request has it between two of its tokens."""

    def __init__(self, feature: Any):
        self.first: int = feature.mm_position.offset
        self.end: int = self.first + feature.mm_position.length
        self.name: Optional[bytes] = None
        self.is_settled = False  # It has a name, or will never have one.
        self.slot = 0
        self.mark = 0

    def extra(self) -> bytes:
        """What a block's key has of it. Placeholders look alike, so that their number does not tell where it begins."""
        assert self.name is not None
        return self.name + self.first.to_bytes(8, "little")


def may_be_named(vllm_config: Any) -> bool:
    """Whether what is computed behind items follows from them: not where the encoder is in another place, and what it
    made is taken by identifier; nor where it leaves tokens out, since vLLM then has wrong positions behind an item that
    it did not encode; nor where its attention is quantised: the scales follow from items before, or are in a file."""
    settings = getattr(getattr(vllm_config, "model_config", None), "multimodal_config", None)
    if getattr(vllm_config, "ec_transfer_config", None) is not None:
        return False
    if getattr(settings, "mm_encoder_attn_dtype", None) not in (None, "auto"):
        return False
    return not getattr(settings, "video_pruning_rate", None)


class Items:
    def __init__(self, may_name: bool = True) -> None:
        self._may_name = may_name
        self._hasher = _Hasher()
        self._salt = os.urandom(16)  # Nobody can choose identifiers that share a slot.
        self._lock = threading.Lock()  # To change marks, each of which is read at any time.
        self._marks = numpy.zeros(_SLOTS, numpy.uint64)  # What identifiers stand for, in short; 0: nothing yet.
        self._waiting: queue.SimpleQueue[Optional[tuple[Item, Any, bytes]]] = queue.SimpleQueue()
        self._thread: Optional[threading.Thread] = None

    def of(self, request: Any, adapter: Optional[bytes]) -> tuple[Item, ...]:
        """They are named in a moment. Those that are not in order never are: the positions of one may depend on
        another's."""
        items, end = [], 0
        for feature in request.mm_features or ():
            item = Item(feature)
            is_in_order = end <= item.first < item.end
            if not (self._may_name and is_in_order and _is_here(feature)) or self._waiting.qsize() >= _MOST_WAITING:
                self.distrust(feature.identifier)
                item.is_settled = True
            else:
                self._begin(item, feature, adapter)
            items.append(item)
            end = max(end, item.end)
        return tuple(items)

    def distrust(self, identifier: str) -> None:
        """Something was computed under it, and nobody knows of what."""
        with self._lock:
            self._marks[self._slot(identifier)] = _NOBODY

    def trusted_tokens(self, items: tuple[Item, ...], tokens: int) -> int:
        """So many of the first tokens are in front of all items that are not to be believed."""
        return min([tokens, *(item.first for item in items
                              if item.name is None or self._marks[item.slot] != item.mark)])

    def close(self) -> None:
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join(10.0)

    def _begin(self, item: Item, feature: Any, adapter: Optional[bytes]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="aquifer-items", daemon=True)
            self._thread.start()
        # Where an adapter changes the encoder, too, vLLM says so in the identifier.
        has_own = feature.mm_hash is not None and feature.identifier != feature.mm_hash
        self._waiting.put((item, feature, (adapter or b"") if has_own else b""))

    def _slot(self, identifier: str) -> int:
        return self._number(_bytes_of(identifier)) % _SLOTS

    def _number(self, said: bytes) -> int:
        return int.from_bytes(hashlib.sha256(self._salt + said).digest()[:8], "little")

    # ---- The thread ----

    def _run(self) -> None:
        while (given := self._waiting.get()) is not None:
            item, feature, adapter = given
            try:
                name = self._hasher.name_of(feature)
                self._believe(item, feature.identifier, name + adapter)
                item.name = name
            except Exception as error:  # Data that nobody has seen before is no reason to stop.
                logger.warning("Aquifer: an item of modality %r has no name, and is computed: %s", feature.modality,
                               error)
                self.distrust(feature.identifier)
            item.is_settled = True

    def _believe(self, item: Item, identifier: str, stands_for: bytes) -> None:
        item.slot = self._slot(identifier)
        # Half of a mark is the identifier's: one that shares a slot is not believed, and costs the other nothing.
        half = (1 << 32) - 1
        whose = self._number(b"whose" + _bytes_of(identifier)) % half
        item.mark = whose << 32 | 1 + self._number(stands_for + _bytes_of(identifier)) % half
        with self._lock:
            there = int(self._marks[item.slot])
            if there == 0:
                self._marks[item.slot] = item.mark
            elif there != item.mark and there >> 32 == whose:
                self._marks[item.slot] = _NOBODY


def _bytes_of(identifier: str) -> bytes:
    return identifier.encode(errors="surrogatepass")


def _is_here(feature: Any) -> bool:
    """Not only a worker's address of it, nor what the encoder makes of it, nor its size alone."""
    data = feature.data
    if data is None or "address" in data or feature.modality == "prompt_embeds":
        return False
    return any(not element.field.keep_on_cpu for element in data.values())


class _Hasher:
    """What has been hashed is remembered for as long as the engine has it: a conversation's images come with every
    turn of it."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, bytes]] = {}

    def name_of(self, feature: Any) -> bytes:
        position = feature.mm_position
        digest = hashlib.sha256(b"aquifer.vllm.item.v1")
        _add(digest, feature.modality)
        digest.update(self._digest_of(feature.data))
        _add(digest, position.length)
        _add(digest, position.is_embed)
        return digest.digest()

    def _digest_of(self, data: Any) -> bytes:
        found = self._known.get(id(data))
        if found is not None and found[0]() is data:
            return found[1]
        digest = hashlib.sha256()
        _add(digest, len(data))
        for name, field in sorted(data.items()):
            if field.data is None:
                raise ValueError(f"its {name} is not here")
            _add(digest, name)
            _add(digest, field.data)
        number, made = id(data), digest.digest()
        self._known[number] = (weakref.ref(data, lambda _: self._known.pop(number, None)), made)
        return made


def _add(digest: Any, value: Any) -> None:
    """Every value begins with what it is and how long, so that no two are one text."""
    if isinstance(value, torch.Tensor):
        if not value.is_cpu or value.layout is not torch.strided or value.is_quantized:
            raise ValueError(f"a tensor is on {value.device}, sparse or quantised")
        digest.update(f"tensor {value.dtype} {list(value.shape)};".encode())
        digest.update(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy())
    elif isinstance(value, (list, tuple)):
        digest.update(f"{type(value).__name__} {len(value)};".encode())
        for one in value:
            _add(digest, one)
    elif value is None or isinstance(value, (bool, int, float, str, bytes)):
        text = value if isinstance(value, bytes) else repr(value).encode()
        digest.update(f"{type(value).__name__} {len(text)};".encode() + text)
    else:
        raise ValueError(f"a {type(value).__name__} is nothing that we know")
