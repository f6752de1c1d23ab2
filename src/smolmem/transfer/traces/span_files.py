"""Files of spans, in the forms that tools write them, as a list of `Span`.

    SDK         `span.to_json()` of OpenTelemetry's SDK, one after another or in a list
    OTLP JSON   what a collector's file exporter writes: resourceSpans, scopeSpans, spans
    REST        pages of Phoenix: data, next_cursor
    nested      published collections of traces: spans with their child_spans

They have the same content, with other names of fields, times and ids. Nothing in a file is trusted: a value that is not
a span of this kind is refused with one sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from typing import Any

from smolmem.transfer.foreign import Unreadable
from smolmem.transfer.traces import spans
from smolmem.transfer.traces.spans import Raised, Span, Status

MOST_SPANS = 500_000
MOST_ATTRIBUTES = 20_000
"""Spans of a file, and attributes of a span."""
MOST_LEVELS = 200
DEEPEST = 20
"""Levels of spans in spans, and of objects in an attribute."""
_NAMES = {
    "name": ("name", "span_name"),
    "id": ("span_id", "spanId"),
    "trace": ("trace_id", "traceId"),
    "parent": ("parent_id", "parentSpanId", "parent_span_id"),
    "began": ("start_time", "startTimeUnixNano", "timestamp", "startTime"),
    "ended": ("end_time", "endTimeUnixNano", "endTime"),
    "attributes": ("attributes", "span_attributes"),
    "status": ("status", "status_code"),
    "message": ("status_message",),
}
_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?")


def is_spans(values: list[Any]) -> bool:
    """Whether JSON values are spans of one of the known forms."""
    return any(True for _ in _records(values))


def read_spans(values: list[Any]) -> list[Span]:
    """The spans in JSON values; of spans with the same id the one that ended last."""
    found: dict[tuple[str, str], Span] = {}
    for number, record in enumerate(_records(values), 1):
        if number > MOST_SPANS:
            raise Unreadable(f"there are more than {MOST_SPANS:,} spans: import them in parts.")
        try:
            span = _span(record)
        except (ValueError, TypeError, OverflowError, AttributeError, RecursionError) as error:
            raise Unreadable(f"span {number} cannot be read ({error}).") from error
        before = found.get((span.trace, span.id))
        if before is None or before.ended <= span.ended:
            found[span.trace, span.id] = span
    _check_depths(found)
    return list(found.values())


def _check_depths(found: Mapping[tuple[str, str], Span]) -> None:
    """Refuses spans that are nested in themselves, or nested too deep."""
    depths: dict[tuple[str, str], int] = {}
    for start in found:
        path: dict[tuple[str, str], None] = {}
        at: tuple[str, str] | None = start
        while at is not None and at in found and at not in depths:
            if at in path:
                raise Unreadable(f"span {at[1][:32]!r} contains itself.")
            path[at] = None
            parent = found[at].parent
            at = None if parent is None else (at[0], parent)
        depth = 0 if at is None else depths.get(at, 0)
        for each in reversed(path):
            depth += 1
            depths[each] = depth
        if depth > MOST_LEVELS:
            raise Unreadable(f"the spans are nested more than {MOST_LEVELS} deep.")


# --- finding spans ---------------------------------------------------------------------------------------------------


def _records(values: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Every span in some JSON values, with the parent and trace that follow from its place in the file."""
    waiting: list[tuple[Any, Any, Any]] = [(value, None, None) for value in reversed(list(values))]
    while waiting:
        value, parent, trace = waiting.pop()
        if isinstance(value, list):
            waiting.extend((item, parent, trace) for item in reversed(value))
            continue
        if not isinstance(value, dict):
            continue
        if _first(value, "name") is not None and (_first(value, "id") is not None or _context(value)):
            own = {"parent_id": parent, "trace_id": trace} | {name: item for name, item in value.items() if item}
            yield own
            whole = {**own, **_context(own)}
            parent, trace = _first(whole, "id"), _first(whole, "trace")
            waiting.append((value.get("child_spans"), parent, trace))
        else:
            inner = ("resourceSpans", "resource_spans", "scopeSpans", "scope_spans", "spans", "data", "traces")
            trace = _first(value, "trace") or trace
            waiting.extend((value.get(name), parent, trace) for name in inner)


def _context(record: Mapping[str, Any]) -> Mapping[str, Any]:
    context = record.get("context")
    return context if isinstance(context, dict) else {}


def _first(record: Mapping[str, Any], what: str) -> Any:
    return next((record[name] for name in _NAMES[what] if record.get(name) is not None), None)


# --- one span --------------------------------------------------------------------------------------------------------


def _span(record: Mapping[str, Any]) -> Span:
    whole = {**record, **_context(record)}
    attributes = _attributes(_first(record, "attributes"))
    if "span_kind" in record and spans.KIND not in attributes and not str(record["span_kind"]).startswith("SPAN_"):
        attributes[spans.KIND] = str(record["span_kind"])
    began = _seconds(_first(record, "began"))
    ended = _first(record, "ended")
    status, message = _status(record)
    id = _id(_first(whole, "id"))
    if id is None:
        raise ValueError("it has no id")
    return Span(
        trace=_id(_first(whole, "trace")) or "no trace",
        id=id,
        parent=_id(_first(record, "parent")),
        name=_text(_first(record, "name")),
        kind=str(attributes.get(spans.KIND, "")).upper(),
        began=began,
        ended=max(began, _seconds(ended) if ended is not None else began + _duration(record.get("duration"))),
        attributes=attributes,
        status=status,
        message=message,
        exception=_raised(record.get("events")),
    )


def _id(value: Any) -> str | None:
    text = _text(value).removeprefix("0x").lower() if value is not None else ""
    return text if text.strip("0") else None


def _text(value: Any) -> str:
    if not isinstance(value, (str, int)):
        raise ValueError(f"a text was expected, not {type(value).__name__}")
    return str(value)


def _seconds(value: Any) -> float:
    """A time: nanoseconds as a number or text, or ISO text."""
    if isinstance(value, str) and not value.isdigit():
        moment = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", value).replace("Z", "+00:00"))
        found = (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()
    elif isinstance(value, (str, int)) and not isinstance(value, bool):
        found = int(value) / 1e9
    else:
        raise ValueError("it has no time")
    if not 0 <= found < 1e11:
        raise ValueError("the time is out of range")
    return found


def _duration(value: Any) -> float:
    """ISO text such as `PT1M2.5S`."""
    found = _DURATION.fullmatch(value) if isinstance(value, str) else None
    parts = [float(part or 0) for part in found.groups()] if found is not None else [0.0] * 4
    return parts[0] * 86_400 + parts[1] * 3600 + parts[2] * 60 + parts[3]


def _status(record: Mapping[str, Any]) -> tuple[Status, str]:
    given = _first(record, "status")
    message = _first(record, "message")
    if isinstance(given, dict):
        message = given.get("description") or given.get("message") or message
        given = given.get("status_code", given.get("code"))
    word = str(given).upper().rpartition("_")[2]
    status: Status = "ERROR" if word in ("ERROR", "2") else "OK" if word in ("OK", "1") else "UNSET"
    return status, str(message or "")


def _raised(events: Any) -> Raised | None:
    for event in events if isinstance(events, list) else []:
        if isinstance(event, dict) and str(event.get("name", event.get("Name"))) == "exception":
            named = _attributes(event.get("attributes", event.get("Attributes")))
            parts = [str(named.get(f"exception.{name}", "")) for name in ("type", "message", "stacktrace")]
            return Raised(parts[0].rpartition(".")[2], parts[1], parts[2])
    return None


def _attributes(given: Any) -> dict[str, Any]:
    """Attributes as one flat mapping: OTLP has a list of keys and values, others have nested objects."""
    flat: dict[str, Any] = {}
    if isinstance(given, list):
        given = {str(item.get("key")): _value(item.get("value")) for item in given if isinstance(item, dict)}
    _flatten(given if isinstance(given, dict) else {}, "", flat, 0)
    return flat


def _flatten(given: Any, prefix: str, flat: dict[str, Any], depth: int) -> None:
    if depth > DEEPEST or len(flat) > MOST_ATTRIBUTES:
        raise ValueError("the attributes are too many or too deep")
    if isinstance(given, dict):
        for name, item in given.items():
            _flatten(item, f"{prefix}.{name}" if prefix else str(name), flat, depth + 1)
    elif isinstance(given, list) and any(isinstance(item, (dict, list)) for item in given):
        for number, item in enumerate(given):
            _flatten(item, f"{prefix}.{number}", flat, depth + 1)
    elif given is not None:
        flat[prefix] = given


def _value(given: Any, depth: int = 0) -> Any:
    """A value of OTLP's JSON."""
    for name, item in given.items() if isinstance(given, dict) and depth <= DEEPEST else ():
        kind = name.replace("_", "").lower()
        values = item.get("values", []) if isinstance(item, dict) else []
        if kind == "intvalue":
            return int(item)
        if kind == "arrayvalue":
            return [_value(each, depth + 1) for each in values]
        if kind == "kvlistvalue":
            return {str(each.get("key")): _value(each.get("value"), depth + 1) for each in values}
        if kind in ("stringvalue", "boolvalue", "doublevalue"):
            return item
    return None
