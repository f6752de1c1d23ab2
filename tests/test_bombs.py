"""A few stored bytes can claim to be a value of any size: no reader pays for it, and nothing recorded is lost to it."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import PIL.Image
import pytest
from rich.console import Console
from scripted import code, code_agent
from smolagents import ActionStep
from smolagents.agent_types import AgentImage
from smolagents.monitoring import Timing

from smolmem import Memory, SmolmemError
from smolmem.cli.main import main
from smolmem.core.encoding import codec, packing, pictures, placeholders, step_facts, wire
from smolmem.core.errors import Damaged, StoreError
from smolmem.core.rows import Batch, Change
from smolmem.inspector import step_data

TORTURE = bool(os.environ.get("SMOLMEM_TORTURE"))
SECONDS, MEGABYTES = 2.0, 100.0
Blobs = dict[str, bytes]


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.promise("S7")
def test_no_reader_pays_for_what_a_few_bytes_claim_to_be(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    work = subprocess.run([sys.executable, __file__, tmp_path], capture_output=True, text=True, timeout=1100)
    told = [json.loads(line) for line in work.stdout.splitlines() if line.startswith('{"bomb"')]
    assert work.returncode == 0, (told[-1:], work.stderr[-2000:])
    record_property("cases", len(told))
    assert len({one["bomb"] for one in told}) >= (50 if TORTURE else 35)
    assert {one["reader"] for one in told} == set(READERS)
    assert [one for one in told if one["seconds"] > SECONDS or one["megabytes"] > MEGABYTES] == []
    strange = [one for one in told if one["error"] and not one["ours"] and one["reader"] != "resume"]
    assert strange == []  # a resumed agent stumbles over a text that is none, as it would without us


# --- what was recorded comes back -----------------------------------------------------------------------------------


def there_and_back(value: Any, *, whole: bool = False) -> Any:
    encoded = codec.encode(value)
    return codec.decode(encoded.record, encoded.blobs.__getitem__, whole=whole)


def test_a_screenshot_of_thirty_megapixels_comes_back_and_is_unpacked_only_when_it_is_looked_at(memory: Memory) -> None:
    picture = PIL.Image.new("L", (7_500, 4_000), "white")
    picture.putpixel((7, 9), 5)

    def attach_picture(step: Any, agent: Any) -> None:
        step.observations_images = [picture]

    agent = code_agent(code("x = 1"), code("final_answer(x)"), step_callbacks=[attach_picture])
    memory.attach(agent).run("Look")
    assert memory.recall("look")
    back = memory.runs()[0].steps[1].to_smolagents().observations_images[0]
    assert type(back) is pictures.StoredImage
    assert (back.size, back.mode, repr(back)[:24]) == (picture.size, "L", repr(picture)[:24])
    assert codec.encode(back).key == codec.encode(picture).key
    assert type(back) is pictures.StoredImage  # a picture that no one looked at is stored again as it is
    assert back.getpixel((7, 9)) == 5
    assert type(back) is PIL.Image.Image
    assert back == picture


def test_a_stored_picture_behaves_like_any_other() -> None:
    picture = PIL.Image.frombytes("P", (3, 2), bytes(range(6)))
    picture.putpalette([9, 8, 7] * 256)
    picture.info = {"dpi": (72, 72)}
    for use in (copy.copy, copy.deepcopy, lambda image: pickle.loads(pickle.dumps(image)), lambda image: image.copy()):
        assert use(there_and_back(picture)) == picture
        assert type(use(there_and_back(picture))) is PIL.Image.Image
    assert there_and_back(picture).getpalette() == picture.getpalette()
    assert there_and_back(picture).convert("RGB") == picture.convert("RGB")
    assert picture == there_and_back(picture)
    assert there_and_back(picture) == there_and_back(picture)
    assert there_and_back(picture) != there_and_back(picture.rotate(180))
    assert str(there_and_back(AgentImage(picture)).to_raw().size) == "(3, 2)"


def test_a_picture_above_the_limit_of_pillow_says_which_setting_unpacks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    back = there_and_back(PIL.Image.new("L", (300, 200)))
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 50_000)
    with pytest.raises(StoreError, match=r"300 × 200 pixels.*PIL\.Image\.MAX_IMAGE_PIXELS is 50,000: raise it"):
        back.tobytes()
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", None)
    assert back.tobytes() == bytes(60_000)


def test_a_picture_that_its_bytes_cannot_hold_is_refused_before_it_takes_memory() -> None:
    record = {"$": "image", "mode": "L", "size": [9_000, 9_000], "form": "png", "v": ""}
    with pytest.raises(Damaged, match="0 bytes cannot hold a picture of 9,000 × 9,000 pixels"):
        codec.decode(wire.dumps(record), {}.__getitem__).load()


@pytest.mark.parametrize("value", ["a line\n" * 3_000_000, list(range(3)) * 700_000, b"\0" * 9_000_000])
def test_a_large_value_that_packs_well_comes_back(memory: Memory, value: Any) -> None:
    number = memory._store.transact(lambda: memory._journal.keep(codec.encode(value)))
    assert memory._journal.value(number) == value
    assert memory.verify()


def test_a_limit_can_be_raised_for_a_file_that_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = b"z" + zlib.compress(bytes(9_000_000))
    with pytest.raises(packing.Undecodable, match=r"more than 4,000,000.*set SMOLMEM_MAX_UNPACKED"):
        packing.unpack(packed)
    monkeypatch.setenv("SMOLMEM_MAX_UNPACKED", "10000000")
    assert packing.unpack(packed) == bytes(9_000_000)


def test_what_a_step_repeats_is_unfolded_up_to_a_limit_and_a_variable_wholly() -> None:
    row = list(range(500))
    assert there_and_back([row] * 500) == [row] * 500
    graph: list[Any] = ["leaf"]
    for _ in range(100):
        graph = [graph, graph]
    whole = there_and_back(graph, whole=True)
    depth = 0
    while whole != ["leaf"] and depth < 200:
        assert whole[0] is whole[1]
        whole, depth = whole[0], depth + 1
    assert depth == 100
    assert "a value of" in repr(there_and_back(graph))
    assert len(repr(there_and_back(graph))) < 10_000_000


# --- bombs ----------------------------------------------------------------------------------------------------------


def folded(make: Callable[[Any], Any], leaf: Any, count: int = 40) -> list[Any]:
    """The JSON of a list of containers, each of which holds the one before it twice."""
    return [leaf, *(make([{"$": "ref", "n": number}] * 2) for number in range(1, count))]


REPEATED = {
    "lists": folded(lambda pair: pair, ["leaf"]),
    "dicts": folded(lambda pair: {"a": pair[0], "b": pair[1]}, {"a": "leaf"}),
    "tuples": folded(lambda pair: {"$": "tuple", "v": pair}, {"$": "tuple", "v": ["leaf"]}),
    "pairs": folded(lambda pair: {"$": "dict", "v": [[1, pair[0]], [2, pair[1]]]}, {"$": "dict", "v": [[1, "leaf"]]}),
    "objects": folded(
        lambda pair: {"$": "object", "type": "a.B", "repr": "B", "attrs": {"a": pair[0], "b": pair[1]}},
        {"$": "object", "type": "a.B", "repr": "B", "attrs": {}},
    ),
    "calls": folded(
        lambda pair: {"$": "ToolCall", "name": "f", "id": "1", "arguments": pair[0], "more": pair[1]},
        {"$": "ToolCall", "name": "f", "id": "1", "arguments": {}},
    ),
    "errors": folded(
        lambda pair: {"$": "error", "class": "ValueError", "text": "", "args": pair},
        {"$": "error", "class": "ValueError", "text": "x", "args": ["leaf"]},
    ),
    "long leaves": folded(lambda pair: pair, ["leaf" * 900], 30),
    "wide": [["leaf"], *([{"$": "ref", "n": number}] * 200 for number in range(1, 9))],
}
FIELDS = ("observations", "model_output", "action_output", "error", "tool_calls", "observations_images")


def bombs() -> Iterator[tuple[str, str, Any, Blobs]]:
    """A name, the field of a step, the JSON of that field, and its blobs."""
    for number, (name, held) in enumerate(REPEATED.items()):
        for field in FIELDS[:4] if TORTURE else FIELDS[number % 4 :][:1]:
            yield f"references: {name} in {field}", field, held, {}
    for key in ("set", "frozenset", "dict"):
        tuples = [{"$": "tuple", "v": ["leaf"]}]
        tuples += [{"$": "tuple", "v": [{"$": "ref", "n": number}] * 2} for number in range(1, 40)]
        hashed = {"$": "ref", "n": 40}
        held = {"$": key, "v": [[hashed, 1]] if key == "dict" else [hashed]}
        yield f"references: hashed in a {key}", "action_output", [*tuples, held], {}
    arguments = [{"$": "ToolCall", "name": "f", "id": "1", "arguments": REPEATED["lists"]}]
    yield "references: arguments of a call", "tool_calls", arguments, {}
    long = b"a line of text\n" * 200_000
    for count in (1_000, 5_000):
        held = [{"$": "text", "blob": wire.fingerprint(long)}] * count
        yield f"one long text {count} times", "observations", held, {wire.fingerprint(long): long}
    for field in ("observations", "action_output"):
        for byte in (b"\n", b"a", b" ") if TORTURE else (b"\n",) if field == "observations" else (b"a",):
            key = wire.fingerprint(byte)
            held = {"$": "text", "blob": key}
            yield f"900 MB of {byte!r} in {field}", field, held, {key: b"z" + repeated(byte, 900_000_000)}
    for size in ((10_000, 10_000), (8_000, 8_000), (1, 90_000_000), (60_000, 60_000)):
        for mode in ("RGB", "L", "1", "CMYK") if TORTURE else ("RGB", "CMYK") if size[0] > size[1] else ("L", "1"):
            form = "raw" if mode == "CMYK" else "png"
            tiny = {"$": "image", "mode": mode, "size": list(size), "form": form, "v": "iVBORw0KGgo="}
            yield f"{mode} picture of {size} in 60 bytes", "observations_images", [tiny], {}
    black = png(8_000, 8_000)
    picture = {"$": "image", "mode": "L", "size": [8_000, 8_000], "form": "png", "blob": wire.fingerprint(black)}
    for field, held in (
        ("observations_images", [picture] * 200),
        ("action_output", picture),
        ("action_output", {"$": "AgentImage", "path": None, "pixels": picture}),
        ("model_output", {"$": "AgentImage", "path": None, "pixels": picture}),
        ("observations", [picture]),
    ):
        yield f"64 megapixels in {field} as {str(held)[:30]}", field, held, {picture["blob"]: black}
    for dtype in ("<f8", "|V0", "<U0", "|S0"):
        held = {"$": "array", "shape": [10**6, 10**4], "dtype": dtype, "v": ""}
        yield f"an array of {dtype} without items", "action_output", held, {}
    yield "a chain of references", "action_output", [[], *([{"$": "ref", "n": n}] for n in range(1, 20_000))], {}


def repeated(byte: bytes, count: int) -> bytes:
    """A byte, so many times, in zlib's format: one compressed mebibyte, repeated; its checksum is wrong."""
    packer = zlib.compressobj(9, wbits=-15)
    block = packer.compress(byte * (1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    return b"\x78\xda" + block * (count >> 20) + b"\x03\x00" + bytes(4)


def png(width: int, height: int) -> bytes:
    out = io.BytesIO()
    PIL.Image.new("L", (width, height)).save(out, "PNG")
    return out.getvalue()


def plant(memory: Memory, field: str, held: Any, blobs: Blobs) -> None:
    """Adds a step with a handmade field to the newest run."""
    run = memory.runs()[0]
    step = ActionStep(2, Timing(1.0, 2.0), observations="seen", is_final_answer=field == "action_output")
    record = wire.dumps(wire.loads(codec.encode(step).record) | {field: held})
    encoded = codec.Encoded(record, wire.fingerprint(record), {})
    change = Change("insert", run.id, 1.0, len(run.steps), encoded=encoded, facts=step_facts.facts(step))
    for key, data in blobs.items():
        packed = data if data[:1] == b"z" else packing.pack(data)
        memory._store.do("add_content", {"hash": bytes.fromhex(key), "bytes": packed, "base": None})
    session = memory._journal.session_row(run.session)
    memory._journal.save(Batch(session, new_session=False, changes=[change], runs=[memory._journal.run_row(run.id)]))


# --- readers --------------------------------------------------------------------------------------------------------


def read_steps(memory: Memory, folder: Path) -> None:
    for step in memory.runs()[0].steps:
        live = step.to_smolagents()
        step_facts.facts(live)
        codec.encode(live)
        placeholders.safe_text(repr, live)


def read_load(memory: Memory, folder: Path) -> None:
    memory.export(folder / "bomb.zip")
    with Memory(folder / "loaded.db", embedder="off") as other:
        other.load(folder / "bomb.zip")
        other.recall("leaf")


def read_recall(memory: Memory, folder: Path) -> None:
    memory.recall("leaf")


def read_in_another_scope(memory: Memory, folder: Path) -> None:
    memory.scoped("another").recall("leaf")


def read_replay(memory: Memory, folder: Path) -> None:
    memory.runs()[0].replay(detailed=True, console=Console(file=io.StringIO(), width=100))


def read_inspector(memory: Memory, folder: Path) -> None:
    step = memory.steps(limit=1)[0]
    detail = step_data.step_detail(memory, step.id)
    assert [detail.sections, detail.pictures, detail.prompt]
    step_data.step_versions(memory, step.id)


def read_command_line(memory: Memory, folder: Path) -> None:
    path = memory._store.url
    for words in (["show"], ["replay"], ["steps"], ["steps", "--json"], ["verify"], ["doctor"]):
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            main([*words, "--db", path])


def read_resume(memory: Memory, folder: Path) -> None:
    memory.resume(code_agent(code("final_answer(1)")), memory.runs()[0])


READERS: dict[str, Callable[[Memory, Path], None]] = {
    name.removeprefix("read_"): value for name, value in list(vars().items()) if name.startswith("read_")
}


def peak(name: str) -> float:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) / 1_000 if found else 0.0


def measure(folder: Path) -> None:
    """Has readers read every bomb; prints the costs as JSON lines. A sample: each bomb, and one reader of eight."""
    with Memory(folder / "run.db", embedder="off") as memory:
        agent = memory.attach(code_agent(code("x = 1"), KeyboardInterrupt()))
        with contextlib.suppress(KeyboardInterrupt):
            agent.run("Leave a run")
    names = list(READERS)
    for name in names:
        read_bomb(folder, name, "observations", "seen", {})  # what is loaded and cached once does not count
    for number, (bomb, field, held, blobs) in enumerate(bombs()):
        for name in names if TORTURE else names[number % 8 :][:1]:
            told = read_bomb(folder, name, field, held, blobs)
            for cost, most in (("seconds", SECONDS), ("megabytes", MEGABYTES)):
                if told[cost] > most:  # a core that is shared counts for two, and the allocator grows at the first read
                    told = min(told, read_bomb(folder, name, field, held, blobs), key=lambda one: one[cost])
            print(json.dumps({"bomb": bomb, **told}), flush=True)


def read_bomb(folder: Path, name: str, field: str, held: Any, blobs: Blobs) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=folder) as made:
        shutil.copy(folder / "run.db", Path(made, "bomb.db"))
        with Memory(Path(made, "bomb.db"), embedder="off", durability="normal") as memory:
            plant(memory, field, held, blobs)
            Path("/proc/self/clear_refs").write_text("5")  # resets the peak
            before, began, error = peak("VmRSS"), time.process_time(), None
            try:
                READERS[name](memory, Path(made))
            except Exception as raised:
                error = raised
            took, more = time.process_time() - began, peak("VmHWM") - before
    said = {"reader": name, "seconds": round(took, 2), "megabytes": round(more)}
    return said | {"error": repr(error)[:200] if error else "", "ours": isinstance(error, SmolmemError)}


if __name__ == "__main__":
    measure(Path(sys.argv[1]))
