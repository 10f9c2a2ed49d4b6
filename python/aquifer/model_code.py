"""Which code computes a torch model: the same weights have another KV where another class, activation or attention
function works on them."""
from __future__ import annotations

import enum
import functools
import hashlib
import inspect
import itertools
import json
import numbers
import types
import weakref
from typing import Any, Iterator, Optional

import torch

from .configuration import configuration_bytes
from .errors import Invalid

# Known by their names; what else computes is known by the file that it is from.
_KNOWN_PACKAGES = frozenset(["torch", "transformers", "builtins", "abc", "typing", "math"])
_CHOICES = ("_attn_implementation", "_experts_implementation")  # In a configuration: functions by their name.
# What a module may have as a number or a word of its own that its KV does not depend on, or that is looked at elsewhere.
_OF_NO_CONSEQUENCE = frozenset(["training", "name_or_path", "loss_type", "gradient_checkpointing"])
_PLAIN = frozenset([bool, int, float, str])
_NUMBERS_AND_WORDS = (int, float, str, numbers.Number)  # Numpy's are of the last kind.
_OWN_CLASS_CELL = "__class__"  # A method that calls super() holds its own class.
_KNOWN_BY_REPR = frozenset([bytes, complex, torch.dtype, torch.device])  # Their repr() is all of them.

_numbers: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()
_count = itertools.count(1)
_source_digests: dict[str, str] = {}  # By file. What was imported stays as it is when the file changes.


def code_bytes(model: Any) -> bytes:
    """The same in every process with the same code. Raises Invalid where some of it has no source to know it by."""
    teller = _Teller(model)
    told = [(name, teller.class_said(type(module)), teller.function_said(_own_forward(module)), _settings(name, module),
             chosen, [teller.function_said(function) for function in functions])
            for name, module, chosen, functions in _parts(model)]
    return json.dumps(told).encode()


def code_version(model: Any) -> int:
    """Another number when a module, its settings, or a function that it has chosen was replaced, in this process."""
    kinds: dict[type, tuple[Any, Any]] = {}  # Few, of many modules.
    chosen_numbers: dict[int, tuple[Any, ...]] = {}  # By the functions' tuple, of which there is one a configuration.
    told = []
    for name, module, chosen, functions in _parts(model):
        kind = type(module)
        if kind not in kinds:
            kinds[kind] = _number(kind), _number(kind.forward)
        if id(functions) not in chosen_numbers:
            chosen_numbers[id(functions)] = tuple(map(_number, functions))
        told.append((name, kinds[kind], _number(_own_forward(module)), _settings(name, module), chosen,
                     chosen_numbers[id(functions)]))
    return hash(tuple(told))


def _parts(model: Any) -> Iterator[tuple[str, Any, tuple[Optional[str], ...], tuple[Any, ...]]]:
    """Every module by its name, with what its configuration chooses, and the functions that go by those names."""
    registries = _registries()
    seen: dict[int, Any] = {id(None): ((), ())}  # One configuration is in many modules.
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, torch.jit.ScriptModule):
            raise Invalid(f"{name} is TorchScript, and nobody knows how it computes; give the module that it was made "
                          "of, or name the model by a digest of your own")
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
                     if key[0] != "_" and isinstance(value, _NUMBERS_AND_WORDS) and key not in _OF_NO_CONSEQUENCE)
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
    return found


def _number(found: Any) -> Any:
    """Never that of another object, also where that one is gone and its address is used again."""
    if found is None:
        return 0
    if isinstance(found, types.MethodType):  # Another object at each look.
        return _number(found.__func__), _number(found.__self__)
    try:
        number = _numbers.get(found)
        if number is None:
            number = _numbers[found] = next(_count)
        return number
    except TypeError:
        raise Invalid(f"a {type(found).__qualname__} computes a part of it, and nobody can tell it from another, because "
                      "it has no hash; give it one, or put a function in its place") from None


# ---- By name, source, and what it holds ----

class _Teller:
    """Says, of one model's code, what it is: the same in every process."""

    def __init__(self, model: Any):
        self._places = {id(module): name for name, module in model.named_modules()}
        self._under_way: set[int] = set()  # Ids of functions and classes that are being told of: one may hold itself.

    def class_said(self, found: type) -> list[Any]:
        """With what it inherits, and a forward() that somebody put into it later."""
        if id(found) in self._under_way:
            return ["itself"]
        self._under_way.add(id(found))
        try:
            return [*map(self._one_class_said, found.__mro__), self.function_said(getattr(found, "forward", None))]
        finally:
            self._under_way.discard(id(found))

    def _one_class_said(self, found: type) -> list[Any]:
        said: list[Any] = _source_said(found, found.__module__, found.__qualname__)
        if _package(found.__module__) in _KNOWN_PACKAGES:
            return said
        # The methods of a class that was made in a function hold that function's variables, and a program may have set an
        # attribute to something else than its file says.
        for name, value in sorted(vars(found).items()):
            function = getattr(value, "__func__", getattr(value, "fget", value))  # Static, of the class, a property.
            if isinstance(function, types.FunctionType):
                if _holds_something(function):
                    said.append(self.function_said(function))
            elif name[0] != "_" and isinstance(value, _NUMBERS_AND_WORDS):
                said.append([name, repr(value)])
        return said

    def function_said(self, found: Any) -> Any:
        """Also of other things that can be called."""
        if found is None:
            return None
        if id(found) in self._under_way:
            return ["itself"]
        self._under_way.add(id(found))
        try:
            return self._called_said(found)
        finally:
            self._under_way.discard(id(found))

    def _called_said(self, found: Any) -> list[Any]:
        if isinstance(found, functools.partial):
            return ["partial", self.function_said(found.func), self._value_said(found.args, found),
                    self._value_said(found.keywords, found)]
        if isinstance(found, types.MethodType):
            return ["method", self.function_said(found.__func__), self._value_said(found.__self__, found)]
        owner = _owner(found)
        said: list[Any] = [_source_said(found, owner, _qualname(found))]
        wrapped = getattr(found, "__wrapped__", None)
        if _package(owner) not in _KNOWN_PACKAGES:
            said += self._held(found)
        elif isinstance(found, types.FunctionType):
            if wrapped is None:  # Else it holds what it wraps, of which it is told below.
                said += self._cells_said(found)
        else:
            said += self._bound_said(found)
        return said if wrapped is None else said + self.function_said(wrapped)

    def _held(self, found: Any) -> list[Any]:
        """A file may have many functions of one name, and one may have been made many times."""
        if isinstance(found, types.FunctionType):
            return [_code_digest(found.__code__), self._cells_said(found), self._value_said(found.__defaults__, found),
                    self._value_said(found.__kwdefaults__, found)]
        if inspect.isroutine(found):
            return self._bound_said(found)
        if not _keeps_all_in_attributes(found):
            raise _unknown(found, found)
        return [self.class_said(type(found)), self._value_said(vars(found), found)]

    def _bound_said(self, found: Any) -> list[Any]:
        """Of a compiled function, the object that it is bound to. Anything else that is called (script functions, operators
        of torch.library) is refused: its class and name do not say how it computes."""
        if not inspect.isroutine(found):
            raise _unknown(found, found)
        bound = getattr(found, "__self__", None)
        return [] if bound is None or isinstance(bound, (types.ModuleType, type)) else [self._value_said(bound, found)]

    def _cells_said(self, found: types.FunctionType) -> list[Any]:
        return [self._cell_said(cell, found) for name, cell in zip(found.__code__.co_freevars, found.__closure__ or ())
                if name != _OWN_CLASS_CELL]

    def _cell_said(self, cell: Any, holder: Any) -> Any:
        try:
            value = cell.cell_contents
        except ValueError:  # Nothing is in it yet.
            return "empty"
        return self._value_said(value, holder)

    def _value_said(self, value: Any, holder: Any) -> Any:
        kind = type(value)
        if value is None or kind in _PLAIN or kind in _KNOWN_BY_REPR or isinstance(value, enum.Enum):
            return [kind.__qualname__, repr(value)]
        if kind in (tuple, list, torch.Size):
            return [kind.__qualname__, [self._value_said(each, holder) for each in value]]
        if kind is dict:
            return ["dict", [[self._value_said(each, holder) for each in item] for item in value.items()]]
        if isinstance(value, torch.nn.Module) and id(value) in self._places:
            return ["module", self._places[id(value)]]  # It is told of there.
        if isinstance(value, types.ModuleType):
            return ["file", value.__name__]
        if isinstance(value, type):
            return ["class", self.class_said(value)]
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            return ["configuration", configuration_bytes(value).decode()]
        is_called = isinstance(value, functools.partial) or inspect.isroutine(value)
        if is_called or _package(kind.__module__) not in _KNOWN_PACKAGES:
            return self.function_said(value)
        raise _unknown(value, holder)


def _unknown(value: Any, holder: Any) -> Invalid:
    return Invalid(f"{_owner(holder)}.{_qualname(holder)} computes a part of it, and holds a {type(value).__qualname__}, "
                   "of which nobody knows what it is; have it hold numbers and words, or name the model by a digest of "
                   "your own")


def _holds_something(function: types.FunctionType) -> bool:
    """That its text does not say."""
    return bool(set(function.__code__.co_freevars) - {_OWN_CLASS_CELL} or function.__defaults__ or function.__kwdefaults__)


def _keeps_all_in_attributes(found: Any) -> bool:
    """Not what is made of a dictionary, a number or a tensor, which keep theirs elsewhere, nor what has slots."""
    kind = type(found)
    return (hasattr(found, "__dict__") and kind.__new__ is object.__new__
            and not any(vars(each).get("__slots__") for each in kind.__mro__))


def _code_digest(code: types.CodeType) -> str:
    constants = list(map(_constant_said, code.co_consts))
    said = code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars, constants
    return hashlib.sha256(repr(said).encode(errors="surrogatepass")).hexdigest()


def _constant_said(constant: Any) -> str:
    if isinstance(constant, types.CodeType):
        return _code_digest(constant)
    if isinstance(constant, frozenset):  # In another order in every process.
        return f"frozenset {sorted(map(_constant_said, constant))}"
    return repr(constant)


def _inmost(found: Any) -> Any:
    while isinstance(found, functools.partial):
        found = found.func
    return getattr(found, "__func__", found)


def _qualname(found: Any) -> str:
    return str(getattr(found, "__qualname__", type(found).__qualname__))


def _owner(found: Any) -> str:
    """The module that a function was written in. What functools.wraps() has copied is the name of another's."""
    if isinstance(found, types.FunctionType):
        is_generated = found.__code__.co_filename.startswith("<")  # By whoever, and in whosever name.
        return "" if is_generated else str(found.__globals__.get("__name__", ""))
    return str(getattr(found, "__module__", None) or type(found).__module__)


def _package(owner: str) -> str:
    return owner.partition(".")[0]


def _source_said(found: Any, owner: str, qualname: str) -> list[Any]:
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
