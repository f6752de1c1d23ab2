"""The formats of keys, tokens and passwords, and where they are in a text.

Three kinds of clues, each found in time linear in the text:

- a *format*: a token that begins as its issuer's tokens do (`ghp_…`, `AKIA…`). Such a token has a run of at least 16
  letters, digits, `-` and `_`; the beginnings of the runs are looked up in a table;
- a *name*: `password = "…"`, `api_key: …`. The value must look random: words, paths and identifiers do not;
- a *place*: the password of a URL, an Authorization header, the body of a private key.

Hashes, UUIDs and ids have no such clue and are left alone. A text is searched as bytes with one byte for each
character. JSON escapes do not hide a clue, so that a record can be searched as a whole before each of its texts is.
"""

from __future__ import annotations

import base64
import binascii
import re
from bisect import bisect, insort
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from typing import NamedTuple


class Found(NamedTuple):
    """A secret in a text: where, and of which kind."""

    start: int
    end: int
    kind: str


class _Format(NamedTuple):
    kind: str
    prefix: bytes
    pattern: bytes

    def match(self, data: bytes, at: int) -> re.Match[bytes] | None:
        """The token that begins at a place."""
        return _compiled(self.pattern).match(data, at)


@cache
def _compiled(pattern: bytes) -> re.Pattern[bytes]:
    """Compiled when it is first needed: few of the formats ever are, and all of them take 30 ms."""
    return re.compile(pattern)


_HEX, _ALNUM, _WORD = "[0-9a-f]", "[A-Za-z0-9]", r"[\w-]"

_TABLE: tuple[tuple[str, str, str], ...] = (
    # kind, how it begins (| separates alternatives), what follows
    ("adafruit", "aio_", rf"{_ALNUM}{{28}}"),
    ("age", "AGE-SECRET-KEY-1", r"[0-9A-Z]{40,}"),
    ("airtable", "pat", rf"{_ALNUM}{{14}}\.{_HEX}{{40,}}"),
    ("alibaba", "LTAI", rf"{_ALNUM}{{16,24}}(?!\w)"),
    ("anthropic", "sk-ant-", rf"{_WORD}{{20,}}"),
    ("atlassian", "ATATT3|ATCTT3", r"[\w=-]{40,}"),
    ("aws", "AKIA|ASIA|ABIA|ACCA", r"[A-Z2-7]{16}(?:(?!\w)|(?=A[KSBC][IC]A))"),
    ("aws", "ABSK", r"[A-Za-z0-9+/=]{60,}"),
    ("brave", "BSA", rf"{_WORD}{{24,}}(?<=[\w-])"),
    ("brevo", "xkeysib-", rf"{_HEX}{{40,}}-{_ALNUM}{{10,}}"),
    ("buildkite", "bkua_", rf"{_HEX}{{40}}"),
    ("clojars", "CLOJARS_", rf"{_HEX}{{50,}}"),
    ("crates", "cio", rf"{_ALNUM}{{32}}(?!\w)"),
    ("databricks", "dapi", rf"{_HEX}{{32}}"),
    ("digitalocean", "dop_v1_|doo_v1_|dor_v1_", rf"{_HEX}{{40,}}"),
    ("discord", "M|N|O", rf"{_WORD}{{22,26}}\.{_WORD}{{6}}\.{_WORD}{{27,}}"),
    ("docker", "dckr_pat_|dckr_oat_", rf"{_WORD}{{20,}}"),
    ("doppler", "dp.pt.|dp.st.|dp.ct.|dp.sa.", rf"{_ALNUM}{{40,}}"),
    ("dynatrace", "dt0c01.|dt0s01.", r"[A-Z0-9]{24}\.[A-Z0-9]{60,}"),
    ("elevenlabs", "sk_", rf"{_HEX}{{48}}"),
    ("facebook", "EAAC|EAAB|EAAG", rf"{_ALNUM}{{60,}}"),
    ("figma", "figd_", rf"{_WORD}{{20,}}"),
    ("firecrawl", "fc-", rf"{_HEX}{{32}}(?!\w)"),
    ("fireworks", "fw_", rf"{_ALNUM}{{22,}}"),
    ("flyio", "fo1_|fm1a_|fm1r_|fm2_", r"[\w+/=-]{40,}"),
    ("github", "ghp_|gho_|ghu_|ghs_|ghr_", rf"{_ALNUM}{{20,}}"),
    ("github", "github_pat_", r"\w{22,}"),
    ("gitlab", "glpat-|gldt-|glrt-|glcbt-|glptt-|glft-|glimt-|glagent-|gloas-|glsoat-", rf"{_WORD}{{16,}}"),
    ("google", "AIza", rf"{_WORD}{{30,}}"),
    ("google", "GOCSPX-", rf"{_WORD}{{20,}}"),
    ("google", "ya29.", rf"{_WORD}{{20,}}"),
    ("grafana", "glsa_|glc_", r"[\w+/=]{24,}"),
    ("groq", "gsk_", rf"{_ALNUM}{{30,}}"),
    ("heroku", "HRKU-", rf"{_WORD}{{30,}}"),
    ("huggingface", "hf_", rf"{_ALNUM}{{30,}}"),
    ("huggingface", "api_org_", rf"{_ALNUM}{{30,}}"),
    ("jina", "jina_", rf"{_WORD}{{50,}}"),
    ("jwt", "eyJ", rf"{_WORD}{{8,}}\.{_WORD}{{8,}}\.{_WORD}{{8,}}"),
    ("langfuse", "sk-lf-", rf"{_WORD}{{30,}}"),
    ("langsmith", "lsv2_pt_|lsv2_sk_", r"\w{32,}"),
    ("linear", "lin_api_", rf"{_ALNUM}{{30,}}"),
    ("mailgun", "key-", rf"{_HEX}{{32}}(?!\w)"),
    ("netlify", "nfp_", rf"{_ALNUM}{{30,}}"),
    ("newrelic", "NRAK-", r"[A-Z0-9]{20,}"),
    ("notion", "ntn_", rf"{_ALNUM}{{40,}}"),
    ("notion", "secret_", rf"{_ALNUM}{{43}}(?!\w)"),
    ("npm", "npm_", rf"{_ALNUM}{{30,}}"),
    ("nuget", "oy2", r"[a-z0-9]{43}(?!\w)"),
    ("nvidia", "nvapi-", rf"{_WORD}{{40,}}"),
    ("onepassword", "ops_eyJ", r"[\w+/=-]{50,}"),
    ("openai", "sk-proj-|sk-svcacct-|sk-admin-", rf"{_WORD}{{20,}}"),
    ("openai", "sk-", rf"{_ALNUM}{{20,}}"),
    ("openrouter", "sk-or-v1-", rf"{_HEX}{{32,}}"),
    ("perplexity", "pplx-", rf"{_ALNUM}{{30,}}"),
    ("pinecone", "pcsk_", r"\w{40,}"),
    ("planetscale", "pscale_tkn_|pscale_pw_|pscale_oauth_", r"[\w.-]{30,}"),
    ("posthog", "phx_", rf"{_ALNUM}{{30,}}"),
    ("postman", "PMAK-", rf"{_HEX}{{24}}-{_HEX}{{34}}"),
    ("pulumi", "pul-", rf"{_HEX}{{40}}"),
    ("pypi", "pypi-AgE", rf"{_WORD}{{30,}}"),
    ("replicate", "r8_", rf"{_ALNUM}{{30,}}"),
    ("rubygems", "rubygems_", rf"{_HEX}{{40,}}"),
    ("sendgrid", "SG.", rf"{_WORD}{{16,}}\.{_WORD}{{16,}}"),
    ("sentry", "sntrys_|sntryu_", r"[\w+/=.-]{30,}"),
    ("shopify", "shpat_|shpca_|shppa_|shpss_", r"[0-9a-fA-F]{32}"),
    ("slack", "xoxb-|xoxa-|xoxp-|xoxr-|xoxs-|xoxe-|xoxc-|xoxd-", r"[\w%-]{10,}"),
    ("slack", "xapp-", r"\d-[\w-]{20,}"),
    ("square", "sq0atp-|sq0csp-", rf"{_WORD}{{22,}}"),
    ("square", "EAAA", rf"{_WORD}{{56,}}"),
    ("stripe", "sk_live_|sk_test_|rk_live_|rk_test_", rf"{_ALNUM}{{16,}}"),
    ("stripe", "whsec_", r"[A-Za-z0-9+/=]{24,}"),
    ("supabase", "sbp_", rf"{_HEX}{{40}}"),
    ("supabase", "sb_secret_", rf"{_WORD}{{20,}}"),
    ("tavily", "tvly-", rf"{_WORD}{{16,}}"),
    ("telegram", "AA", rf"(?:(?<=\d:AA)|(?<=%3AAA)){_WORD}{{33}}(?![\w-])"),
    ("terraform", "atlasv1.", rf"{_WORD}{{50,}}"),
    ("together", "tgp_v1_", rf"{_WORD}{{40,}}"),
    ("twilio", "SK", rf"{_HEX}{{32}}(?!\w)"),
    ("vault", "hvs.|hvb.|hvr.", rf"{_WORD}{{20,}}"),
    ("xai", "xai-", rf"{_ALNUM}{{40,}}"),
)


def _formats() -> Iterator[_Format]:
    for kind, prefixes, rest in _TABLE:
        for prefix in prefixes.split("|"):
            yield _Format(kind, prefix.encode(), (re.escape(prefix) + rest).encode())


KINDS: frozenset[str] = frozenset(kind for kind, _, _ in _TABLE) | {"asana", "mailchimp"}
"""The kinds that are recognised by their format alone."""

_RUN = 16
_IN_RUN = bytes(120 if chr(code).isascii() and (chr(code).isalnum() or code in b"_-") else 32 for code in range(256))
_RUN_OF = b"x" * _RUN

_HEADS: dict[bytes, list[_Format]] = {}
"""Formats by the first two characters of the run that they begin with."""
_TAILS: dict[bytes, list[_Format]] = {}
"""Formats whose prefix ends in a dot, by the last three characters before the run that follows."""

_ENDS: dict[bytes, list[_Format]] = {}
"""Formats whose prefix is long and ends in `_` or `-`, by its last three characters."""

for _one in _formats():
    if len(_one.prefix) >= 4 and _one.prefix[-1:] in b"_-":
        _ENDS.setdefault(_one.prefix[-3:], []).append(_one)
    if _one.prefix.endswith(b"."):
        _TAILS.setdefault(_one.prefix[-3:], []).append(_one)
    elif len(_one.prefix) == 1:
        for _second in b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_":
            _HEADS.setdefault(_one.prefix + bytes([_second]), []).append(_one)
    else:
        _HEADS.setdefault(_one.prefix[:2], []).append(_one)

_PROGRAM_NAME = re.compile(rb"[a-z_-]+")


def _beginnings(texts: Iterable[bytes]) -> bytes:
    """A pattern of the first two characters of these texts: a class for each first character is tried fastest."""
    second: dict[bytes, set[bytes]] = {}
    for text in texts:
        second.setdefault(re.escape(text[:1]), set()).add(re.escape(text[1:2]))
    return b"|".join(first + b"[" + b"".join(sorted(rest)) + b"]" for first, rest in second.items())


_INSIDE = re.compile(rb"[_-](?<![_-].)(?:[_-]*(?=%s)|(?<=(?:%s).))" % (_beginnings(_HEADS), _beginnings(_ENDS)))
"""Where a token can begin inside a run: behind `_` or `-`, or with a prefix that ends in one of them."""

_ENDING = rb"s?(?:[_.-]?(?:\d{1,2}|prod|production|dev|test|live|base|value|new|old|string))?"
"""How the name of a secret goes on behind the clue."""
_CLUES = tuple(
    re.compile(clue % (_ENDING + rb"(?![\w.-])"))
    for clue in (
        rb"p(?:ass|wd)(?=(?:(?<=pass)(?:word|wd|phrase|code))?%s)",
        rb"secret(?=(?:[_.-]?(?:access)?[_.-]?key)?%s)",
        rb"ke(?:y|n(?<=token))(?=%s|(?: block)?-----)",
    )
)
"""Each name of a secret has one of these in it. Patterns that begin with letters are searched fastest."""
_KINDS_BY_CLUE = {b"pass": "password", b"pwd": "password", b"secret": "secret", b"ken": "token", b"key": "key"}

_SPACE = rb"(?:[ \t]|\\t){0,8}"
_QUOTE = rb"\\{0,6}[\"'`]"
_ASSIGNED = re.compile(
    rb"(?P<name>[\w.-]{0,40})(?:%s\]?|\])?%s(?P<by>=>|:=|[=:>]|%%3[ad]|\(|[ \t]is[ \t]|[ \t])%s"
    % (_QUOTE, _SPACE, _SPACE)
)
_VALUE = re.compile(
    rb"[bruf]{0,2}(?P<quote>%s)(?P<quoted>(?:(?!(?P=quote))[^\r\n]){8,256})(?P=quote)"
    rb"|(?P<plain>(?:[^\s\"'`<>(){}\[\],;&|\\]|\\(?![nrt\"'\\])){8,256})" % _QUOTE
)
_IN_NAME = b"abcdefghijklmnopqrstuvwxyz0123456789_.-"
_NAMES = re.compile(
    rb"(?:(?:^|[_.-])pass|pass(?:word|wd|phrase|code)|pwd|secret(?:[_.-]?(?:access)?[_.-]?key)?"
    rb"|(?:api|access|account|private|encryption|signing|secret|auth|shared|sharedaccess|subscription|storage|license"
    rb"|app|service|master|admin|deploy|consumer)[_.-]?key"
    rb"|(?:access|auth|refresh|bearer|api|bot|session|id|oauth|private|personal|deploy|security|app|service|user"
    rb"|admin|secret)[_.-]?token)"
    rb"%s$" % _ENDING
)
_WEAK_NAMES = re.compile(rb"(?:^-{0,2}|\.)token$")
_WEAK = 20
"""The shortest value of a weak name."""

_TEMPLATE = re.compile(
    rb"^[$*<{?#]|^%(?![0-9A-F]{2})|^\\u27e8|\.\.\.|\*\*\*|xxxx|://|^[\d:.TZ+ -]*$|your[_-]|changeme|placeholder"
    rb"|redacted|environ|getenv|process\.env|^(?:[\w.-]+:)?[0-9a-f]{8}(?:\?|\\u27e9|\xe2\x9f\xa9)",
    re.IGNORECASE,
)
"""Values that only stand for a secret, our placeholders among them, and dates, paths and URLs."""
_PATH = re.compile(rb"(?:\.{1,2}|~)?/")
_PATH_MARKS = re.compile(rb"[~/._@-]+")
_PATH_WORD = re.compile(rb"(?:[A-Z]{0,9}[a-z]{0,20}(?:[A-Z][a-z]{2,20}){0,5}\d{0,6}|\d+|[0-9a-f]{7,})")
_IDENTIFIER = re.compile(
    rb"\.{0,3}(?:[A-Za-z_]\w*\.)+[A-Za-z_]\w*|_*[a-z]*(?:_*[A-Z]+[a-z]{2,}|_+[a-z]+)*_*[A-Z]*\d{0,2}|[a-z]+(?:[_-][a-z0-9]+)*|[A-Z]+(?:_[A-Z0-9]+)*"
)
_HASH = re.compile(rb"[0-9a-fA-F]{32,}|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")

_HEADER = re.compile(
    rb"authorization[\W_]{1,16}(?:basic(?:%%20|[ \t+:]){1,3}(?P<basic>[A-Za-z0-9+/_-]{8,512}={0,2})"
    rb"|(?:bearer|token|apikey)?(?:%%20|[ \t+:=]){1,3}(?:%s)?(?P<bearer>[A-Za-z0-9._~+/=-]{16,2048}))" % _QUOTE,
    re.IGNORECASE,
)
_URL = re.compile(
    rb"//(?:(?<=:..)|(?<=%3A..))(?:[^\s/:@\"'<>\\]{0,128}:(?P<password>[^\s/@\"'<>\\]{3,256})@"
    rb"|[\w.~-]{0,128}%3A(?P<encoded>[^\s/:@\"'<>\\&]{3,256}?)%40"
    rb"|hooks\.slack\.com/(?:services|workflows)/(?P<slack>[\w/]{16,100})"
    rb"|(?:\w{1,20}\.)?discord(?:app)?\.com/api/(?:v\d+/)?webhooks/\d{5,25}/(?P<discord>[\w-]{30,100})"
    rb"|[^\s\"'<>?]{1,500}\?(?:[^\s\"'<>]{0,500}?(?:&|&amp;|\\u0026))??(?:sig|X-Amz-Signature|X-Amz-Security-Token|X-Goog-Signature)="
    rb"(?P<signature>[^\s\"'<>&\\]{16,2048}))",
    re.IGNORECASE,
)
_NO_PASSWORD = re.compile(rb"[$%*<{?].*|\\u27e8.*|pass(?:word|wd)?|pw|pwd|secret|x+|\.+|token", re.IGNORECASE)
_KEY_BODY = re.compile(
    rb"KEY(?: BLOCK)?-----(?:\s|\\{1,4}[nr]|%0[AD])*(?P<body>"
    rb"(?:[A-Za-z][\w-]{2,20}: [^\r\n\\]{0,100}(?:\s|\\{1,4}[nr])+){0,5}"
    rb"(?:[A-Za-z0-9+/=\s]|\\{1,4}[nr]|%(?:0[AD]|2[BF]|3D)){40,16384})"
)


_WINDOW, _OVERLAP = 1 << 20, 1 << 16
"""A long text is searched in parts, so that it is not copied as a whole. No secret is longer than the overlap."""


def find(text: bytes | str) -> list[Found]:
    """The secrets in a text, in order and without overlaps; where several clues overlap, the longest secret."""
    found: list[Found] = []
    for start in range(0, max(1, len(text) - _OVERLAP), _WINDOW - _OVERLAP):
        part = text[start : start + _WINDOW]
        data = part.encode("latin-1", "replace") if isinstance(part, str) else part
        found += [Found(one.start + start, one.end + start, one.kind) if start else one for one in _find(data)]
    return without_overlaps(found) if len(found) > 1 else found


def _find(data: bytes) -> list[Found]:
    found, lower = _by_format(data), data.lower()
    for clue in _CLUES:
        for hit in clue.finditer(lower):
            one = _assigned(data, lower, hit) or _key_body(data, lower, hit)
            if one is not None:
                found.append(one)
    found += [one for match in _URL.finditer(data) if (one := _by_place(match)) is not None]
    if b"authorization" in lower:
        found += [one for match in _HEADER.finditer(data) if (one := _by_place(match)) is not None]
    return found


def named(name: str, value: str) -> str | None:
    """The kind of secret that a value is because of its name; none if the name or the value are not such."""
    if not 8 <= len(value) <= 512:
        return None
    lower = name.lower().encode("latin-1", "replace")
    clue = next((found for clue in _CLUES if (found := clue.search(lower))), None)
    if clue is None or not _is_secret(lower, value.encode("latin-1", "replace"), quoted=True):
        return None
    return _KINDS_BY_CLUE[clue[0]]


def _by_format(data: bytes) -> list[Found]:
    found: list[Found] = []
    runs, last = data.translate(_IN_RUN), 0
    start = runs.find(_RUN_OF)
    while start >= 0:
        end = runs.find(b" ", start)
        end = len(data) if end < 0 else end
        one = _in_run(data, start, end)
        if one is not None:
            found.append(one._replace(start=max(one.start, last)))
            if end - one.end >= _RUN:  # keys that follow each other without a gap
                found.append(Found(one.end, end, one.kind))
            end = last = max(end, one.end)
        start = runs.find(_RUN_OF, end)
    return found


def _in_run(data: bytes, start: int, end: int) -> Found | None:
    """The first token in a run. Small letters alone are a name in a program: a token has digits or capitals, too."""
    if _PROGRAM_NAME.fullmatch(data, start, end):
        return None
    before = data[start - 1 : start] if start else b""
    at = start + (_escaped(data, start) if before in _ESCAPING else 0)
    found = _at(data, at) if data[at : at + 2] in _HEADS else None
    if found is None and before == b".":
        found = _after_dot(data, start)
    return found or _inside(data, start, end) or _around_hash(data, at, end)


def _at(data: bytes, at: int) -> Found | None:
    """The token that begins here."""
    for one in _HEADS.get(data[at : at + 2], ()):
        if (match := one.match(data, at)) is not None:
            return Found(at, match.end(), one.kind)
    return None


def _after_dot(data: bytes, start: int) -> Found | None:
    """The token whose prefix ends in a dot before the run."""
    for one in _TAILS.get(data[max(0, start - 3) : start], ()):
        at = start - len(one.prefix)
        match = one.match(data, at) if at >= 0 else None
        if match is not None:
            return Found(at, match.end(), one.kind)
    return None


def _inside(data: bytes, start: int, end: int) -> Found | None:
    """The token that begins inside the run: `backup-sk-…`, or with a prefix that no word ends in: `myghp_…`."""
    for marks in _INSIDE.finditer(data, start, end):
        found = _at(data, marks.end()) or _with_prefix_before(data, start, marks.start() + 1)
        if found is not None:
            return found
    return None


def _with_prefix_before(data: bytes, start: int, after: int) -> Found | None:
    for one in _ENDS.get(data[after - 3 : after], ()):
        at = after - len(one.prefix)
        match = one.match(data, at) if at >= start else None
        if match is not None:
            return Found(at, match.end(), one.kind)
    return None


def _around_hash(data: bytes, start: int, end: int) -> Found | None:
    """The token that is a hash with something of its issuer behind or before it."""
    if 36 <= end - start <= 38 and _MAILCHIMP.fullmatch(data, start, end):
        return Found(start, end, "mailchimp")
    if end - start == 32 and data[start - 1 : start] in (b":", b"A"):
        match = _ASANA.search(data, max(0, start - 64), end)
        return None if match is None else Found(*match.span(), "asana")
    return None


_MAILCHIMP = re.compile(rb"[0-9a-f]{32}-us\d{1,2}")
_ASANA = re.compile(rb"\b\d(?:(?:/|%2F)\d{10,20}){1,2}(?::|%3A)[0-9a-f]{32}\Z")


def _escaped(data: bytes, start: int) -> int:
    r"""How many characters of a run belong to an escape before it: `\n`, `\xe9`, `\u00e9`, `%3D`."""
    if data[start - 1 : start] == b"%":
        return 2
    return _ESCAPES.get(data[start : start + 1], 1)


_ESCAPING = (b"%", b"\\")
_ESCAPES = {b"u": 5, b"x": 3, b"U": 9}


def _assigned(data: bytes, lower: bytes, clue: re.Match[bytes]) -> Found | None:
    """The secret that is assigned to the name with a clue in it."""
    assigned = _ASSIGNED.match(lower, clue.end())
    if assigned is None:
        return None
    before = _name_before(lower, clue.start())
    if assigned["by"].isspace() and not before.startswith(b"--"):
        return None
    name = before + clue[0] + assigned["name"]
    if _shortest_value(name) is None:
        return None
    value = _VALUE.match(data, assigned.end())
    if value is None or (assigned["by"] == b"(" and value["quoted"] is None):
        return None
    quoted = value["quoted"] is not None
    start, end = value.span("quoted" if quoted else "plain")
    secret = data[start:end] if quoted else data[start:end].rstrip(b".,:")
    if not _is_secret(name, secret, quoted=quoted):
        return None
    return Found(start, start + len(secret), _KINDS_BY_CLUE[clue[0]])


def _name_before(lower: bytes, at: int) -> bytes:
    """The part of a name that stands before a clue."""
    before = lower[max(0, at - 40) : at]
    return before[len(before.rstrip(_IN_NAME)) :]


def _key_body(data: bytes, lower: bytes, clue: re.Match[bytes]) -> Found | None:
    at = clue.start()
    if clue[0] != b"key" or not lower.endswith((b"private ", b"private%20", b"private+"), 0, at):
        return None
    match = _KEY_BODY.match(data, at)
    return None if match is None else Found(*match.span("body"), "private-key")


@lru_cache(2048)
def _shortest_value(name: bytes) -> int | None:
    """How long the value of a name must be to be a secret; none if the name is not that of a secret."""
    if _NAMES.search(name) is not None:
        return 8
    return _WEAK if _WEAK_NAMES.search(name) is not None else None


def _is_secret(name: bytes, value: bytes, *, quoted: bool) -> bool:
    """Whether a value is the secret that its name says; a word, a path or an identifier is none."""
    shortest = _shortest_value(name)
    if shortest is None or len(value) < shortest or b" " in value or _TEMPLATE.search(value) or _is_path(value):
        return False
    strong = shortest < _WEAK
    if _HASH.fullmatch(value):
        return strong
    classes = _classes(value)
    if not quoted and _IDENTIFIER.fullmatch(value):
        return False
    return classes >= 3 or (strong and classes == 2 and len(value) >= 10 and not _IDENTIFIER.fullmatch(value))


def _is_path(value: bytes) -> bool:
    """Whether a value is a path of words, numbers and hashes. Secrets in base64 can begin with a slash, too."""
    return _PATH.match(value) is not None and all(_PATH_WORD.fullmatch(part) for part in _PATH_MARKS.split(value))


def _classes(value: bytes) -> int:
    lower, upper = any(97 <= code <= 122 for code in value), any(65 <= code <= 90 for code in value)
    digit = any(48 <= code <= 57 for code in value)
    return lower + upper + digit + (not value.replace(b"_", b"").replace(b"-", b"").isalnum())


def _by_place(match: re.Match[bytes]) -> Found | None:
    group = match.lastgroup
    if group is None or not _is_there(group, match[group]):
        return None
    return Found(*match.span(group), _PLACES.get(group, group))


_PLACES = {"password": "url-password", "encoded": "url-password", "signature": "url-signature"}


def _is_there(group: str, value: bytes) -> bool:
    if group == "password":
        return _NO_PASSWORD.fullmatch(value) is None
    if group == "bearer":
        return _TEMPLATE.search(value) is None and _classes(value) >= 2 and not value.isalpha()
    if group != "basic":
        return True
    try:
        return b":" in base64.b64decode(value + b"=" * (-len(value) % 4), altchars=b"-_" if b"-" in value else None)
    except (binascii.Error, ValueError):
        return False


def without_overlaps(found: list[Found]) -> list[Found]:
    """In order; of secrets that overlap the longest, and of equal ones the first of the list."""
    kept: list[Found] = []
    for one in sorted(found, key=lambda one: one.start - one.end):
        if not overlaps(one, kept):
            insort(kept, one)
    return kept


def overlaps(one: Found, others: list[Found]) -> bool:
    """Whether a secret overlaps one of others that are in order and do not overlap."""
    place = bisect(others, one)
    return (place > 0 and others[place - 1].end > one.start) or (place < len(others) and one.end > others[place].start)
