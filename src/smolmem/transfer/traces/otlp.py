"""Sends spans to a collector: OTLP over HTTP, as protobuf, in batches that collectors take.

Only `opentelemetry-proto` is needed. The exporter of the SDK hides errors and blocks a program for seconds with its
retries; here a failure is one exception with a reason, and the caller decides.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

import requests

from smolmem.core.errors import CollectorFailed, InvalidArgument, SmolmemError
from smolmem.core.text import one_line
from smolmem.core.version import __version__
from smolmem.transfer.traces.spans import Span

HEADERS_VARIABLE = "OTEL_EXPORTER_OTLP_HEADERS"
"""The standard variable with headers for a collector: `key=value,key=value`."""
MOST_SPANS = 200
MOST_CHARACTERS = 1_000_000
"""Spans and characters of a batch."""
TIMEOUT = (5.0, 20.0)
"""Seconds to connect and to answer."""
_LARGEST = 1 << 63


class Collector:
    """A collector of traces.

    Args:
        url: `http://localhost:6006`, or a whole path such as `https://…/api/public/otel/v1/traces`. A user and a
            password in the URL are sent as basic authentication.
        headers: headers to send besides those of `OTEL_EXPORTER_OTLP_HEADERS`.
        project: the project of Phoenix that the traces belong to.
    """

    def __init__(self, url: str, headers: Mapping[str, str] | None = None, project: str = "default") -> None:
        parts = _checked(url)
        _require_extra()
        path = parts.path if parts.path.strip("/") else "/v1/traces"
        self._url = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], path=path))
        self._auth = (unquote(parts.username), unquote(parts.password or "")) if parts.username else None
        self._headers = {**_from_environment(), **_checked_headers(headers or {})}
        self._resource = {
            "service.name": "smolmem",
            "service.version": __version__,
            "openinference.project.name": project.replace("/", "."),
        }

    @property
    def url(self) -> str:
        """Where spans are sent; without user and password."""
        return self._url

    def send(self, spans: Iterable[Span]) -> Iterator[list[Span]]:
        """Sends spans, and yields each batch when the collector has taken it.

        Raises:
            CollectorFailed: if the collector does not take a batch.
        """
        for batch in _batches(spans):
            self._post(gzip.compress(_encoded(batch, self._resource), 4))
            yield batch

    def _post(self, body: bytes) -> None:
        headers = {
            **self._headers,
            "Content-Type": "application/x-protobuf",
            "Content-Encoding": "gzip",
            "User-Agent": f"smolmem/{__version__}",
        }
        try:
            unfollowed: Any = {"headers": headers, "auth": self._auth, "allow_redirects": False, "stream": True}
            with requests.post(self._url, body, timeout=TIMEOUT, **unfollowed) as answer:
                reply = answer.raw.read(500, decode_content=True) if answer.status_code != 200 else b""
        except (requests.RequestException, OSError, ValueError) as error:
            reason = failure_reason(error)
            raise CollectorFailed(
                f"the collector at {self._url} does not answer ({reason}): start it, or give another URL."
            ) from error
        if answer.status_code not in (200, 202, 204):
            final = answer.status_code in (400, 413, 422)  # the same batch would be refused again
            raise CollectorFailed(_refusal(self._url, answer.status_code, reply), refused=final)


def _refusal(url: str, code: int, said: bytes) -> str:
    text = one_line(said.decode("utf-8", "replace"), 200)
    hints = {
        **dict.fromkeys((401, 403), "give its key as a header, --header 'authorization=Bearer …'"),
        **dict.fromkeys((404, 405), "give the path for OTLP over HTTP, which usually ends in /v1/traces"),
        413: "the batch is too large for the collector, raise the limit there",
        415: "give a collector that takes protobuf",
    }
    hint = hints.get(code, "give a collector for OTLP over HTTP")
    return f"the collector at {url} answered {code}{f' ({text})' if text else ''}: {hint}."


def failure_reason(error: BaseException) -> str:
    """Why a request failed, such as "Connection refused": the innermost error, without the names of libraries."""
    while isinstance(error.args[:1], tuple) and error.args and isinstance(error.args[0], BaseException):
        error = error.args[0]
    inner = getattr(error, "reason", None)
    return one_line(str(inner if inner is not None else error).rpartition(": ")[2] or type(error).__name__, 160)


def _checked(url: str) -> SplitResult:
    with suppress(ValueError, TypeError, AttributeError):
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1) > 0:
            return parts
    raise InvalidArgument("a collector is a URL such as http://localhost:6006 or https://host/v1/traces.")


def _checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        whole = isinstance(name, str) and isinstance(value, str) and name.isascii() and name.strip()
        if not whole or any(letter in f"{name}{value}" for letter in "\r\n\0"):
            raise InvalidArgument(f"a header has a name and a text, not {name!r}.")
    return dict(headers)


def _from_environment() -> dict[str, str]:
    pairs = (pair.partition("=") for pair in os.environ.get(HEADERS_VARIABLE, "").split(",") if "=" in pair)
    return _checked_headers({unquote(name.strip()): unquote(value.strip()) for name, _, value in pairs})


def _require_extra() -> None:
    try:
        import opentelemetry.proto.collector.trace.v1.trace_service_pb2  # noqa: F401
    except ImportError as error:
        raise SmolmemError("traces need the OpenTelemetry format: pip install 'smolmem[otel]'.") from error


def _batches(spans: Iterable[Span]) -> Iterator[list[Span]]:
    batch: list[Span] = []
    size = 0
    for span in spans:
        length = sum(len(value) for value in span.attributes.values() if isinstance(value, str))
        if batch and (len(batch) >= MOST_SPANS or size + length > MOST_CHARACTERS):
            yield batch
            batch, size = [], 0
        batch.append(span)
        size += length
    if batch:
        yield batch


# --- protobuf --------------------------------------------------------------------------------------------------------


def _encoded(spans: Iterable[Span], resource: Mapping[str, Any]) -> bytes:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
    from opentelemetry.proto.resource.v1.resource_pb2 import Resource
    from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans

    scope = InstrumentationScope(name="smolmem", version=__version__)
    inner = ScopeSpans(scope=scope, spans=[_span(span) for span in spans])
    whole = ResourceSpans(resource=Resource(attributes=_attributes(resource)), scope_spans=[inner])
    data: bytes = ExportTraceServiceRequest(resource_spans=[whole]).SerializeToString()
    return data


def _span(span: Span) -> Any:
    from opentelemetry.proto.trace.v1 import trace_pb2

    raised, events = span.exception, []
    if raised is not None:
        named = {"exception.type": raised.type, "exception.message": raised.message}
        named |= {"exception.stacktrace": raised.traceback} if raised.traceback else {}
        events.append(
            trace_pb2.Span.Event(name="exception", time_unix_nano=_nanos(span.ended), attributes=_attributes(named))
        )
    return trace_pb2.Span(
        trace_id=bytes.fromhex(span.trace),
        span_id=bytes.fromhex(span.id),
        parent_span_id=bytes.fromhex(span.parent or ""),
        name=span.name,
        kind=trace_pb2.Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=_nanos(span.began),
        end_time_unix_nano=_nanos(max(span.began, span.ended)),
        attributes=_attributes(span.attributes),
        status=trace_pb2.Status(
            code=trace_pb2.Status.StatusCode.Value(f"STATUS_CODE_{span.status}"), message=span.message
        ),
        events=events,
    )


def _nanos(seconds: float) -> int:
    return min(max(0, round(seconds * 1e9)), 2 * _LARGEST - 1)


def _attributes(values: Mapping[str, Any]) -> list[Any]:
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue

    return [KeyValue(key=name, value=_value(value)) for name, value in values.items()]


def _value(value: Any) -> Any:
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue

    if isinstance(value, list):
        return AnyValue(array_value=ArrayValue(values=[_value(item) for item in value]))
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int) and -_LARGEST <= value < _LARGEST:
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    return AnyValue(string_value=str(value))
