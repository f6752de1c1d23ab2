"""Chats that other libraries saved, as runs: each message of a user is a task, each answer of a model a step.

    OpenAI Agents   the SQLite file of a SQLiteSession
    LangGraph       the SQLite file of a SqliteSaver; the messages of each thread's newest checkpoint
    CrewAI          the SQLite file with the outputs of a crew's tasks
    LlamaIndex      the JSON file of a SimpleChatStore
    LangChain       the JSON file of a FileChatMessageHistory
    messages        a JSON list of messages with role and content

Files are read as data. No class that a file names is imported, and pickles are refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
from smolagents.memory import ActionStep, TaskStep, ToolCall
from smolagents.models import ChatMessage, MessageRole
from smolagents.monitoring import Timing, TokenUsage

from smolmem.core.arguments import to_timestamp
from smolmem.core.errors import SmolmemError
from smolmem.transfer.foreign import ForeignCall, ForeignRun, Unreadable, role_of, tool_call

MOST_ROWS = 1_000_000
_OWN_TABLES = {"session", "run", "event", "content"}
"""The tables that a store of smolmem is recognised by."""
_CLASSES = {"HumanMessage": "human", "AIMessage": "ai", "ToolMessage": "tool", "SystemMessage": "system"}


@dataclass(frozen=True)
class Message:
    """A message of a chat."""

    role: str
    text: str
    at: float
    calls: Sequence[tuple[str, Any, str]] = ()
    """The calls that a model asks for: name, arguments, id."""
    answers: str | None = None
    """The id of the call that this is the result of."""
    model: str | None = None
    usage: tuple[int, int] | None = None


# --- from messages to runs -------------------------------------------------------------------------------------------


def runs_of_chat(source: str, chat: Any, messages: Sequence[Message], agent: str) -> list[ForeignRun]:
    """The runs of a chat, in one session."""
    groups: list[list[Message]] = []
    system = None
    for message in messages:
        if message.role == "system":
            system = message.text
        elif message.role == "user" or not groups:
            groups.append([message])
        else:
            groups[-1].append(message)
    session = f"{source} {chat}"
    return [_run(session, agent, number, group, system) for number, group in enumerate(groups)]


def _run(session: str, agent: str, number: int, messages: Sequence[Message], system: str | None) -> ForeignRun:
    """One run: a user's message, and the answers to it."""
    first, last = messages[0], messages[-1]
    rest = messages[1:] if first.role == "user" else messages
    steps: list[Any] = [TaskStep(first.text if first.role == "user" else "(the chat begins without a task)")]
    calls: list[ForeignCall] = []
    for message in rest:
        step = steps[-1]
        if message.answers is None or not isinstance(step, ActionStep):
            steps.append(_step(message, len(steps)))
            continue
        step.observations = "\n".join(text for text in (step.observations, message.text) if text)
        began = step.timing.start_time
        step.timing = Timing(began, max(message.at, began))
        for call in [call for call in step.tool_calls or [] if call.id == message.answers][:1]:
            ended = step.timing.end_time
            calls.append(ForeignCall(len(steps) - 1, call.name, call.arguments, message.text, began, ended))
    done = isinstance(steps[-1], ActionStep) and not steps[-1].tool_calls
    if done:
        steps[-1].is_final_answer, steps[-1].action_output = True, last.text
    return ForeignRun(
        key=f"{session} {number}",
        session=session,
        agent=agent,
        agent_type="ToolCallingAgent",
        steps=steps,
        status="finished" if done else "interrupted",
        began=first.at,
        ended=last.at,
        answer=last.text if done else None,
        model=next((message.model for message in rest if message.model), None),
        system=system if number == 0 else None,
        calls=calls,
    )


def _step(message: Message, number: int) -> ActionStep:
    asked = [tool_call(*call) for call in message.calls]
    return ActionStep(
        step_number=number,
        timing=Timing(message.at, message.at),
        tool_calls=[ToolCall(call.function.name, call.function.arguments, call.id) for call in asked] or None,
        model_output_message=ChatMessage(MessageRole.ASSISTANT, message.text, asked or None),
        model_output=message.text,
        token_usage=None if message.usage is None else TokenUsage(*message.usage),
    )


# --- JSON files ------------------------------------------------------------------------------------------------------


def is_llama_index(values: list[Any]) -> bool:
    """Whether this is a chat store of LlamaIndex."""
    store = values[0].get("store") if len(values) == 1 and isinstance(values[0], dict) else None
    return isinstance(store, dict) and bool(store) and all(_are_messages(chat) for chat in store.values())


def read_llama_index(values: list[Any], at: float) -> list[ForeignRun]:
    """The chats of a chat store of LlamaIndex."""
    chats = values[0]["store"].items()
    read = ((chat, [_plain(each, at) for each in messages]) for chat, messages in chats)
    return [run for chat in read for run in runs_of_chat("llama-index", *chat, "LlamaIndex")]


def is_messages(values: list[Any]) -> bool:
    """Whether this is a list of messages, as OpenAI's API or LangChain has them."""
    return _are_messages(_list_of(values))


def read_messages(values: list[Any], at: float, name: str) -> list[ForeignRun]:
    """A list of messages as one chat."""
    return runs_of_chat("messages", name, [_plain(each, at) for each in _list_of(values)], "chat")


def _list_of(values: list[Any]) -> Any:
    only = values[0] if len(values) == 1 else values
    return only.get("messages") if isinstance(only, dict) else only


def _are_messages(given: Any) -> bool:
    return isinstance(given, list) and bool(given) and all(_is_message(each) for each in given)


def _is_message(each: Any) -> bool:
    if not isinstance(each, dict):
        return False
    langchain = isinstance(each.get("type"), str) and isinstance(each.get("data"), dict)
    return langchain or (isinstance(each.get("role"), str) and ("content" in each or "blocks" in each))


def _plain(record: Mapping[str, Any], at: float) -> Message:
    """A message of OpenAI, LangChain or LlamaIndex."""
    inner = record.get("data")
    whole: Mapping[str, Any] = {**record, **inner} if isinstance(inner, dict) else record
    extra, about = _object(whole, "additional_kwargs"), _object(whole, "response_metadata")
    calls = whole.get("tool_calls") or extra.get("tool_calls") or []
    role = role_of(whole.get("role") or whole.get("type"))
    answers = whole.get("tool_call_id") or extra.get("tool_call_id")
    content = whole.get("content") if whole.get("content") is not None else whole.get("blocks")
    return Message(
        role={"tool-response": "tool"}.get(role.value, role.value),
        text=text_of(content),
        at=at,
        calls=[called(call) for call in calls if isinstance(call, dict)] if isinstance(calls, list) else [],
        answers=None if answers is None else str(answers),
        model=str(about["model_name"]) if about.get("model_name") else None,
        usage=_usage(whole.get("usage_metadata")),
    )


def _object(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = record.get(name)
    return found if isinstance(found, dict) else {}


def called(record: Mapping[str, Any]) -> tuple[str, Any, str]:
    """The name, arguments and id of a call, in one of the shapes that libraries write."""
    function = _object(record, "function") or record
    arguments = function.get("arguments", function.get("args"))
    return str(function.get("name", "")), arguments, str(record.get("id") or record.get("call_id") or "")


def _usage(given: Any) -> tuple[int, int] | None:
    if not isinstance(given, dict):
        return None
    counts = [given.get(name) for name in ("input_tokens", "output_tokens")]
    return (counts[0], counts[1]) if all(type(count) is int for count in counts) else None  # type: ignore[return-value]


def text_of(content: Any) -> str:
    """The text of a message, whose content may be a list of parts; a part that is not text is named in brackets."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        return json.dumps(content, ensure_ascii=False, default=str)
    texts = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) else part
        named = part.get("type") or part.get("block_type") if isinstance(part, dict) else None
        texts.append(text if isinstance(text, str) else f"[{named or type(part).__name__}]")
    return "\n".join(texts)


# --- SQLite files ----------------------------------------------------------------------------------------------------

Chat = tuple[Any, Sequence[Message], str]
"""A chat: its key, its messages and its agent."""


def read_sqlite(path: Path, tool: str | None) -> list[ForeignRun]:
    """The runs in the SQLite file of a tool, which is recognised by its tables; `tool` is the only one expected.

    The file is opened read only, and its schema is not trusted.
    """
    expected = {name: SQLITE_TOOLS[name] for name in SQLITE_TOOLS if tool in (None, name)} or SQLITE_TOOLS
    try:
        with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("PRAGMA query_only = ON")
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if tables >= _OWN_TABLES:
                raise Unreadable(
                    "this is a store of smolmem: open it with --db, or use `smolmem export` and `smolmem load`"
                )
            for source, (_, own, chats) in expected.items():
                if tables >= own:
                    return [run for chat in chats(connection) for run in runs_of_chat(source, *chat)]
    except apsw.Error as error:
        raise Unreadable(f"SQLite cannot read the file ({error}).") from error
    names = ", ".join(name for name, _, _ in expected.values())
    raise Unreadable(f"this SQLite file was not written by {' or '.join(names.rsplit(', ', 1))}")


def _openai_chats(connection: apsw.Connection) -> Iterator[Chat]:
    """The sessions of OpenAI Agents."""
    chats: dict[str, list[Message]] = {}
    rows = connection.execute("SELECT session_id, message_data, created_at FROM agent_messages ORDER BY id")
    for number, (session, data, created) in enumerate(rows, 1):
        record = _json(data, f"message {number}")
        message = _openai(record, _time(created)) if isinstance(record, dict) else None
        if message is not None and number <= MOST_ROWS:
            chats.setdefault(str(session), []).append(message)
    yield from ((session, messages, "OpenAI Agents") for session, messages in chats.items())


def _openai(record: Mapping[str, Any], at: float) -> Message | None:
    kind = record.get("type")
    if kind == "function_call":
        return Message("assistant", "", at, [(str(record.get("name", "")), record.get("arguments"), _call_id(record))])
    if kind == "function_call_output":
        return Message("tool", text_of(record.get("output")), at, answers=_call_id(record))
    if kind == "reasoning":
        text = text_of(record.get("summary"))
        return Message("assistant", text, at) if text else None
    return _plain(record, at) if "role" in record else None


def _call_id(record: Mapping[str, Any]) -> str:
    return str(record.get("call_id", ""))


def _langgraph_chats(connection: apsw.Connection) -> Iterator[Chat]:
    """The threads of a LangGraph checkpointer: the messages of the newest checkpoint of each."""
    newest = (
        "SELECT thread_id, type, checkpoint FROM checkpoints AS one WHERE checkpoint_ns = '' AND checkpoint_id = "
        "(SELECT max(checkpoint_id) FROM checkpoints WHERE thread_id = one.thread_id AND checkpoint_ns = '')"
    )
    for thread, kind, data in connection.execute(newest):
        found = _checkpoint(kind, data, f"thread {str(thread)[:40]!r}")
        values = found.get("channel_values") if isinstance(found, dict) else None
        messages = values.get("messages") if isinstance(values, dict) else None
        if isinstance(messages, list) and found.get("ts"):
            at = _time(found["ts"])
            yield thread, [_plain(each, at) for each in messages if isinstance(each, dict)], "LangGraph"


def _checkpoint(kind: Any, data: Any, where: str) -> Any:
    if kind == "json":
        return _constructed(_json(data, where))
    if kind != "msgpack":
        raise Unreadable(f"{where} is saved as {str(kind)[:20]!r}, and only msgpack and json are read.")
    try:
        import ormsgpack
    except ImportError as error:
        raise SmolmemError("a file of LangGraph needs langgraph: pip install 'smolmem[langchain]'.") from error

    def extension(code: int, packed: bytes) -> Any:
        """An object of a class: its attributes, as plain data. No class is imported."""
        inner = ormsgpack.unpackb(packed, ext_hook=extension, option=ormsgpack.OPT_NON_STR_KEYS)
        is_object = isinstance(inner, (list, tuple)) and len(inner) >= 3
        return inner[2] if is_object else inner

    try:
        return ormsgpack.unpackb(data, ext_hook=extension, option=ormsgpack.OPT_NON_STR_KEYS)
    except (ValueError, TypeError, RecursionError) as error:
        raise Unreadable(f"{where} cannot be read ({error}).") from error


def _constructed(value: Any, depth: int = 0) -> Any:
    """JSON of LangChain, in which an object is written as its constructor's arguments."""
    if depth > 50:
        raise Unreadable("the JSON is nested too deep.")
    if isinstance(value, list):
        return [_constructed(each, depth + 1) for each in value]
    if not isinstance(value, dict):
        return value
    if value.get("lc") and isinstance(value.get("kwargs"), dict):
        names = value.get("id")
        last = str(names[-1]) if isinstance(names, list) and names else ""
        role = {"type": _CLASSES[last]} if last in _CLASSES else {}
        return role | _constructed(value["kwargs"], depth + 1)
    return {name: _constructed(each, depth + 1) for name, each in value.items()}


def _json(data: Any, where: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, TypeError, RecursionError) as error:
        raise Unreadable(f"{where} is not JSON.") from error


def _time(value: Any) -> float:
    text = str(value).replace(" ", "T")
    try:
        return to_timestamp(text if "+" in text or text.endswith("Z") else f"{text}+00:00") or 0.0
    except SmolmemError as error:
        raise Unreadable(f"{str(value)[:40]!r} is not a time.") from error


def _crewai_chats(connection: apsw.Connection) -> Iterator[Chat]:
    """The tasks of the last run of a crew: each is a run of the agent that worked on it."""
    query = "SELECT task_id, expected_output, output, timestamp FROM latest_kickoff_task_outputs ORDER BY task_index"
    for task, expected, output, created in connection.execute(query):
        parsed = _json(output, f"task {str(task)[:40]!r}")
        outcome, at = parsed if isinstance(parsed, dict) else {}, _time(created)
        asked = Message("user", text_of(outcome.get("description") or expected), at)
        answer = Message("assistant", text_of(outcome.get("raw")), at)
        yield f"{task} {created}", [asked, answer], text_of(outcome.get("agent")) or "CrewAI"


SQLITE_TOOLS: dict[str, tuple[str, set[str], Callable[[apsw.Connection], Iterator[Chat]]]] = {
    "openai": ("OpenAI Agents", {"agent_sessions", "agent_messages"}, _openai_chats),
    "langgraph": ("LangGraph", {"checkpoints", "writes"}, _langgraph_chats),
    "crewai": ("CrewAI", {"latest_kickoff_task_outputs"}, _crewai_chats),
}
"""Each format: its tool, the tables that its files have, and what reads the chats in them."""
