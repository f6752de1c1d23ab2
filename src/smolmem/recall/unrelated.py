"""Finds results of tools that are unrelated to the text that a run has read.

An agent that has read a web page still calls other tools, such as a health check. The result keeps its trust, if the
text that was read is neither in the call nor in the result:

- the arguments of the tools share no words in a row with the text;
- neither does the result, nor with anything that the model gave to a tool since;
- code uses only tools, and variables that it makes itself.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Collection, Iterable, Sequence

from smolmem.core.rows import Passage
from smolmem.recall.passages import phrases, plain_words

PHRASE = 4
"""Words in a row that two texts have in common if one was made from the other."""
_HARMLESS = frozenset(dir(builtins)) - {"eval", "exec", "globals", "locals", "vars"} | {"final_answer"}


class Corpus:
    """Some texts, to be compared with another text."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._phrases: set[tuple[str, ...]] = set()
        self._texts: list[str] = []
        self.add(texts)

    def add(self, texts: Iterable[str]) -> None:
        """Adds texts."""
        for text in texts:
            words = plain_words(text)
            self._phrases.update(phrases(words, PHRASE))
            self._texts.append(f" {' '.join(words)} ")

    def shares(self, text: str) -> bool:
        """Whether a text has some words in a row in common with this corpus; all of its words, if it is short."""
        words = plain_words(text)
        if len(words) >= PHRASE:
            return any(phrase in self._phrases for phrase in phrases(words, PHRASE))
        return bool(words) and any(f" {' '.join(words)} " in known for known in self._texts)


def uses_other_values(passages: Sequence[Passage], tools: Collection[str]) -> bool:
    """Whether a step calls no tool, or its code uses values that it did not make itself."""
    code = "\n".join(passage.text for passage in passages if passage.role == "code")
    return not tools or bool(unknown_names(code, (), tools))


def is_unrelated(passages: Sequence[Passage], came: Sequence[Corpus], said: Corpus) -> bool:
    """Whether the result of a step's tools is unrelated to text of low trust.

    Args:
        passages: the passages of a step whose code uses no other values.
        came: the text of low trust that its session read.
        said: the arguments that its model gave to tools since.
    """
    given = [passage for passage in passages if passage.role in ("code", "call")]
    seen = [passage.text for passage in passages if passage.role in ("observation", "error")]
    if any(corpus.shares(_values(part)) for part in given for corpus in came):
        return False
    own = Corpus(_values(part) for part in given)
    return not any(corpus.shares(text) for text in seen for corpus in (*came, said, own))


def _values(part: Passage) -> str:
    """The arguments in a call or code, without the name of the tool."""
    return part.text.removeprefix(part.tool or "")


def unknown_names(code: str, earlier: Iterable[str], tools: Collection[str]) -> set[str]:
    """The names that code uses and that are neither tools nor made before, in this code or in earlier code."""
    known = _HARMLESS.union(tools)
    for said in earlier:
        known |= _names(_parsed(said), ast.Store)
    unknown: set[str] = set()
    for statement in _parsed(code):
        made = _names([statement], ast.Store)
        inside = made if isinstance(statement, _COMPOUND) else _made_inside(statement)
        unknown |= _names([statement], ast.Load) - known - inside
        if isinstance(statement, ast.AugAssign):
            unknown |= made - known
        known |= made
    return unknown


_COMPOUND = (ast.For, ast.While, ast.If, ast.With, ast.Try, ast.FunctionDef, ast.ClassDef)


def _made_inside(statement: ast.stmt) -> set[str]:
    """The names that comprehensions and lambdas of a statement make for themselves."""
    own = (node for node in ast.walk(statement) if isinstance(node, (ast.comprehension, ast.Lambda)))
    return {name for node in own for name in _names([node], ast.Store)}


def _parsed(code: str) -> list[ast.stmt]:
    try:
        return ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.parse("unreadable").body


def _names(nodes: Iterable[ast.AST], context: type[ast.expr_context]) -> set[str]:
    """The names that are read (`ast.Load`) or made (`ast.Store`)."""
    found: set[str] = set()
    for node in (each for top in nodes for each in ast.walk(top)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, context):
            found.add(node.id)
        elif context is ast.Store:
            found |= _declared(node)
    return found


def _declared(node: ast.AST) -> set[str]:
    if isinstance(node, ast.alias):
        return {(node.asname or node.name).split(".")[0]}
    if isinstance(node, ast.arg):
        return {node.arg}
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return {node.name}
    return {node.name} if isinstance(node, ast.ExceptHandler) and node.name else set()
