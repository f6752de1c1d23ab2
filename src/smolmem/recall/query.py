"""What a question asks for: its words, quoted so that any text is a safe query, and the time it mentions."""

from __future__ import annotations

import calendar
import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import NamedTuple

from smolmem.core.scripts import is_unspaced
from smolmem.core.text import storable
from smolmem.store.passage_rows import searchable

FEWEST_WORDS = 2
NAME = 2
"""Words of a question that only names what is searched for, at most."""
MOST_WORDS = 64
"""Words of a question that are searched for; a longer question is also known by its vector."""
LONGEST = 10_000
"""Characters of a question that are looked at."""

STOP_WORDS = frozenset(
    """a about am an and are as at be been but by can could did do does doing for from had has have he her hers him his
    how i if in into is it its just me my no not of on or our out over she should so some such than that the their
    theirs them then there these they this those to too up us very was we were what when where which while who whom
    whose why will with would you your yours""".split()  # noqa: SIM905
)
"""Words that say nothing about what is searched for; they count where a question has no others."""

MONTHS = {name.lower(): number for number, name in enumerate(calendar.month_name) if name}
DAYS = {name.lower(): number for number, name in enumerate(calendar.day_name)}
_MONTH = "|".join([*MONTHS, *(name[:3] for name in MONTHS)])
_UNITS = {"minute": 60, "hour": 3600, "day": 86400, "week": 604800, "month": 2629800, "year": 31557600}
_ANCHOR = re.compile(r"\b(before|after|since) (?:the|my|our|your|its|that|last) ([\w ]{3,60})", re.IGNORECASE)
_INFLECTION = re.compile("[\u3041-\u309f]{1,2}")
"""What Japanese writes endings, particles and auxiliary words with."""
_NAME = re.compile(r"(?P<begins>(?:^|[.!?:\n\"'`(])\s*)?(?P<word>[^\W_]+)")
_COUNTS = {"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7}


def beginning(question: str) -> str:
    """As much of a question as is looked at, as text that models and stores accept."""
    asked = question.strip()
    if len(asked) > LONGEST:
        asked = asked[:LONGEST].rsplit(None, 1)[0]  # half a word would be a word that nobody knows
    return storable(asked)


def words(question: str) -> list[str]:
    """The words to search for, each once; identifiers by their parts, too."""
    found = dict.fromkeys(f"{word}*" if len(word) == 1 and is_unspaced(word) else word for word in _all_words(question))
    return (list(filter(is_specific, found)) or list(found))[:MOST_WORDS]


def is_name(question: str) -> bool:
    """Whether a question only names what is searched for, by one or two words; an identifier or a path is one word."""
    parts, count = question.split(), 0
    for part in parts:
        found = len(list(filter(is_specific, _all_words(part))))
        count += min(found, 1) if part.isascii() else found
        if count > NAME:
            return False
    return count > 0 or len(parts) <= NAME


def is_specific(word: str) -> bool:
    """Whether a word says something: it is no stop word, no ending and no single letter."""
    if word in STOP_WORDS or _INFLECTION.fullmatch(word):
        return False
    return len(word) > 1 or not word.isascii() or word.isdigit()


def phrases(question: str) -> list[str]:
    """The pairs of neighbouring words to search for, each once; a pair of two stop words says nothing."""
    pairs = pairwise(_all_words(question))
    return list(dict.fromkeys(f"{a} {b}" for a, b in pairs if not {a, b} <= STOP_WORDS))[:MOST_WORDS]


def _all_words(question: str) -> list[str]:
    found = [word.lower() for word in re.findall(r"[^\W_]+", searchable(storable(question)))]
    pairs = zip(["", *found], found, strict=False)
    return [word for before, word in pairs if len(word) > 1 or not is_unspaced(word) or not before.endswith(word)]


def names(question: str) -> set[str]:
    """The words that are written as names: with a capital inside of a sentence, or with letters and digits."""
    if question.isupper():
        return set()
    found = _NAME.finditer(storable(question))
    return {
        match["word"].lower()
        for match in found
        if (match["word"][0].isupper() and match["begins"] is None)
        or (match["word"].isalnum() and not match["word"].isalpha() and not match["word"].isdigit())
    }


def sentences(question: str) -> list[str]:
    """The sentences and lines of a question that have some words."""
    parts = re.split(r"(?<=[.!?])\s+|\n+", question)
    return [part for part in parts if len(words(part)) >= FEWEST_WORDS]


def match(wanted: Sequence[str], scope_term: str | None) -> str:
    """A full-text query for any of some words or phrases in a scope; no text can break out of it.

    A word that ends with `*` stands for all words that begin with it.
    """
    quoted = (f'"{word[:-1]}" *' if word.endswith("*") else f'"{word}"' for word in wanted)
    scope = "" if scope_term is None else f"{scope_match(scope_term)} AND "
    return f"{scope}({' OR '.join(quoted)})"


def scope_match(scope_term: str) -> str:
    """A full-text query for everything of a scope."""
    return f'scope : "{scope_term}"'


class Span(NamedTuple):
    """A time span that a question mentions, from `since` up to `until`."""

    since: float
    until: float


class Anchor(NamedTuple):
    """A time that is known by an event: "before the restart"."""

    side: str
    event: str


def times(question: str, now: datetime) -> list[Span | Anchor]:
    """The times that a question mentions, as seen from `now`."""
    text = question.lower()[:2000]
    spans = [_relative(text, now), _dated(text, now), _weekday(text, now)]
    found: list[Span | Anchor] = [span for span in spans if span is not None]
    anchor = _ANCHOR.search(text)
    if anchor and not found:
        found.append(Anchor(anchor[1], anchor[2].strip()))
    return found


def _relative(text: str, now: datetime) -> Span | None:
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    monday = today - timedelta(days=today.weekday())
    month = today.replace(day=1)
    before = (month - timedelta(days=1)).replace(day=1)
    year = month.replace(month=1)
    named = {
        r"\b(today|tonight|this morning)\b": (today, today + timedelta(days=1)),
        r"\b(yesterday|last night)\b": (today - timedelta(days=1), today),
        r"\bthis week\b": (monday, monday + timedelta(days=7)),
        r"\blast week\b": (monday - timedelta(days=7), monday),
        r"\bthis month\b": (month, now + timedelta(days=1)),
        r"\blast month\b": (before, month),
        r"\bthis year\b": (year, now + timedelta(days=1)),
        r"\blast year\b": (year.replace(year=year.year - 1), year),
    }
    for pattern, (since, until) in named.items():
        if re.search(pattern, text):
            return Span(since.timestamp(), until.timestamp())
    ago = re.search(rf"\b(\d{{1,4}}|{'|'.join(_COUNTS)}) ({'|'.join(_UNITS)})s? ago\b", text)
    past = re.search(rf"\b(?:last|past) (\d{{1,4}}|{'|'.join(_COUNTS)}) ({'|'.join(_UNITS)})s?\b", text)
    if ago:
        distance, grain = _seconds(ago), _UNITS[ago[2]]
        return Span(now.timestamp() - distance - grain, now.timestamp() - distance + grain)
    return Span(now.timestamp() - _seconds(past), now.timestamp()) if past else None


def _seconds(found: re.Match[str]) -> int:
    return (int(found[1]) if found[1].isdigit() else _COUNTS[found[1]]) * _UNITS[found[2]]


def _dated(text: str, now: datetime) -> Span | None:
    """A date that is written out: a day, a month or a year."""
    exact = re.search(r"\b(\d{4})-(\d\d)-(\d\d)\b", text)
    if exact:
        return _day(int(exact[1]), int(exact[2]), int(exact[3]))
    day = re.search(rf"\b(\d{{1,2}})(?:st|nd|rd|th)? (?:of )?({_MONTH})\b,? ?(\d{{4}})?", text)
    if day:
        return _day(_year(day[3], day[2], now), _month(day[2]), int(day[1]))
    day = re.search(rf"\b({_MONTH}) (\d{{1,2}})(?:st|nd|rd|th)?\b,? ?(\d{{4}})?", text)
    if day:
        return _day(_year(day[3], day[1], now), _month(day[1]), int(day[2]))
    month = re.search(rf"\b(?:in|during|of|since|last) ({_MONTH})\b,? ?(\d{{4}})?", text)
    if month:
        year, number = _year(month[2], month[1], now), _month(month[1])
        return _span((year, number, 1), (year + number // 12, number % 12 + 1, 1))
    year_only = re.search(r"\b(?:in|during|of|since) (\d{4})\b", text)
    return _span((int(year_only[1]), 1, 1), (int(year_only[1]) + 1, 1, 1)) if year_only else None


def _weekday(text: str, now: datetime) -> Span | None:
    named = re.search(rf"\b(?:on|last) ({'|'.join(DAYS)})\b", text)
    if named is None:
        return None
    back = (now.weekday() - DAYS[named[1]]) % 7 or 7
    day = now - timedelta(days=back)
    return _day(day.year, day.month, day.day)


def _month(word: str) -> int:
    return next(number for name, number in MONTHS.items() if name[:3] == word[:3])


def _year(given: str | None, month: str, now: datetime) -> int:
    """The year that is meant: the latest in which that month has begun."""
    return int(given) if given else now.year - (_month(month) > now.month)


def _day(year: int, month: int, day: int) -> Span | None:
    span = _span((year, month, day), (year, month, day))
    return None if span is None else Span(span.since, span.until + 86400)


def _span(since: tuple[int, int, int], until: tuple[int, int, int]) -> Span | None:
    try:
        return Span(datetime(*since).timestamp(), datetime(*until).timestamp())
    except (ValueError, OverflowError, OSError):
        return None
