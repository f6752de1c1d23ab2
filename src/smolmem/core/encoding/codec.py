"""A smolagents object ⇄ its record: canonical bytes, their blobs, and the messages the model was sent.

A step is written field by field from its `__dict__` and read back with `__new__`. So no constructor runs
(constructors log, validate and convert), a field that a later release adds is kept, and a `timing` that was set to
`None` stays `None`.

What the model was sent (`model_input_messages`) repeats the whole conversation at every step. It is taken out of the
record and stored as the beginning of an earlier prompt and new messages (see `core.prompts`).
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple, cast

from smolagents import agent_types, agents, memory, models, monitoring
from smolagents import utils as errors

from smolmem.core.encoding import type_codecs, wire
from smolmem.core.encoding.decoder import Decode, Decoder
from smolmem.core.encoding.encoder import Encode, Encoder, Inside
from smolmem.core.encoding.instances import NotRestored, attributes
from smolmem.core.encoding.mutations import Outcome
from smolmem.core.encoding.placeholders import named, safe_text, type_name
from smolmem.core.encoding.wire import Json
from smolmem.core.injected import Injected
from smolmem.core.redaction import Known, Redactor, may_lack_secrets

KINDS: dict[type, str] = {
    memory.SystemPromptStep: "system_prompt",
    memory.TaskStep: "task",
    memory.PlanningStep: "planning",
    Injected: "injected",
    memory.ActionStep: "action",
    memory.FinalAnswerStep: "final_answer",
}
"""The kind under which each class of step is stored and filtered."""

MODEL_INPUT = "model_input_messages"


class _TakenOut:
    """Stands in a record for the model input, which is stored as a prompt."""


_TAKEN_OUT = _TakenOut()

_PLAIN: tuple[type, ...] = (
    *KINDS,
    memory.MemoryStep,
    memory.ToolCall,
    models.ChatMessage,
    models.ChatMessageToolCall,
    models.ChatMessageToolCallFunction,
    models.ChatMessageStreamDelta,
    models.ChatMessageToolCallStreamDelta,
    monitoring.Timing,
    monitoring.TokenUsage,
    agents.ActionOutput,
    agents.ToolOutput,
    agents.RunResult,
)
_BY_NAME: dict[str, type] = {cls.__name__: cls for cls in _PLAIN}

_ERRORS: dict[str, type[BaseException]] = {
    cls.__name__: cls
    for cls in (
        errors.AgentError,
        errors.AgentParsingError,
        errors.AgentExecutionError,
        errors.AgentMaxStepsError,
        errors.AgentToolCallError,
        errors.AgentToolExecutionError,
        errors.AgentGenerationError,
    )
} | {name: cls for name, cls in vars(builtins).items() if isinstance(cls, type) and issubclass(cls, BaseException)}


class RecordedError(Exception):
    """An exception of an unknown class; its text and the name of its class are kept."""

    def __str__(self) -> str:
        return str(self.__dict__.get("$text", ""))


class _Verbatim(str):
    """A text whose `repr` is the text itself."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str.__str__(self)


class VerbatimToolCall(memory.ToolCall):  # type: ignore[misc]
    """A tool call whose arguments are not plain JSON; a model is shown the same text as for the original."""

    __slots__ = ("shown",)
    shown: _Verbatim

    def dict(self) -> dict[str, Any]:
        """The call as smolagents renders it into a prompt."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.shown}}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, memory.ToolCall) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


class Encoded(NamedTuple):
    """A value as it is stored: its record, the hash of the record, its blobs, and what the model was sent.

    `redacted`: secrets were taken out, so that the stored value differs from the value itself.
    """

    record: bytes
    key: str
    blobs: dict[str, bytes]
    model_input: Sequence[Any] | None = None
    redacted: bool = False
    inside: Inside = Inside()


# --- writing ------------------------------------------------------------------------------------------------------


def encode(value: Any, redactor: Redactor | None = None, shared: Mapping[int, int] = {}) -> Encoded:
    """Encodes any value, without its secrets if a redactor is given; never raises.

    Each field of a step is encoded by itself, to be decoded alone. `shared` has the numbers of objects by id().
    """
    encoder = Encoder(_EXACT, _KIN, shared)
    if not issubclass(type(value), (memory.MemoryStep, models.ChatMessage)):
        return _encoded(encoder.value(value), encoder, None, redactor)
    own = dict(vars(value))
    model_input = own.get(MODEL_INPUT)
    if isinstance(model_input, Sequence) and not isinstance(model_input, (str, bytes)):
        own[MODEL_INPUT] = _TAKEN_OUT
    else:
        model_input = None
    tree = _head(type(value)) | {name: encoder.value(item) for name, item in own.items()}  # type: ignore[arg-type]
    return _encoded(tree, encoder, model_input, redactor)


def _encoded(tree: Json, encoder: Encoder, model_input: Any, redactor: Redactor | None) -> Encoded:
    record = wire.dumps(tree)
    clean = record if redactor is None else redactor.record(tree, record, encoder)
    return Encoded(clean, wire.fingerprint(clean), encoder.blobs, model_input, clean is not record, encoder.inside)


def objects(value: Any, shared: Mapping[int, int]) -> list[Any]:
    """The objects in a value, except texts, numbers and shared ones, each before those inside it."""
    encoder = Encoder(_EXACT, _KIN, shared)
    encoder.value(value)
    return encoder.objects


def is_described(value: Any) -> bool:
    """Whether a record can only describe a value, or something inside it."""
    return encode(value).inside.is_described


def holds_placeholder(value: Any) -> bool:
    """Whether a value is a placeholder, or holds one somewhere inside."""
    encoder = Encoder(_EXACT, _KIN)
    encoder.value(value)
    return encoder.placeholders > 0


def copy(value: Any) -> Any:
    """A value as it comes back from a record."""
    encoded = encode(value)
    return decode(encoded.record, encoded.blobs.__getitem__)


def live_key(value: Any) -> str:
    """A hash of a value with its secrets, to compare it with itself later; never stored."""
    return encode(value).key


def sketch(step: Any) -> str:
    """A hash of a step with its secrets and without its prompt, to compare it with itself later: packs no picture."""
    encoder = Encoder(_EXACT, _KIN)
    encoder.packs_pictures = False
    own = {name: item for name, item in vars(step).items() if name != MODEL_INPUT}
    return wire.fingerprint(wire.dumps([type_name(step), encoder.value(own)]))


def are_alike(one: Any, other: Any) -> bool:
    """Whether two values have the same record, perhaps in two processes."""
    return _is_alike(encode(one).record, encode(other).record)


def _is_alike(one: bytes, other: bytes) -> bool:
    return one == other or wire.dumps(_comparable(wire.loads(one))) == wire.dumps(_comparable(wire.loads(other)))


def _comparable(record: Json) -> Json:
    """A record without details that differ between processes: classes of basic values, addresses of objects."""
    if isinstance(record, list):
        return [_comparable(item) for item in record]
    if not isinstance(record, dict):
        return record
    if record.get("$") == "like":
        return _comparable(record["v"])
    described = ("repr", "str") if record.get("$") == "object" else ()
    return {name: _ADDRESS.sub("", item) if name in described else _comparable(item) for name, item in record.items()}


_ADDRESS = re.compile("0x[0-9a-fA-F]+")


def kind_of(step: Any) -> str:
    """The kind of a step; `other` for a class that smolagents does not define."""
    known = KINDS.get(original_class(step))
    return known or next((word for cls, word in KINDS.items() if isinstance(step, cls)), "other")


def is_interrupted(step: Any) -> bool:
    """Whether a step was interrupted before it was done; smolagents puts such a step on the list, too."""
    unseen = isinstance(step, memory.ActionStep) and step.error is None and step.observations is None
    return unseen and not step.is_final_answer


def original_class(value: Any) -> Any:
    """The class a value has, or had before it was observed (see `agents.observed_steps`)."""
    return getattr(type(value), "_original_class", type(value))


@cache
def _head(cls: Any) -> dict[str, Json]:
    own = getattr(cls, "_original_class", cls)
    base = next(each for each in own.__mro__ if each in _EXACT_PLAIN)
    return {"$": base.__name__} | ({} if base is own else {"$type": f"{cls.__module__}.{cls.__qualname__}"})


def _fields(encoder: Encoder, value: Any) -> Json:
    return _head(type(value)) | {name: encoder(item) for name, item in vars(value).items()}  # type: ignore[arg-type]


def _tool_call(encoder: Encoder, value: memory.ToolCall) -> Json:
    made = {"$": "ToolCall"} | {name: encoder(item) for name, item in vars(value).items()}
    if isinstance(value, VerbatimToolCall) or not _is_json(value.arguments):
        with suppress(Exception):  # smolagents itself cannot show some arguments, an enum for one
            made["$shown"] = encoder(repr(value.dict()["function"]["arguments"]))
    return made


def _is_json(value: Any, depth: int = 0) -> bool:
    if type(value) is dict:
        return depth < 20 and all(type(key) is str and _is_json(item, depth + 1) for key, item in value.items())
    if type(value) is list:
        return depth < 20 and all(_is_json(item, depth + 1) for item in value)
    return value is None or type(value) in (str, int, float, bool)


def _error(encoder: Encoder, value: BaseException) -> Json:
    base = next(cls for cls in type(value).__mro__ if _ERRORS.get(cls.__name__) is cls)
    made: dict[str, Json] = {"$": "error", "class": base.__name__, "text": safe_text(str, value)}
    if base is not type(value):
        made["type"] = type_name(value)
    made["args"] = [encoder(arg) for arg in value.args]
    if isinstance(value, errors.AgentError):
        made["message"] = encoder(getattr(value, "message", None))
    elif own := {name: item for name, item in (attributes(value) or {}).items() if name != "$text" and _is_json(item)}:
        made["own"] = encoder(own)
    for link in ("__cause__", "__context__"):
        if getattr(value, link) is not None:
            made[link] = encoder(getattr(value, link))
    if value.__suppress_context__:
        made["suppress"] = True
    return made


# --- reading ------------------------------------------------------------------------------------------------------


def decode(
    record: bytes,
    fetch: Callable[[str], bytes],
    model_input: Any = None,
    *,
    secrets: Known | None = None,
    classes: Mapping[str, type] | None = None,
    exact: bool = False,
    whole: bool = False,
) -> Any:
    """Decodes a record.

    Args:
        record: the record that `encode` made.
        fetch: finds a blob by its hash.
        model_input: what a step's model input becomes, if it had any.
        secrets: secrets to put back in the place of their placeholders.
        classes: classes of this process, by name, whose instances are rebuilt.
        exact: refuse a value that does not come back as it was.
        whole: unfold values of any size; for values that are not printed.

    Raises:
        Undecodable: if the bytes are not a record.
        NotRestored: if the value does not come back as it was.
    """
    stored = wire.loads(record)
    if secrets is not None and may_lack_secrets(record):
        stored, fetch = secrets.record(stored, fetch)
        record = wire.dumps(stored)
    kinds = _DECODERS | {"sent": lambda decoder, stored: model_input}
    decoder = Decoder(kinds, fetch, classes, stored=len(record), whole=whole)
    value = _plain(decoder, stored, read=decoder.value) if _has_fields(stored) else decoder.value(stored)
    if exact and (decoder.lost or not _is_alike(encode(value).record, record)):
        raise NotRestored(decoder.lost[0] if decoder.lost else type_name(value))
    return value


def fields(record: bytes) -> dict[str, Json]:
    """The fields of a record, each one a record of its own; one without a name, if it is not of a step or message.

    Raises:
        Undecodable: if the bytes are not a record.
    """
    stored = wire.loads(record)
    return cast(dict[str, Json], stored) if _has_fields(stored) else {"": stored}


def _has_fields(stored: Json) -> bool:
    return isinstance(stored, dict) and _DECODERS.get(str(stored.get("$"))) is _plain


def _plain(decoder: Decoder, stored: dict[str, Json], read: Callable[[Json], Any] | None = None) -> Any:
    cls = _BY_NAME[stored["$"]]
    made: Any = object.__new__(named(cast(Hashable, cls), str(stored["$type"])) if "$type" in stored else cls)
    if read is None:
        decoder.hold(made)
    vars(made).update((name, (read or decoder)(item)) for name, item in stored.items() if not name.startswith("$"))
    return made


def _unerror(decoder: Decoder, stored: dict[str, Json]) -> BaseException:
    args = tuple(decoder(arg) for arg in stored["args"])
    made = _exception(_ERRORS[stored["class"]], stored, args)
    own = {"message": decoder(stored["message"])} if "message" in stored else decoder(stored.get("own", {}))
    vars(made).update(own)
    for link in ("__cause__", "__context__"):
        if link in stored:
            linked = decoder(stored[link])
            if isinstance(linked, BaseException):
                setattr(made, link, linked)
    made.__suppress_context__ = bool(stored.get("suppress"))
    return made


def _exception(base: type[BaseException], stored: dict[str, Json], args: tuple[Any, ...]) -> BaseException:
    """An exception of a class that Python or smolagents defines, or a `RecordedError` under its old name."""
    if base in _AGENT_ERRORS:
        return _bare(named(cast(Hashable, base), str(stored["type"])) if "type" in stored else base, args)
    if "type" not in stored:
        try:
            made = base(*args)
        except Exception:  # a constructor that wants more than it keeps in args
            made = RecordedError(*args)
        if str(made) == stored["text"]:
            return made
    name = str(stored.get("type", f"builtins.{stored['class']}"))
    made = _bare(named(cast(Hashable, _recorded(cast(Hashable, base))), name), args)
    vars(made)["$text"] = stored["text"]
    return made


@cache
def _recorded(base: Any) -> type[RecordedError]:
    """A `RecordedError` that handlers of its base class catch, too."""
    plain = base is Exception or not issubclass(base, Exception)
    return RecordedError if plain else type("RecordedError", (RecordedError, base), {})


def _bare(cls: Any, args: tuple[Any, ...]) -> BaseException:
    """An exception without its constructor: those of smolagents log to the console."""
    made: BaseException = cls.__new__(cls)
    made.args = args
    return made


def _untool_call(decoder: Decoder, stored: dict[str, Json]) -> memory.ToolCall:
    made = object.__new__(VerbatimToolCall if "$shown" in stored else memory.ToolCall)
    decoder.hold(made)
    vars(made).update((name, decoder(item)) for name, item in stored.items() if not name.startswith("$"))
    if "$shown" in stored:
        made.shown = _Verbatim(decoder(stored["$shown"]))
    return made


def _unagent_text(decoder: Decoder, stored: dict[str, Json]) -> agent_types.AgentText:
    return agent_types.AgentText(stored["v"] if isinstance(stored["v"], str) else decoder(stored["v"]))


# --- the tables ---------------------------------------------------------------------------------------------------

_EXACT_PLAIN: frozenset[type] = frozenset(_PLAIN)
_AGENT_ERRORS: frozenset[type] = frozenset(cls for cls in _ERRORS.values() if issubclass(cls, errors.AgentError))

_EXACT: dict[type, Encode] = {
    **type_codecs.EXACT,
    **{cls: _fields for cls in _PLAIN},
    memory.ToolCall: _tool_call,
    VerbatimToolCall: _tool_call,
    Outcome: lambda encoder, value: {
        "$": "outcome",
        "result": encoder(value.result),
        "parts": encoder(value.parts),
    },
    _TakenOut: lambda encoder, value: {"$": "sent"},
    models.MessageRole: lambda encoder, value: {"$": "role", "v": value.value},
    agent_types.AgentText: lambda encoder, value: {"$": "AgentText", "v": encoder(str.__str__(value))},
}

_KIN: tuple[tuple[type, Encode], ...] = (
    (memory.MemoryStep, _fields),
    (BaseException, _error),
    *type_codecs.KIN,
)

_DECODERS: dict[str, Decode] = {
    **type_codecs.DECODERS,
    **{name: _plain for name in _BY_NAME},
    "ToolCall": _untool_call,
    "error": _unerror,
    "outcome": lambda decoder, stored: Outcome(decoder(stored["result"]), decoder(stored["parts"])),
    "role": lambda decoder, stored: models.MessageRole(stored["v"]),
    "AgentText": _unagent_text,
}


def register(cls: type, tag: str, encode: Encode, decode: Decode) -> None:
    """Adds a class whose encoding needs more than its public attributes (see `agents.compat`)."""
    _EXACT[cls] = encode
    _DECODERS[tag] = decode
