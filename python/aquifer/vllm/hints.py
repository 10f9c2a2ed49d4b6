"""The wishes that a request has beyond its own blocks, from the three places where an engine's user or an
orchestrator can say it: `kv_transfer_params` ({"aquifer": {...}}), vLLM's `session_id`, and the envelope of KV hints,
which is `request.kv_hints` or, through HTTP, `kv_transfer_params["kv_hint"]`. docs/engines/vllm.md lists them.

A hint is never a reason to fail a request. But what cannot be read may have been meant to limit storing ("stor": false),
and nobody can take back what was stored for ever. So a request with a value that limits storing, or with a name that
nobody knows, is not stored where that cannot be read, and the mistake is counted and warned of. A value that only helps
(session, priority, pinning) is left out, counted and warned of. Other people's params and actions are left alone.
"""
from __future__ import annotations

import dataclasses
import difflib
import hashlib
import itertools
import math
import reprlib
from typing import Any, Iterable, Optional

from vllm.logger import init_logger

from ..cache import SessionState

logger = init_logger("vllm." + __name__)  # vLLM shows what is below its own name.

_LEAST_PRIORITY, _MOST_PRIORITY = -8, 7
_MOST_SECONDS = 10 * 365 * 24 * 3600
_MOST_SESSIONS = 16  # To be prefetched for one request.
_NAME_BYTES = 256
_MOST_WARNINGS = 32  # Clients choose the names of what they say.
_MOST_MISTAKES = 8  # Of one request: then it is read no further.
_MOST_PARAMS = 64  # Of other people, among which one of ours may be mistyped.
_NAME_CHARACTERS = 32  # A name that is longer resembles none of ours.


@dataclasses.dataclass(frozen=True)
class Wishes:
    session: Optional[str] = None  # The chain is this conversation's,
    state: SessionState = SessionState.WILL_CONTINUE  # and whether that goes on.
    priority: int = 0
    ttl_seconds: int = 0
    pin_seconds: int = 0
    store: bool = True
    prefetch: tuple[str, ...] = ()  # Sessions whose blocks will be wanted soon.
    return_seconds: int = 0  # When it goes on; 0: nobody knows.
    durable: bool = False  # To outlive the node, though the tenant's other blocks do not.
    # Mistakes, each with its kind. Where one may have been to limit storing, `store` is False.
    mistakes: tuple[tuple[str, str], ...] = ()

    @property
    def for_the_node(self) -> bool:
        """Whether there is anything to be told about the request's blocks."""
        return self.hinted or bool(self.pin_seconds)

    @property
    def hinted(self) -> bool:
        """Whether some of it is said in a hint."""
        return self.session is not None or self.durable or bool(
            self.priority or self.ttl_seconds or self.return_seconds)


def _name(value: Any) -> Optional[str]:
    if not isinstance(value, str) or not value or "\0" in value:  # The library would end it there.
        return None
    said = value.encode(errors="surrogatepass")
    if len(said) <= _NAME_BYTES and said.decode(errors="ignore") == value:  # It has no half of a character.
        return value
    # Two that begin alike are two: who forgets the one is not to forget the other.
    end = "~" + hashlib.sha256(said).hexdigest()[:32]
    return said[:_NAME_BYTES - len(end)].decode(errors="ignore") + end


class _Reader:
    """Collects what one request says, and what is wrong with it."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self._mistakes: list[tuple[str, str]] = []
        self._may_store = True

    @property
    def is_hopeless(self) -> bool:
        return len(self._mistakes) >= _MOST_MISTAKES

    def wrong(self, kind: str, said: str, limits_storing: bool = True) -> None:
        self._mistakes.append((kind, said + (": the request is not stored" if limits_storing else ": it is left out")))
        self._may_store = self._may_store and not limits_storing and not self.is_hopeless

    def read(self, values: dict[Any, Any]) -> None:
        """Fields of Wishes, by name. None is as good as nothing: many clients send it."""
        for name, value in values.items():
            if self.is_hopeless:
                return
            if value is None:
                continue
            if name in _NAMES:
                self._read_one(name, value)
            else:
                self.wrong(f"unknown {_shown(name)}", f"{_shown(name)} is unknown{_nearest(name)}")

    def _read_one(self, name: str, value: Any) -> None:
        read = _NAMES[name](value)
        if read is None:
            self.wrong(name, f"{name} cannot be {_shown(value)}", limits_storing=name in _LIMITS)
        else:
            self.fields[name] = read

    def wishes(self, prefetch: list[str]) -> "Wishes":
        fields = self.fields
        if fields.pop("finished", False):
            fields["state"] = SessionState.FINISHED
        if "session" not in fields:
            fields.pop("durable", None)  # Every store would be a session, by a name that nobody knows.
        fields["store"] = fields.get("store", True) and self._may_store
        return Wishes(**fields, prefetch=tuple(prefetch[:_MOST_SESSIONS]), mistakes=tuple(self._mistakes))


_brief = reprlib.Repr()
_brief.maxstring = _brief.maxother = 60
_shown = _brief.repr  # In few characters, however much a client said.


def _nearest(name: Any, ours: Iterable[str] = ()) -> str:
    if not isinstance(name, str) or len(name) > _NAME_CHARACTERS:
        return ""
    near = difflib.get_close_matches(name.lower(), ours or _NAMES, 1, 0.75)
    return f" (is it {near[0]!r}?)" if near else ""


# ---- Values; None: it cannot be read ----

def _flag(value: Any) -> Optional[bool]:
    return value if isinstance(value, bool) else None


def _number(value: Any, least: float, most: float) -> Optional[int]:
    """Rounded away from 0, which means that nothing was said; what is beyond the limits is at them."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        return None
    within = max(least, min(most, value))
    return math.ceil(within) if within > 0 else math.floor(within)


def _priority(value: Any) -> Optional[int]:
    return _number(value, _LEAST_PRIORITY, _MOST_PRIORITY)


def _seconds(value: Any) -> Optional[int]:
    seconds = _number(value, -1, _MOST_SECONDS)
    return seconds if seconds is not None and seconds >= 0 else None


def _lifetime(value: Any) -> Optional[int]:
    """A lifetime of 0 is no lifetime, and would be none at all for the node."""
    return _seconds(value) or None


_NAMES = {"session": _name, "finished": _flag, "priority": _priority, "ttl_seconds": _lifetime,
          "return_seconds": _seconds, "durable": _flag, "pin_seconds": _seconds, "store": _flag}
_LIMITS = frozenset(("store", "ttl_seconds"))  # A mistake in one of these keeps the request from being stored.


def _get(of: Any, name: str) -> Any:
    """vLLM has structs where HTTP has objects."""
    return of.get(name) if isinstance(of, dict) else getattr(of, name, None)


def _read_envelope(reader: _Reader, envelope: Any) -> list[str]:
    """Its actions, into the reader; the sessions that are to be prefetched."""
    sessions: list[str] = []
    if envelope is None:
        return sessions
    actions = _get(envelope, "actions")
    if not isinstance(actions, (list, tuple)):
        reader.wrong("kv_hint", f"kv_hint has no list of actions, but is {_shown(envelope)}")
        return sessions
    for action in actions:
        if reader.is_hopeless:
            break
        kind, version, payload = (_get(action, name) for name in ("action_type", "action_version", "payload"))
        if not isinstance(kind, str):
            reader.wrong("action", f"an action of kv_hint is {_shown(action)}")
        elif kind.startswith("aquifer."):
            _read_action(reader, kind, _shown(version).strip("'"), payload, sessions)
        # Others' actions are theirs; and kv.fetch asks for the request's own blocks, which every request's arrival does.
    return sessions


def _read_action(reader: _Reader, kind: str, version: str, payload: Any, sessions: list[str]) -> None:
    helps = kind in ("aquifer.pin", "aquifer.prefetch")  # These two limit nothing.
    if not (helps or kind == "aquifer.retain") or version.split(".")[0] != "1" or not isinstance(payload, dict):
        reader.wrong(f"action {_shown(kind)}", f"the action {_shown(kind)} of version {version} cannot be read",
                     limits_storing=not helps)
    elif kind == "aquifer.retain":
        reader.read(payload)
    elif kind == "aquifer.pin":
        reader.read({"pin_seconds": payload.get("seconds")})
    elif (other := _name(payload.get("session"))) is not None:
        sessions.append(other)
    else:
        reader.wrong(kind, f"its session cannot be {_shown(payload.get('session'))}", limits_storing=False)


def _read_params(reader: _Reader, params: dict[Any, Any]) -> None:
    """Our part of kv_transfer_params, and mistakes beside it: a limit in the wrong place, or "aquifier"."""
    ours = params.get("aquifer")
    if isinstance(ours, dict):
        reader.read(ours)
    elif ours is not None:
        reader.wrong("aquifer", f"aquifer cannot be {_shown(ours)}, but an object")
    for name in sorted(_LIMITS & params.keys()):
        reader.wrong(f"misplaced {name}", f'{name} stands beside "aquifer", and belongs into it')
    for name in itertools.islice(params, _MOST_PARAMS):
        if name != "aquifer" and (meant := _nearest(name, ["aquifer"])):
            reader.wrong(f"unknown {_shown(name)}", f"{_shown(name)} is unknown{meant}")


_NONE = Wishes()


def read_wishes(request: Any) -> Wishes:
    """Reads one of vLLM's requests. `kv_transfer_params` goes before an action of the envelope."""
    params, hints = request.kv_transfer_params, getattr(request, "kv_hints", None)
    if not params and request.session_id is None and hints is None:
        return _NONE
    reader, sessions = _Reader(), list[str]()
    if (session := _name(request.session_id)) is not None:
        reader.fields["session"] = session
    is_object = isinstance(params, dict)
    for envelope in (hints, params.get("kv_hint") if is_object else None):
        sessions += _read_envelope(reader, envelope)
    if is_object:
        _read_params(reader, params)
    elif params:
        reader.wrong("params", f"all of it is {_shown(params)}, and should be an object")
    return reader.wishes(sessions)


class Warnings:
    """Warns once of each kind of mistake, and of so many kinds in all."""

    def __init__(self) -> None:
        self._kinds: set[str] = set()

    def tell(self, mistakes: tuple[tuple[str, str], ...]) -> None:
        for kind, said in mistakes:
            if kind in self._kinds or len(self._kinds) >= _MOST_WARNINGS:
                continue
            self._kinds.add(kind)
            logger.warning("Aquifer: kv_transfer_params or KV hints of a request: %s", said)
            if len(self._kinds) == _MOST_WARNINGS:
                logger.warning("Aquifer: further mistakes of requests are only counted (vllm:aquifer_invalid_params)")
