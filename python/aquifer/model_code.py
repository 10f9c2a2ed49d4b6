"""Which code computes a torch model: the same weights have another KV where another class, activation or attention
function works on them."""
from __future__ import annotations

import functools
import hashlib
import inspect
import itertools
import json
import weakref
from typing import Any, Iterator, Optional

from .errors import Invalid

# Known by their names; what else computes is known by the file that it is from.
_KNOWN_PACKAGES = frozenset(["torch", "transformers", "builtins", "abc", "typing"])
_CHOICES = ("_attn_implementation", "_experts_implementation")  # In a configuration: functions by their name.
# What a module may have as a number or a word of its own that its KV does not depend on, or that is looked at elsewhere.
_OF_NO_CONSEQUENCE = frozenset(["training", "name_or_path", "loss_type", "gradient_checkpointing"])
_PLAIN = frozenset([bool, int, float, str])

_numbers: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()
_count = itertools.count(1)
_source_digests: dict[str, str] = {}  # By file. What was imported stays as it is when the file changes.


def code_bytes(model: Any) -> bytes:
    """The same in every process with the same code. Raises Invalid where some of it has no source to know it by."""
    told = [(name, _class_said(type(module)), _own_forward_said(module), _settings(name, module), chosen,
             [_function_said(function) for function in functions])
            for name, module, chosen, functions in _parts(model)]
    return json.dumps(told).encode()


def code_version(model: Any) -> int:
    """Another number when a module, its settings, or a function that it has chosen was replaced, in this process."""
    types: dict[type, tuple[int, int]] = {}  # Few, of many modules.
    chosen_numbers: dict[tuple[Any, ...], tuple[int, ...]] = {(): ()}
    told = []
    for name, module, chosen, functions in _parts(model):
        kind = type(module)
        if kind not in types:
            types[kind] = _number(kind), _number(kind.forward)
        if functions not in chosen_numbers:
            chosen_numbers[functions] = tuple(map(_number, functions))
        told.append((name, types[kind], _number(_own_forward(module)), _settings(name, module), chosen,
                     chosen_numbers[functions]))
    return hash(tuple(told))


def _parts(model: Any) -> Iterator[tuple[str, Any, tuple[Optional[str], ...], tuple[Any, ...]]]:
    """Every module by its name, with what its configuration chooses, and the functions that go by those names."""
    registries = _registries()
    seen: dict[int, Any] = {id(None): ((), ())}  # One configuration is in many modules.
    for name, module in model.named_modules(remove_duplicate=False):
        config = module.__dict__.get("config")
        if id(config) not in seen:
            chosen = tuple(getattr(config, choice, None) for choice in _CHOICES)
            seen[id(config)] = (tuple(None if each is None else str(each) for each in chosen),
                                tuple(registry.get(each) for registry in registries for each in chosen
                                      if isinstance(each, str)))
        yield (name, module, *seen[id(config)])


@functools.lru_cache(maxsize=None)
def _registries() -> list[Any]:
    """Where transformers looks functions up by name; releases differ in which there are."""
    found = []
    for module, name in (("transformers.modeling_utils", "ALL_ATTENTION_FUNCTIONS"),
                         ("transformers.masking_utils", "ALL_MASK_ATTENTION_FUNCTIONS"),
                         ("transformers.integrations.moe", "ALL_EXPERTS_FUNCTIONS")):
        try:
            found.append(getattr(__import__(module, fromlist=[name]), name))
        except (ImportError, AttributeError):
            continue
    return found


def _settings(name: str, module: Any) -> tuple[str, str]:
    """What a module says of itself (sizes, epsilons, the kind of an approximation), and the numbers and words that it
    has as attributes: the scale of its attention is one."""
    try:
        own = sorted((key, value) for key, value in module.__dict__.items()
                     if type(value) in _PLAIN and key[0] != "_" and key not in _OF_NO_CONSEQUENCE)
        return str(module.extra_repr()), repr(own)  # In words: -1 and -2 have the same hash.
    except Exception as error:  # It is anybody's code.
        raise Invalid(f"{name} ({type(module).__name__}) does not say how it is set: {error!r}") from error


def _own_forward(module: Any) -> Any:
    """Of this one module, in the place of its class's. Accelerate's only moves tensors between devices, and calls
    the one that it replaced."""
    found = module.__dict__.get("forward")
    if found is None:
        return None
    if _package(_owner(_inmost(found))) == "accelerate":
        found = module.__dict__.get("_old_forward")
    # A method is another object at each look.
    return getattr(found, "__func__", found)


def _number(found: Any) -> int:
    """Never that of another object, also where that one is gone and its address is used again."""
    if found is None:
        return 0
    number = _numbers.get(found)
    if number is None:
        number = _numbers[found] = next(_count)
    return number


# ---- By name and source ----

def _class_said(found: type) -> list[Any]:
    """With what it inherits, and a forward() that somebody put into it later."""
    return [_source_said(each, each.__module__, each.__qualname__) for each in found.__mro__] + [
        _function_said(getattr(found, "forward"))]


def _own_forward_said(module: Any) -> Any:
    found = _own_forward(module)
    return None if found is None else _function_said(found)


def _function_said(found: Any) -> Any:
    if found is None:
        return None
    inmost = _inmost(found)
    said = [_source_said(inmost, _owner(inmost), getattr(inmost, "__qualname__", type(inmost).__qualname__))]
    wrapped = getattr(inmost, "__wrapped__", None)
    return said if wrapped is None else said + _function_said(wrapped)


def _inmost(found: Any) -> Any:
    while isinstance(found, functools.partial):
        found = found.func
    return getattr(found, "__func__", found)


def _owner(found: Any) -> str:
    """The module that a function was written in. What functools.wraps() has copied is the name of another's."""
    owner = getattr(found, "__globals__", {}).get("__name__") or getattr(found, "__module__", None)
    return str(owner or type(found).__module__)


def _package(owner: str) -> str:
    return owner.partition(".")[0]


def _source_said(found: Any, owner: str, qualname: str) -> list[str]:
    if _package(owner) in _KNOWN_PACKAGES:
        return [owner, qualname]
    try:
        source = inspect.getsourcefile(found if inspect.isclass(found) or inspect.isroutine(found) else type(found))
        if source is None:
            raise OSError("no source")
        if source not in _source_digests:
            with open(source, "rb") as file:
                _source_digests[source] = hashlib.sha256(file.read()).hexdigest()
        return [owner, qualname, _source_digests[source]]
    except (OSError, TypeError) as error:
        raise Invalid(f"{owner}.{qualname} computes a part of it, and nobody knows how, because it has no source file; "
                      "put it into one, or name the model by a digest of your own") from error
