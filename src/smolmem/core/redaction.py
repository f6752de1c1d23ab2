"""Secrets are taken out of what is stored, and put back when a run is resumed.

A secret becomes a placeholder, `⟨secret:github:3f9a1c20⟩`: its kind and a fingerprint. The fingerprint is a hash of the
secret with a random key of the store, so that equal secrets of one file are recognised as equal, and fingerprints of
different files cannot be compared. It is short, and whoever has the file has the key: a guessed password can be checked
against it, as against any hash.

A record is searched as a whole before its texts are: most records hold no secret and cost one search. Everything in a
record that is text is covered, whatever encoded it, also in bytes; pictures and arrays of numbers are not text.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from html import escape
from typing import NamedTuple
from urllib.parse import quote, quote_plus

from smolmem.core import patterns, secret_formats
from smolmem.core.encoding import wire
from smolmem.core.encoding.encoder import Encoder
from smolmem.core.encoding.packing import Undecodable
from smolmem.core.encoding.wire import Base64, Json
from smolmem.core.errors import InvalidArgument
from smolmem.core.secret_formats import Found

log = logging.getLogger("smolmem")

Finder = Callable[[str], Iterable[str]]
"""A function of the user: the secrets in a text."""
_Find = Callable[[str], list[Found]]
Redact = bool | str | re.Pattern[str] | Finder | Sequence[str | re.Pattern[str] | Finder]
"""What is redacted: the known formats, these and more, or nothing."""

SHORTEST = 4
"""A named secret has at least so many characters: every text that holds a shorter one would be changed."""

_PLACEHOLDER = re.compile(r"⟨secret:([\w.-]{1,64}):([0-9a-f]{8})⟩")
_BEGIN = "⟨secret:"
_VARIABLES = re.compile(r"(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|PASS|PWD|CREDENTIALS?|PAT)\d?$", re.IGNORECASE)
"""The names of environment variables that hold secrets."""
_PHRASES = re.compile(r"(?:SECRET|PASSWORD|PASSWD|PASSPHRASE)\d?$", re.IGNORECASE)
"""The names of environment variables whose secrets can be several words."""
_PHRASE = 12
"""Characters of the shortest secret of several words."""
_PAIRS = ("dict", "ordered", "defaultdict", "counter")
"""Tags of containers that are stored as pairs of a key and a value."""
_NAMED_PAIR = re.compile(rb'\["[\w.-]*(?:pass|pwd|secret|token|key)[\w.-]*","', re.IGNORECASE)
"""A pair in a record whose key may be the name of a secret."""
_DESCRIPTIONS = ("type", "repr", "str", "member")
"""Texts about an object, which are in the record itself, however long."""
_SEEN = 10_000
_CLEAN = 4096
_NAME = 64
"""Characters of a text that is likely to come again, such as the name of a tool."""


def may_lack_secrets(record: bytes) -> bool:
    """Whether a record may hold placeholders: in itself, in a text beside it, or in bytes."""
    return b"\\u27e8secret:" in record or b'"$":"text"' in record or b'"$":"byte' in record


class Secret(NamedTuple):
    """A secret that was not stored: its kind, or its name if it has one, and its fingerprint."""

    kind: str
    fingerprint: str

    def __str__(self) -> str:
        return f"{self.kind} {self.fingerprint}"


class Redactor:
    """Takes secrets out of texts and records of one store, and puts back those that this process has."""

    def __init__(
        self,
        key: bytes,
        redact: Redact = True,
        secrets: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Knows the secrets of this process.

        Args:
            key: the key of the fingerprints.
            redact: False for nothing; patterns or functions of the user besides the known formats.
            secrets: values that are always redacted, by name; a name can also be a fingerprint, to put a value back.
            environment: variables whose names say that they hold secrets are redacted; all can be put back.

        Raises:
            InvalidArgument: a pattern or a secret cannot be used.
        """
        self._key = key
        self._active = redact is not False
        self._extra = tuple(_finders(redact))
        self._secrets = _checked(secrets or {})
        self._environment = {} if environment is None else environment
        self._variables: dict[str, str] | None = None
        self._values: list[tuple[str, str]] = []
        self._needles: list[bytes] = []
        self._seen: dict[str, str] = {}
        self._clean: dict[str, None] = {}
        self.refresh()

    def refresh(self) -> None:
        """Reads the environment again: variables are set at any time."""
        variables = dict(self._environment)
        if variables == self._variables:
            return
        self._variables = variables
        found = {name: value for name, value in variables.items() if _is_secret_variable(name, value)}
        self._values = [
            (form, re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)[:64])
            for name, value in {**found, **self._secrets}.items()
            if self._active
            for form in _forms(value)
        ]
        forms = {form for form, _ in self._values}
        self._needles = list({data for form in forms for data in (form.encode("utf-8", "surrogatepass"), _json(form))})
        self._clean = {}

    @property
    def always_searches(self) -> bool:
        """Whether patterns or functions of the user must see every text."""
        return bool(self._extra)

    # --- taking out ------------------------------------------------------------------------------------------------

    def text(self, text: str) -> str:
        """A text with placeholders in the place of its secrets."""
        if not self._active or len(text) < SHORTEST or text in self._clean:
            return text
        found = self._found(text)
        if not found:
            if len(text) <= _NAME and not self._extra:
                self._note_clean(text)
            return text
        pieces, end = [], 0
        for one in found:
            pieces += [text[end : one.start], self._placeholder(one.kind, text[one.start : one.end])]
            end = one.end
        return "".join([*pieces, text[end:]])

    def record(self, tree: Json, record: bytes, encoder: Encoder) -> bytes:
        """The bytes of a record without secrets; `record` itself, if it holds none."""
        if not self._active or not (self._extra or self._suspects(record, encoder.texts)):
            return record
        clean = wire.dumps(_Walk(self.text, encoder.blobs, self._named).redacted(tree))
        return record if clean == record else clean

    def stored_record(self, tree: Json, fetch: Callable[[str], bytes]) -> tuple[Json, dict[str, bytes]]:
        """A stored record without secrets, and the new texts beside it; `fetch` reads the texts beside it now."""
        read: set[str] = set()

        def fetched(key: str) -> bytes:
            read.add(key)
            return fetch(key)

        blobs = _Fetched(fetched)
        clean = _Walk(self.text, blobs, self._named).redacted(tree)
        return clean, {key: data for key, data in blobs.items() if key not in read}

    def with_rules(self, redact: Redact) -> Redactor:
        """A redactor with the same fingerprints and named secrets, for other rules besides the own ones."""
        other = Redactor(self._key, redact, self._secrets, self._environment)
        other._extra += self._extra
        return other

    def _suspects(self, record: bytes, texts: Mapping[str, bytes]) -> bool:
        """Whether a record may hold a secret. The same long text is part of several records and searched once."""
        if self._is_suspicious(record) or _NAMED_PAIR.search(record):
            return True
        for key, data in texts.items():
            if key not in self._clean:
                if self._is_suspicious(data):
                    return True
                self._note_clean(key)
        return False

    def _note_clean(self, text: str) -> None:
        """Notes that a short text, or the text with a hash, holds no secret: it is not searched again."""
        self._clean[text] = None
        if len(self._clean) > _CLEAN:
            self._clean = dict(list(self._clean.items())[_CLEAN // 2 :])

    def _is_suspicious(self, data: bytes) -> bool:
        return any(needle in data for needle in self._needles) or bool(secret_formats.find(data))

    def _found(self, text: str) -> list[Found]:
        """The secrets in a text, except in placeholders: these stay whole."""
        found = secret_formats.find(text)
        found += [one for form, name in self._values for one in _occurrences(form, name, text)]
        for find in self._extra:
            found += _tried(find, text)
        if _BEGIN in text:
            done = [Found(*match.span(), "") for match in _PLACEHOLDER.finditer(text)]
            found = [one for one in found if not secret_formats.overlaps(one, done)]
        return secret_formats.without_overlaps(found)

    def _named(self, name: str, value: str) -> str:
        """A value whose name says that it is a secret."""
        kind = secret_formats.named(name, value)
        return value if kind is None else self._placeholder(kind, value)

    def _placeholder(self, kind: str, value: str) -> str:
        known = self.fingerprint(value)
        self._seen[known] = value
        if len(self._seen) > _SEEN:
            self._seen = dict(list(self._seen.items())[_SEEN // 2 :])
        return f"{_BEGIN}{kind}:{known}⟩"

    def fingerprint(self, value: str) -> str:
        """The fingerprint of a secret in this store."""
        return hashlib.blake2b(value.encode("utf-8", "surrogatepass"), key=self._key, digest_size=4).hexdigest()

    # --- putting back ----------------------------------------------------------------------------------------------

    @property
    def known(self) -> Known:
        """The secrets that were taken out in this process, or learned."""
        return Known(self._seen)

    def learn(self) -> Known:
        """Learns the secrets that this process has, named or in its environment, to put them back."""
        self.refresh()
        values = [*(self._variables or {}).values(), *self._secrets.values()]
        parts = [value[one.start : one.end] for value in values for one in _parts(value)]
        self._seen.update((self.fingerprint(form), form) for value in [*values, *parts] for form in _forms(value))
        self._seen.update(self._secrets)
        return self.known


class Known:
    """Secrets by fingerprint, and how they get back into what was stored."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def text(self, text: str) -> str:
        """A text with the secrets that are known in the place of their placeholders."""
        if _BEGIN not in text:
            return text
        return _PLACEHOLDER.sub(lambda found: self._values.get(found[2], found[0]), text)

    def record(self, tree: Json, fetch: Callable[[str], bytes]) -> tuple[Json, Callable[[str], bytes]]:
        """The JSON of a record with the secrets that are known, as it is encoded, and what finds its blobs."""
        blobs = _Fetched(fetch)
        return _revealed(_Walk(self.text, blobs), tree), blobs.__getitem__

    def missing(self, tree: Json, fetch: Callable[[str], bytes]) -> list[Secret]:
        """The secrets of a record that are not known."""
        found: dict[Secret, None] = {}

        def collect(text: str) -> str:
            found.update((Secret(*match.groups()), None) for match in _PLACEHOLDER.finditer(text))
            return text

        _revealed(_Walk(collect, _Fetched(fetch)), tree)
        return [secret for secret in found if secret.fingerprint not in self._values]


def _revealed(walk: _Walk, tree: Json) -> Json:
    try:
        return walk.revealed(tree)
    except Undecodable:
        raise
    except (ValueError, TypeError, KeyError, AttributeError) as error:  # only claims to be a record
        raise Undecodable(f"not a stored value: {type(error).__name__}: {error}") from error


class _Fetched(dict[str, bytes]):
    """Blobs that are read when they are asked for."""

    def __init__(self, fetch: Callable[[str], bytes]) -> None:
        super().__init__()
        self._fetch = fetch

    def __missing__(self, key: str) -> bytes:
        self[key] = found = self._fetch(key)
        return found


class _Walk:
    """Changes every text of a record: values and keys, long texts beside the record, and texts in bytes.

    The result is the record that the changed value has: long texts are beside it, as the encoder puts them.
    """

    def __init__(
        self,
        change: Callable[[str], str],
        blobs: dict[str, bytes],
        named: Callable[[str, str], str] | None = None,
    ) -> None:
        self._change, self._blobs, self._named = change, blobs, named
        self._replaced: set[str] = set()
        self._kept: set[str] = set()
        self._long: dict[str, Json | None] = {}

    def revealed(self, tree: Json) -> Json:
        """The changed record."""
        return self._walk(tree)

    def redacted(self, tree: Json) -> Json:
        """The changed record; what long texts were is no longer beside it."""
        changed = self._walk(tree)
        for key in self._replaced - self._kept:
            self._blobs.pop(key, None)
        return changed

    def _walk(self, tree: Json) -> Json:
        if isinstance(tree, str):
            return tree if isinstance(tree, Base64) else self._inline(tree)
        if isinstance(tree, list):
            return [self._walk(item) for item in tree]
        if not isinstance(tree, dict):
            return tree
        tag = tree.get("$")
        if tag == "text" and "blob" in tree:
            if tree["blob"] not in self._long:  # one text can stand in many places
                text = self._blobs[tree["blob"]].decode("utf-8", "surrogatepass")
                new = self._change(text)
                self._long[tree["blob"]] = None if new == text else self._text(new)
                if isinstance(self._blobs, _Fetched):
                    del self._blobs[tree["blob"]]
            changed = self._long[tree["blob"]]
            return self._left(tree) if changed is None else self._replaced_by(tree, changed)
        if tag in ("bytes", "bytearray"):
            return self._bytes(tree)
        if tag in _PAIRS:
            return {**tree, "v": [[self._walk(key), self._item(key, item)] for key, item in tree["v"]]}
        self._left(tree)
        plain = _DESCRIPTIONS if tag == "object" else ()
        return {
            self._change(key): self._change(item) if key in plain else self._item(key, item)
            for key, item in tree.items()
        }

    def _item(self, key: Json, item: Json) -> Json:
        value = self._walk(item)
        if self._named is not None and isinstance(key, str) and type(item) is str and value == item:
            return self._named(key, item)
        return value

    def _bytes(self, tree: dict[str, Json]) -> Json:
        """Bytes are changed as text; a byte that is not text comes back as it was."""
        data = self._blobs[tree["blob"]] if "blob" in tree else base64.b64decode(tree["v"])
        text = data.decode("utf-8", "surrogateescape")
        new = self._change(text)
        if new == text:
            return self._left(tree)
        return self._replaced_by(tree, {"$": tree["$"], **self._data(new.encode("utf-8", "surrogateescape"))})

    def _left(self, tree: dict[str, Json]) -> Json:
        self._kept.update({tree["blob"]} if "blob" in tree else ())
        return tree

    def _replaced_by(self, tree: dict[str, Json], new: Json) -> Json:
        self._replaced.update({tree["blob"]} if "blob" in tree else ())
        return new

    def _inline(self, text: str) -> Json:
        """A text of the record. A long one that is not beside the record is of a codec that reads it from there."""
        new = self._change(text)
        return new if new == text or len(text) > wire.INLINE else self._text(new)

    def _text(self, text: str) -> Json:
        return (
            text
            if len(text) <= wire.INLINE
            else {"$": "text", "blob": self._put(text.encode("utf-8", "surrogatepass"))}
        )

    def _data(self, data: bytes) -> dict[str, Json]:
        if len(data) > wire.INLINE:
            return {"blob": self._put(data)}
        return {"v": Base64(base64.b64encode(data).decode("ascii"))}

    def _put(self, data: bytes) -> str:
        key = wire.fingerprint(data)
        self._blobs[key] = data
        return key


def _finders(redact: Redact) -> Iterator[_Find]:
    given = redact if isinstance(redact, Sequence) and not isinstance(redact, str) else [redact]
    for one in given:
        if not isinstance(one, bool):
            yield partial(_by_function, one) if callable(one) else partial(_by_pattern, patterns.pattern_of(one))


def _by_function(find: Finder, text: str) -> list[Found]:
    return [one for secret in {*find(text)} for one in _occurrences(secret, "custom", text)]


def _by_pattern(pattern: patterns.Pattern, text: str) -> list[Found]:
    return [Found(*span, "custom") for span in patterns.spans(pattern, text)]


def _tried(find: _Find, text: str) -> list[Found]:
    """What a pattern or function of the user finds; the whole text, if it fails or takes too long."""
    try:
        return find(text.encode("utf-8", "replace").decode())  # the same length, without lone surrogates
    except Exception as error:
        log.warning("smolmem: a text of %d characters is redacted as a whole: %r", len(text), error)
        return [Found(0, len(text), "custom")]


def _checked(secrets: Mapping[str, str]) -> dict[str, str]:
    for name, value in secrets.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidArgument("secrets is a dict of texts by name: secrets={'NAME': value}.")
        if len(value) < SHORTEST:
            raise InvalidArgument(
                f"the secret {name!r} has fewer than {SHORTEST} characters: each text that holds them would be changed."
            )
    return dict(secrets)


def _parts(value: str) -> list[Found]:
    return secret_formats.find(value)


def _is_secret_variable(name: str, value: str) -> bool:
    """Whether an environment variable holds a secret that is not recognised by its format anyway."""
    if _PHRASES.search(name) and len(value) >= _PHRASE and len(value.split()) > 1:
        return True
    if not _VARIABLES.search(name) or secret_formats.named("secret", value) is None:
        return False
    return not any(one.kind in secret_formats.KINDS and one[:2] == (0, len(value)) for one in _parts(value))


def _forms(value: str) -> list[str]:
    """A value as it is written in a text, in JSON, in Python code, in a URL, in HTML and in base64."""
    data = value.encode("utf-8", "surrogatepass")
    in_urls = quote(data), quote(data, safe=""), quote_plus(data)
    in_base64 = (encode(data).decode().rstrip("=") for encode in (base64.b64encode, base64.urlsafe_b64encode))
    return list(dict.fromkeys([value, _json(value).decode(), repr(value)[1:-1], *in_urls, escape(value), *in_base64]))


def _json(value: str) -> bytes:
    return json.dumps(value)[1:-1].encode()


def _occurrences(value: str, kind: str, text: str) -> Iterator[Found]:
    start = text.find(value) if value else -1
    while start >= 0:
        yield Found(start, start + len(value), kind)
        start = text.find(value, start + len(value))
