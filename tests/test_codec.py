"""What comes back is what went in, or a mark that says what it was."""

from __future__ import annotations

import copy
import dataclasses
import os
import random
import sys
import threading
import zlib
from typing import Any

import pandas as pd
import PIL.Image
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from same import same
from smolagents.agent_types import AgentAudio, AgentImage, AgentText
from smolagents.memory import ActionStep, TaskStep, ToolCall
from smolagents.models import ChatMessage, MessageRole
from smolagents.monitoring import Timing
from smolagents.utils import AgentToolExecutionError
from strategies import MODES, SILENT, Thing, steps, values

from smolmem.core.encoding import codec, packing, step_facts, wire
from smolmem.core.encoding.packing import Undecodable
from smolmem.core.encoding.placeholders import Placeholder

TORTURE = bool(os.environ.get("SMOLMEM_TORTURE"))
STEADY = settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=not TORTURE, database=None)


def there_and_back(value: Any) -> Any:
    return decoded(codec.encode(value))


def decoded(encoded: codec.Encoded) -> Any:
    return codec.decode(encoded.record, encoded.blobs.__getitem__, encoded.model_input)


def shown(step: Any) -> Any:
    try:
        return step.to_messages()
    except Exception as error:
        return type(error)


PARTS = 5
EACH = 20_000 if TORTURE else 800


@pytest.mark.promise("D8")
@pytest.mark.parametrize("part", range(PARTS))
def test_thousands_of_generated_steps_come_back_equal_or_marked(part: int) -> None:
    """Drawn by hypothesis, which takes longest, or made of the fields of those; torture draws all."""
    drawn: list[Any] = []

    @seed(part)
    @settings(STEADY, max_examples=EACH // 10 if TORTURE else EACH // 80)
    @given(st.lists(steps, min_size=10, max_size=10))
    def draw(generated: list[Any]) -> None:
        for step in generated:
            comes_back(step)
        drawn.extend(generated)

    draw()
    chance = random.Random(part)
    assert len(drawn) >= EACH // 10
    for number in range(EACH - len(drawn)):
        comes_back(recombined(drawn[number % len(drawn)], drawn, chance))


def comes_back(step: Any) -> None:
    once = codec.encode(step)
    made = decoded(once)
    assert same(made, step)
    before = shown(step)
    assert same(shown(made), before) or isinstance(before, type)
    again = codec.encode(made)
    assert again.key == codec.encode(decoded(again)).key
    step_facts.facts(step)


def recombined(step: Any, others: list[Any], chance: random.Random) -> Any:
    """A step of the same type whose fields are those of other steps."""
    alike = [other for other in others if type(other) is type(step)]
    fields = [field.name for field in dataclasses.fields(step)]
    made = copy.copy(step)
    for name in fields:
        setattr(made, name, getattr(chance.choice(alike), name))
    return made


@pytest.mark.promise("D8")
@settings(STEADY, max_examples=300)
@given(values)
def test_a_value_that_came_back_is_written_the_same_way_again(value: Any) -> None:
    once = codec.encode(value)
    back = codec.decode(once.record, once.blobs.__getitem__)
    twice = codec.encode(back)
    assert same(codec.decode(twice.record, twice.blobs.__getitem__), back)


@pytest.mark.promise("D8")
@pytest.mark.parametrize("text", ['{"a": 1}', "[1, 2]", "\ud800", "a\0b", "NaN", '{"$":"tuple","v":[1]}', "x" * 10_000])
def test_text_stays_text(text: str) -> None:
    step = ActionStep(1, Timing(0.0), tool_calls=[ToolCall("t", text, "1")], observations=text, action_output=text)
    made = there_and_back(step)
    assert made == step
    assert type(made.action_output) is str
    assert made.to_messages() == step.to_messages()


@pytest.mark.promise("D8")
@pytest.mark.parametrize("mode", MODES)
def test_every_image_mode_keeps_its_pixels(mode: str) -> None:
    length = len(PIL.Image.new(mode, (7, 5)).tobytes())
    picture = PIL.Image.frombytes(mode, (7, 5), bytes(i % 251 for i in range(length)))
    if mode in ("P", "PA"):
        picture.putpalette(list(range(60)))
    assert there_and_back(picture) == picture


def test_a_dict_that_looks_like_a_tag_stays_a_dict() -> None:
    for trap in ({"$": "tuple", "v": [1]}, {"$": 1}, {1: "a", "1": "b"}, {"a": {"$": "object"}}):
        assert there_and_back(trap) == trap


def test_aliasing_is_kept_and_cycles_end() -> None:
    shared = [1]
    made = there_and_back({"a": shared, "b": shared})
    assert made["a"] is made["b"]
    loop: list[Any] = [1]
    loop.append(loop)
    made = there_and_back(loop)
    assert made[1] is made


def test_a_small_nest_of_lists_does_not_grow_without_bound() -> None:
    nest: Any = []
    for _ in range(60):
        nest = [nest, nest]
    assert len(codec.encode(nest).record) < 10_000


def test_a_step_that_holds_itself_is_written_once() -> None:
    step = ActionStep(1, Timing(0.0))
    step.action_output = [step, step]
    assert len(codec.encode(step).record) < 5000
    assert there_and_back(step).step_number == 1


def test_deep_nesting_is_kept_as_a_mark() -> None:
    nest: Any = []
    for _ in range(100_000):
        nest = [nest]
    assert codec.encode(nest).record


def test_an_object_that_holds_half_the_process_keeps_its_name() -> None:
    made = there_and_back(Thing(list(map(Thing, range(5000)))))
    assert isinstance(made, Placeholder)
    assert "Thing" in repr(made)


def test_a_mark_shows_the_attributes_of_what_it_stands_for() -> None:
    made = there_and_back(Thing({"lock": threading.Lock(), "n": 3}))
    assert type(made).__name__ == "Thing"
    assert made.held["n"] == 3
    assert "lock" in str(made.held["lock"])


def test_an_error_keeps_its_class_message_and_cause() -> None:
    error = AgentToolExecutionError("the shop is down", SILENT)
    error.__cause__ = ConnectionRefusedError(111, "refused")
    made = there_and_back(ActionStep(1, Timing(0.0), error=error)).error
    assert type(made) is AgentToolExecutionError
    assert made.dict() == error.dict()
    assert isinstance(made.__cause__, ConnectionRefusedError)
    assert made.__cause__.errno == 111


def test_an_error_class_of_ones_own_keeps_its_name_and_text() -> None:
    class OutOfStock(AgentToolExecutionError):
        pass

    class Weird(Exception):
        def __str__(self) -> str:
            return "very weird"

    error = OutOfStock("no shoes", SILENT)
    error.__cause__ = Weird(1)
    made = there_and_back(error)
    assert isinstance(made, AgentToolExecutionError)
    assert (type(made).__name__, str(made)) == ("OutOfStock", "no shoes")
    assert (type(made.__cause__).__name__, str(made.__cause__)) == ("Weird", "very weird")


def test_agent_types_come_back() -> None:
    text = there_and_back(AgentText("[1]"))
    assert type(text) is AgentText
    assert text == "[1]"
    picture = there_and_back(AgentImage(PIL.Image.new("RGB", (3, 2), "red")))
    assert type(picture) is AgentImage
    assert picture.to_raw() == PIL.Image.new("RGB", (3, 2), "red")
    sound = str.__new__(AgentAudio, "song.wav")
    sound.__dict__.update(_value="song.wav", _path="song.wav", _tensor=None, samplerate=8000)
    made = there_and_back(sound)
    assert (type(made), str.__str__(made), made.samplerate) == (AgentAudio, "song.wav", 8000)


def test_a_step_class_of_ones_own_comes_back_under_its_name() -> None:
    @dataclasses.dataclass
    class Screened(ActionStep):
        url: str = ""

    made = there_and_back(Screened(1, Timing(0.0), observations="seen", url="http://shop"))
    assert isinstance(made, ActionStep)
    assert (type(made).__name__, made.url) == ("Screened", "http://shop")
    assert made.to_messages()[-1].content[0]["text"] == "Observation:\nseen"


def test_fields_that_a_later_smolagents_adds_are_kept() -> None:
    step = TaskStep("t")
    step.__dict__["priority"] = (1, 2)
    assert there_and_back(step).priority == (1, 2)


def test_a_raw_answer_with_a_lock_and_a_cycle_does_not_hurt() -> None:
    raw = Thing(threading.Lock())
    raw.me = raw  # type: ignore[attr-defined]
    made = there_and_back(ChatMessage(MessageRole.ASSISTANT, "hi", raw=raw))
    assert made.content == "hi"
    assert made.raw.me is made.raw


HOSTILE = [
    b"",
    b"{",
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"$":"ActionStep"}',
    b'{"$":"ref","n":5}',
    b'{"$":"ref","n":-1}',
    b'{"$":"image","mode":"RGB","size":[100000,100000],"form":"raw","v":""}',
    b'{"$":"image","mode":"RGB","size":[1,1],"form":"png","v":"AAAA"}',
    b'{"$":"array","dtype":"O","shape":[1],"v":"AAAAAAAAAAA="}',
    b'{"$":"array","dtype":"|V1000000000000","shape":[1],"v":""}',
    b'{"$":"object","type":"os.system","repr":"x","attrs":{"a":1}}',
    b'{"$":"error","class":"SystemExit","text":"","args":[1]}',
    b'{"$":"error","class":"eval","text":"","args":["1"]}',
    b'{"$":"nonsense"}',
    b'{"$":"int","v":"zz"}',
    b'{"$":"dict","v":[[[],1]]}',
    b'{"$":"text","blob":"../../etc/passwd"}',
    b'{"$":"datetime","v":"yesterday"}',
    b'{"$":"decimal","v":"x"}',
    b'{"$":["list"]}',
    b'{"$":"like","v":{"$":"like"}}',
    b'{"$":"frame","columns":{},"index":{},"data":[]}',
    b'{"$":"series","name":null,"index":{"range":[0,1,0]},"data":{"dtype":"int64","items":["x"]}}',
]


@pytest.mark.promise("S1")
@pytest.mark.parametrize("record", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_record_gives_a_value_or_one_kind_of_error(record: bytes) -> None:
    def nothing(key: str) -> bytes:
        raise Undecodable(f"no blob {key}")

    try:
        codec.decode(record, nothing)
    except Undecodable:
        pass


@pytest.mark.promise("S1")
@settings(STEADY, max_examples=500 if TORTURE else 200)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "$",
                        "v",
                        "n",
                        "type",
                        "repr",
                        "attrs",
                        "blob",
                        "size",
                        "mode",
                        "form",
                        "args",
                        "class",
                        "text",
                        "dtype",
                        "shape",
                        "items",
                    ]
                ),
                inner
                | st.sampled_from(
                    [
                        "object",
                        "ref",
                        "tuple",
                        "image",
                        "array",
                        "error",
                        "AgentImage",
                        "ActionStep",
                        "frame",
                        "series",
                        "ValueError",
                        "timestamp",
                        "like",
                        "path",
                        "set",
                        "role",
                    ]
                ),
                max_size=5,
            )
        ),
        max_leaves=12,
    )
)
def test_generated_garbage_gives_a_value_or_one_kind_of_error(garbage: Any) -> None:
    try:
        codec.decode(wire.dumps(garbage), {}.__getitem__)
    except Undecodable:
        pass


@pytest.mark.promise("S1")
def test_reading_a_record_imports_and_calls_nothing_that_it_names() -> None:
    names = [
        "os.system",
        "subprocess.Popen",
        "builtins.eval",
        "importlib.import_module",
        "antigravity.x",
        "this.s",
        "__main__.x",
    ]
    before = set(sys.modules)
    heard: list[str] = []
    listening = True
    sys.addaudithook(lambda event, _: heard.append(event) if listening else None)
    try:
        for name in names:
            for tag in ("object", "like", "error", "dict", "tuple", "role", "path", "frame", name):
                wire_form = {"$": tag, "type": name, "$type": name, "class": name.rpartition(".")[2], "repr": name}
                try:
                    codec.decode(
                        wire.dumps(wire_form | {"v": name, "attrs": {"__class__": name}, "args": [name]}),
                        {}.__getitem__,
                    )
                except Undecodable:
                    pass
    finally:
        listening = False
    assert not {"this", "antigravity"} & (set(sys.modules) - before)
    assert not [event for event in heard if event.split(".")[0] in ("os", "subprocess", "socket", "exec", "compile")]


def test_a_packed_blob_cannot_unpack_into_more_than_its_limit() -> None:
    bomb = b"z" + zlib.compress(b"\0" * 10_000_000)
    assert len(bomb) < 50_000
    with pytest.raises(Undecodable, match="SMOLMEM_MAX_UNPACKED"):
        packing.unpack(bomb)


def test_a_value_that_is_only_described_leaves_no_blobs_that_no_record_names() -> None:
    period = pd.period_range("2020", periods=2, freq="D")  # comes back as no frame: it is described
    encoded = codec.encode([pd.DataFrame({"text": ["x" * 9000, "y" * 9000], "day": period}), "z" * 9000])
    assert encoded.inside.is_described
    assert all(key.encode() in encoded.record for key in encoded.blobs)
    assert len(encoded.blobs) == 1
