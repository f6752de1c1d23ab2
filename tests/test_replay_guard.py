"""Recorded code that is run again computes and does nothing else; what comes back is what was, or is named."""

from __future__ import annotations

import dataclasses
import enum
import http
import os
import signal
import socket
import threading
import time
import typing
from collections import Counter, defaultdict, deque
from functools import partial
from pathlib import Path
from typing import Any

import pydantic
import pytest
from PIL import Image
from scripted import Scripted, answer, calling_agent, calls, code, code_agent
from smolagents import CodeAgent, ToolCallingAgent, tool
from workers import fork

from smolmem import Memory
from smolmem.agents.restoring.replay_guard import Guard
from smolmem.core.encoding import codec, placeholders
from smolmem.core.errors import UnknownOutcome
from smolmem.policies import views

# From Python 3.13 on `dbm` is SQLite, and leaves a connection that the guard refuses unclosed.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")


def broken_off(memory: Memory, agent: Any, **options: Any) -> None:
    """A run whose model fails after its script, like a server that says 429."""
    memory.attach(agent)
    with pytest.raises(Exception, match="429"):
        agent.run("Go", **options)
    memory.detach(agent)


@pytest.fixture(autouse=True)
def snapshots_do_not_suffice(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code is run again where a snapshot does not hold all it made; here always, except in the tests of that choice."""
    if "snapshot" not in request.keywords:
        monkeypatch.setattr("smolmem.agents.restoring.interpreter._holds_all", lambda snapshot, code: False)


STOP = ConnectionError("429")
ANY: dict[str, Any] = {"additional_authorized_imports": ["*"]}

# --- whether code is run again ---------------------------------------------------------------------------------------

PLAIN = {
    "values": ("n, flags = [7], {True: (1, 2.5)}\nfor i in range(3):\n    n.append(i)", "n[0]"),
    "imports": ("import math, random\nfrom statistics import mean\nn = mean([random.randint(7, 7)])", "math.floor(n)"),
    "comprehensions": ("n = [x for x in [7] if any(y for y in [1])]\nd = {k: v for k, v in [('a', n)]}", "d['a'][0]"),
    "two names of one list": ("a = n = [0]", "a.append(7) or n[1]"),
    "an error": ("n = 7\nprint(1 / 0)", "n"),
    "no variables": ("print(8)", "7"),
}
MADE_BY_CODE = {
    "a function": ("def f():\n    return 7", "f()"),
    "a lambda": ("f = lambda: 7", "f()"),
    "a class": ("class C:\n    def f(self):\n        return 7\nc = C()", "c.f()"),
    "another name of a function": ("import math\nf = math.floor", "f(7.5)"),
    "a method": ("f = {'a': 7}.get", "f('a')"),
    "an import inside a block": ("if True:\n    import math", "math.floor(7.5)"),
    "a private name": ("_n = 7", "_n"),
    "a class of values": ("import collections\nn = collections.Counter('aaaaaaa')", "n.most_common(1)[0][1]"),
    "an exception": ("try:\n    print(1 / 0)\nexcept ZeroDivisionError as error:\n    n = 7", "n"),
    "an iterator": ("n = iter([7])", "next(n)"),
}


@pytest.mark.snapshot
@pytest.mark.parametrize(("made", "use"), PLAIN.values(), ids=PLAIN.keys())
def test_code_is_not_run_again_if_the_snapshot_holds_all_it_made(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, made: str, use: str
) -> None:
    monkeypatch.setattr("smolmem.agents.restoring.interpreter._run_again", None)
    broken_off(memory, code_agent(code(made), STOP))
    assert memory.resume(code_agent(code(f"final_answer({use})"))) == 7


@pytest.mark.snapshot
@pytest.mark.parametrize(("made", "use"), MADE_BY_CODE.values(), ids=MADE_BY_CODE.keys())
def test_what_no_snapshot_holds_is_made_again_by_the_code(memory: Memory, made: str, use: str) -> None:
    broken_off(memory, code_agent(code(made), STOP))
    assert memory.resume(code_agent(code(f"final_answer({use})"))) == 7


# --- effects outside -------------------------------------------------------------------------------------------------

EFFECTS = {
    "pandas": "import pandas as pd\npd.DataFrame({'a': [1]}).to_csv(f'{folder}/note', mode='a')",
    "numpy": "import numpy as np\nnp.save(f'{folder}/note.npy', np.arange(3))",
    "numpy, from C": "import numpy as np\nnp.arange(3).tofile(f'{folder}/note')",
    "PIL": "from PIL import Image\nImage.new('L', (1, 1)).save(f'{folder}/note.png')",
    "pathlib": "import pathlib\np = pathlib.Path(f'{folder}/note').write_text('twice')",
    "io": "import io\nf = io.open(f'{folder}/note', 'a')\nf.close()\nf = 0",
    "os.open": "import os\nf = os.open(f'{folder}/note', os.O_CREAT | os.O_WRONLY)",
    "mkdir": "import os\nos.mkdir(f'{folder}/note')",
    "fifo": "import os\nos.mkfifo(f'{folder}/note')",
    "sqlite": "import sqlite3\nc = sqlite3.connect(f'{folder}/note').execute('CREATE TABLE t (a)').close()",
    "dbm": "import dbm\ndbm.open(f'{folder}/note', 'c').close()",
    "process": "import subprocess\nr = subprocess.run(['touch', f'{folder}/note']).returncode",
    "tempfile": "import tempfile\nt = tempfile.mkdtemp(dir=folder)",
    "thread": "import threading\nimport os\nt = threading.Thread(target=os.mkdir, args=(f'{folder}/note',))\n"
    "t.start()\nt.join()\nt = 0",
    "swallowed": "import os\ntry:\n    os.mkdir(f'{folder}/note')\nexcept:\n    pass",
    "in finally": "import os\ntry:\n    os.mkdir(f'{folder}/one')\nfinally:\n    os.mkdir(f'{folder}/two')",
    "in a function": "import os\ndef f():\n    os.mkdir(f'{folder}/note')\nf()",
    "in a library's callback": "import os\nn = list(map(os.mkdir, [f'{folder}/note']))",
    "a class body": "import os\nclass Note:\n    made = os.mkdir(f'{folder}/note')",
}


@pytest.mark.promise("D12")
@pytest.mark.parametrize("effect", EFFECTS.values(), ids=EFFECTS.keys())
def test_code_that_reaches_outside_is_not_run_again(memory: Memory, tmp_path: Path, effect: str) -> None:
    folder = tmp_path / "outside"
    folder.mkdir()
    step = code(f"folder = {str(folder)!r}\n{effect}\nn = [7]\ndef g():\n    return n")
    broken_off(memory, code_agent(step, STOP, **ANY))
    made = list(folder.iterdir())
    assert made
    for path in made:
        path.rmdir() if path.is_dir() else path.unlink()
    assert memory.resume(code_agent(code("final_answer(g())"), **ANY)) == [7]
    assert list(folder.iterdir()) == []


def test_code_that_only_computes_and_reads_is_run_again(memory: Memory, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("4\n5\n")
    step = code(
        "import os, json, csv, pathlib, collections, zoneinfo, datetime, re, statistics\nimport pandas as pd\n"
        f"with_lines = pathlib.Path({str(tmp_path / 'data')!r}).read_text().split()\n"
        f"here = os.listdir({str(tmp_path)!r})\n"
        "Point = collections.namedtuple('Point', 'x y')\np = Point(1, 2)\n"
        "zone = zoneinfo.ZoneInfo('Europe/Oslo')\n"
        "frame = pd.DataFrame({'a': [3, 1, 2]}).sort_values('a').groupby('a').sum()\n"
        "add = lambda n: n + p.x + statistics.mean([1, 3])\nprint(with_lines, frame)"
    )
    broken_off(memory, code_agent(step, STOP, **ANY))
    assert memory.resume(code_agent(code("final_answer([add(1), p.y, with_lines])"), **ANY)) == [4, 2, ["4", "5"]]


class Account:
    """An object that an agent is given: what its methods do, nobody sees."""

    def __init__(self) -> None:
        self.paid: list[int] = []

    def pay(self, amount: int) -> int:
        self.paid.append(amount)
        return sum(self.paid)


@pytest.mark.promise("D12")
@pytest.mark.parametrize("use", ["x = account.pay(5)", "pay = account.pay\nx = sum(map(pay, [5]))"])
def test_methods_of_objects_that_the_agent_was_given_are_not_called_again(memory: Memory, use: str) -> None:
    account = Account()
    broken_off(memory, code_agent(code(use), STOP), additional_args={"account": account})
    again = code_agent(code("final_answer([x, account.pay(1)])"))
    again.state["account"] = account
    assert memory.resume(again) == [5, 6]
    assert account.paid == [5, 1]


def test_code_of_modules_that_nobody_sees_is_refused_wherever_it_is_called_from() -> None:
    account, guard = Account(), Guard(9, lambda: None)
    assert guard.run(partial(max, [1, 2], key=account.pay)) is None
    assert guard.reason == f"the code calls {__name__}.pay"
    assert account.paid == []


def test_the_guard_watches_its_own_thread_alone(tmp_path: Path) -> None:
    done = threading.Event()

    def other() -> None:
        (tmp_path / "note").write_text("written meanwhile")
        socket.socket().close()
        done.set()

    guard, thread = Guard(9, lambda: None), threading.Thread(target=other)
    thread.start()
    assert guard.run(partial(done.wait, 5)) is True
    thread.join()
    (tmp_path / "later").write_text("nobody watches any more")


def test_code_that_would_take_too_long_is_not_waited_for(
    memory: Memory, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken_off(memory, code_agent(code("import time\nn = 1\ntime.sleep(0.4)"), STOP))
    monkeypatch.setattr("smolmem.agents.restoring.interpreter.MAX_SECONDS", 0.2)
    caplog.set_level("INFO", "smolmem")
    assert memory.resume(code_agent(code("final_answer(n)"))) == 1
    assert "from the snapshot, because the code takes too long" in caplog.text


# --- definitions -----------------------------------------------------------------------------------------------------


def counting_tool() -> tuple[Any, list[str]]:
    made: list[str] = []

    @tool
    def send(to: str) -> str:
        """Sends.

        Args:
            to: where
        """
        made.append(to)
        return f"sent to {to}"

    return send, made


@pytest.mark.promise("D12")
@pytest.mark.parametrize(
    "step",
    [
        "import random\nclass C:\n    token = send('Oslo')\nprint(random.random())",
        "import random\nclass C:\n    token = [send('Oslo') for _ in range(1)]\nprint(random.random())",
        "import random\ndef b():\n    send('Oslo')\n    return int\nclass C(b()):\n    x = 1\nprint(random.random())",
        "import ctypes\nclass C:\n    token = send('Oslo')",
        "class C:\n    token = send('Oslo')\n    t = send('Oslo') if len(C_made) else 0\nC_made.append(1)",
    ],
)
def test_a_tool_in_the_body_of_a_class_is_not_called_again(memory: Memory, step: str) -> None:
    send, made = counting_tool()
    broken_off(memory, code_agent(code("C_made = []"), code(f"{step}\nn = 3"), STOP, tools=[send], **ANY))
    before = list(made)
    assert before
    again = code_agent(code("final_answer(n)"), tools=[send], **ANY)
    assert memory.resume(again) == 3
    assert made == before


def test_a_class_that_cannot_be_made_again_is_named(memory: Memory) -> None:
    send, _ = counting_tool()
    step = (
        "import random\nclass C:\n    token = send('Oslo')\nclass D:\n    x = 1\n    def f(self):\n        return 2\n"
    )
    broken_off(memory, code_agent(code(f"{step}print(random.random())"), STOP, tools=[send]))
    again = code_agent(code("final_answer(D().f())"), tools=[send])
    assert memory.resume(again) == 2
    assert "these variables are gone: C]" in str(again.model.prompts[0][-1])


@pytest.mark.parametrize("printed", ["'same'", "random.random()"])
def test_a_function_that_calls_a_tool_calls_it_after_a_resume(memory: Memory, printed: str) -> None:
    send, made = counting_tool()
    define = code(f"import random\ndef f(to):\n    return send(to)\nprint({printed})")
    broken_off(memory, code_agent(define, code("a = f('Oslo')"), STOP, tools=[send]))
    again = code_agent(code("final_answer([a, f('Bergen')])"), tools=[send])
    assert memory.resume(again) == ["sent to Oslo", "sent to Bergen"]
    assert made == ["Oslo", "Bergen"]


# --- variables -------------------------------------------------------------------------------------------------------


def test_a_value_that_was_not_printed_is_the_one_that_a_tool_was_given(
    memory: Memory, caplog: pytest.LogCaptureFixture
) -> None:
    send, made = counting_tool()
    step = code(
        "import random\nkey = str(random.random())\nboth = [key, {key}]\ndone = send(to=key)\n"
        "def f():\n    return key\nclass Box:\n    def __init__(self):\n        self.n = 1\nbox = Box()"
    )
    broken_off(memory, code_agent(step, STOP, tools=[send]))
    again = code_agent(code("final_answer([key, both[0], list(both[1])[0], f(), box.n])"), tools=[send])
    assert memory.resume(again) == [made[0]] * 4 + [1]
    assert "running the code again gave another value: key, both" in caplog.text


def test_an_object_with_another_value_inside_is_named_not_faked(memory: Memory) -> None:
    step = code(
        "import random\nclass Box:\n    def __init__(self, v):\n        self.v = v\n"
        "box = Box(random.random())\nsame = Box(1)\nfs = [lambda: same.v]"
    )
    broken_off(memory, code_agent(step, STOP))
    again = code_agent(code("final_answer([same.v, fs[0]()])"))
    assert memory.resume(again) == [1, 1]
    assert "these variables are gone: box]" in str(again.model.prompts[0][-1])


def test_a_branch_that_was_not_taken_leaves_nothing(memory: Memory) -> None:
    step = code("import random\nx = random.getrandbits(64)\nif x % 2:\n    odd = True\nelse:\n    even = True")
    for _ in range(8):
        broken_off(memory, code_agent(step, STOP))
        run = memory.runs()[0]
        kept = memory._journal.session(run.session, run.id).variables()["variables"]
        again = code_agent(code("final_answer(x)"))
        assert memory.resume(again) == kept["x"]
        assert {"odd", "even"} & again.python_executor.state.keys() == {"odd", "even"} & kept.keys()


def test_every_variable_with_a_placeholder_inside_is_named(memory: Memory, caplog: pytest.LogCaptureFixture) -> None:
    @tool
    def lock() -> object:
        """Gives a lock."""
        return threading.Lock()

    step = code("import random\nheld = lock()\nbag = {'a': [1, (held, 2)]}\nplain = [1]\nprint(random.random())")
    broken_off(memory, code_agent(step, STOP, tools=[lock]))
    again = code_agent(code("final_answer(plain)"), tools=[lock])
    assert memory.resume(again) == [1]
    told = str(again.model.prompts[0][-1])
    assert "these variables are gone: held; these hold placeholders instead of some objects: bag]" in told
    assert "with placeholders inside: bag" in caplog.text


def test_what_cannot_be_stored_of_a_calling_agents_state_is_named(
    memory: Memory, caplog: pytest.LogCaptureFixture
) -> None:
    state = {"plain": "Oslo", "lock": threading.Lock(), "bag": [threading.Lock()]}
    agent = calling_agent(calls(("weather", {"city": "plain"})), STOP)
    broken_off(memory, agent, additional_args=state)
    assert memory.resume(calling_agent(answer("ok"))) == "ok"
    assert "not restored: lock; with placeholders inside: bag" in caplog.text


def test_a_resume_leaves_the_objects_of_the_agents_state_as_they_are(memory: Memory) -> None:
    numbers = [1, 2]
    agent = code_agent(code("numbers.append(3)\nalias = numbers"), STOP, code("final_answer(alias is numbers)"))
    memory.attach(agent)
    with pytest.raises(Exception, match="429"):
        agent.run("Go", additional_args={"numbers": numbers})
    assert memory.resume(agent) is True
    assert numbers == [1, 2, 3]


# --- recorded results ------------------------------------------------------------------------------------------------


class Cut(BaseException):
    """What a killed process looks like from inside: nothing after it happens."""


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclasses.dataclass(frozen=True)
class Item:
    name: str
    level: Level


@dataclasses.dataclass
class Order:
    number: int
    items: list[Item]
    colour: Colour = Colour.RED

    def total(self) -> int:
        return len(self.items)


@dataclasses.dataclass(slots=True)
class Slotted:
    number: int
    inner: Item


class Model(pydantic.BaseModel):
    number: int
    order: list[int] = []
    _secret: int = pydantic.PrivateAttr(7)


class Pair(typing.NamedTuple):
    left: int
    right: Colour


class OwnError(ValueError):
    """An error of the tool's own."""


class Plain:
    """A class that is not data."""

    def __init__(self) -> None:
        self.n = 1


RESULTS: dict[str, tuple[Any, str]] = {
    "HTTPStatus": (http.HTTPStatus.OK, "r == 200 and r.name == 'OK' and r.phrase == 'OK'"),
    "enum": (Colour.BLUE, "r.value == 2"),
    "dataclass": (Order(3, [Item("a", Level.HIGH)]), "r.total() == 1 and r.items[0].level > 1"),
    "slots": (Slotted(3, Item("a", Level.LOW)), "r.inner.name == 'a'"),
    "model": (Model(number=3, order=[1]), "r.model_dump() == {'number': 3, 'order': [1]}"),
    "unset field": (Model(number=3), "r.model_dump(exclude_unset=True) == {'number': 3}"),
    "named tuple": (Pair(1, Colour.RED), "r.right.value == 1"),
    "in containers": ({"a": [(Order(1, []), Colour.RED)]}, "r['a'][0][0].total() == 0"),
    "counter": (Counter("aab"), "r['z'] == 0"),
    "defaultdict": (defaultdict(list, a=[1]), "r.default_factory() == []"),
    "deque": (deque([1, 2], 2), "r.maxlen == 2"),
}


def cut_after(memory: Memory, result: Any, step: str) -> tuple[CodeAgent, list[str]]:
    """A run that was cut in `show`, after `fetch` gave a result; the agent that can finish it, and the calls made."""
    made: list[str] = []

    @tool
    def fetch() -> object:
        """Fetches something."""
        made.append("fetch")
        if isinstance(result, Exception):
            raise result
        return result

    @tool
    def show(what: object) -> str:
        """Shows something.

        Args:
            what: what
        """
        made.append("show")
        if len(made) == 2:
            raise Cut
        return f"{what!r}"

    show.safe_to_repeat = True
    agent = memory.attach(code_agent(code(step), tools=[fetch, show], **ANY))
    with pytest.raises(Cut):
        agent.run("Go")
    memory.detach(agent)
    return code_agent(code("final_answer(y)"), tools=[fetch, show], **ANY), made


@pytest.mark.promise("D12")
@pytest.mark.parametrize(("result", "check"), RESULTS.values(), ids=RESULTS.keys())
def test_a_recorded_result_is_equal_to_the_original(memory: Memory, result: Any, check: str) -> None:
    again, made = cut_after(memory, result, f"r = fetch()\ny = bool({check})\nz = show(what=r)")
    assert memory.resume(again) is True
    assert made == ["fetch", "show", "show"]
    played_back = again.python_executor.state["r"]
    assert (type(played_back), played_back) == (type(result), result)
    assert again.python_executor.state["z"] == repr(result)


@pytest.mark.parametrize(("result", "check"), RESULTS.values(), ids=RESULTS.keys())
def test_results_of_finished_steps_are_equal_too(memory: Memory, result: Any, check: str) -> None:
    @tool
    def fetch() -> object:
        """Fetches something."""
        return result

    for ending in ("", "\nimport random\nprint(random.random())"):  # run again, and from the snapshot
        broken_off(memory, code_agent(code(f"r = fetch(){ending}"), STOP, tools=[fetch]))
        again = code_agent(code(f"final_answer(bool({check}))"), tools=[fetch])
        assert memory.resume(again) is True
        assert again.python_executor.state["r"] == result


@pytest.mark.promise("D12")
@pytest.mark.parametrize("result", [Plain(), [threading.Lock()], {"a": Plain()}], ids=["object", "lock", "inside"])
def test_a_result_that_cannot_be_stored_is_unknown_not_faked(memory: Memory, result: Any) -> None:
    again, made = cut_after(memory, result, "r = fetch()\ny = 5\nshow(what=1)")
    with pytest.raises(UnknownOutcome, match=r"after it called fetch .* that happened, but its result could not be st"):
        memory.resume(again)
    assert made == ["fetch", "show"]
    assert memory.resume(again, unknown="skip") == 5
    assert made == ["fetch", "show", "show"]
    assert "its result could not be stored" in str(again.python_executor.state["r"])


def test_an_error_of_a_tools_own_class_is_caught_as_before(memory: Memory) -> None:
    step = "try:\n    r = fetch()\nexcept ValueError as error:\n    y = str(error)\nexcept Exception:\n    y = 0"
    again, made = cut_after(memory, OwnError("no such order"), f"{step}\nshow(what=y)")
    assert memory.resume(again) == "no such order"
    assert made == ["fetch", "show", "show"]


class Refused(Exception):
    """An error that says more than its text."""

    def __init__(self, code: int) -> None:
        super().__init__("refused")
        self.code, self.text, self.request = code, "insufficient funds", threading.Lock()


def test_an_error_has_its_plain_attributes_when_it_is_played_back(memory: Memory) -> None:
    step = "try:\n    r = fetch()\nexcept Exception as error:\n    y = [str(error), error.code, error.text]"
    again, made = cut_after(memory, Refused(402), f"{step}\nshow(what=y)")
    assert memory.resume(again) == ["refused", 402, "insufficient funds"]
    assert made == ["fetch", "show", "show"]


@pytest.mark.promise("S1")
def test_a_class_is_never_looked_up_because_a_file_names_it() -> None:
    record = codec.encode(Order(1, [])).record
    for name in ("subprocess.Popen", "os.system", "smolmem.core.values.Run", "http.HTTPStatus", f"{__name__}.Order"):
        hostile = record.replace(f"{__name__}.Order".encode(), name.encode())
        assert isinstance(codec.decode(hostile, {}.__getitem__), placeholders.Placeholder)


# --- the step that was interrupted -----------------------------------------------------------------------------------


def interrupted_in(memory: Memory, tmp_path: Path, step: str) -> tuple[Path, list[str]]:
    """A run that was killed in its second step, in the tool `stop`, or in the line `1 / cut`; the folder, emptied."""
    folder = tmp_path / "outside"
    folder.mkdir()

    class Falls:
        def __rtruediv__(self, other: Any) -> Any:
            raise Cut

    agent = code_agent(
        code("known = [1]"), code(f"folder = {str(folder)!r}\n{step}"), tools=stepping(stopped=True), **ANY
    )
    memory.attach(agent)
    with pytest.raises(Cut):
        agent.run("Go", additional_args={"cut": Falls()} if "cut" in step else None)
    memory.detach(agent)
    made = [path.name for path in folder.iterdir()]
    for path in folder.iterdir():
        path.rmdir() if path.is_dir() else path.unlink()
    return folder, made


def stepping(*, stopped: bool = False) -> list[Any]:
    @tool
    def send(to: str) -> str:
        """Sends.

        Args:
            to: where
        """
        return f"sent to {to}"

    @tool
    def stop() -> str:
        """Stops the process."""
        if stopped:
            raise Cut
        return "on"

    stop.safe_to_repeat = True
    return [send, stop]


@pytest.mark.promise("D12")
@pytest.mark.parametrize(
    ("effect", "unknown"),
    [*((effect, "raise") for effect in EFFECTS.values()), (EFFECTS["mkdir"], "rerun"), (EFFECTS["mkdir"], "skip")],
    ids=[*EFFECTS, "rerun", "skip"],
)
def test_what_an_interrupted_step_did_outside_before_a_call_is_never_done_again(
    memory: Memory, tmp_path: Path, effect: str, unknown: Any
) -> None:
    folder, made = interrupted_in(memory, tmp_path, f"{effect}\nsent = send('Oslo')\nknown.append(2)\nstop()\ny = 1")
    assert made
    again = code_agent(code("final_answer(known)"), tools=stepping(), **ANY)
    if unknown == "raise":
        with pytest.raises(UnknownOutcome, match="whose code may have had an effect outside: the code"):
            memory.resume(again)
        unknown = "skip"
    assert memory.resume(again, unknown=unknown) == [1]
    told = str(again.model.prompts[-1][-1])
    assert "the step's code is not run again" in told
    assert "send with [['Oslo'], {}], which gave 'sent to Oslo'; stop with" in told
    assert list(folder.iterdir()) == []
    assert memory.verify()


@pytest.mark.promise("D12")
@pytest.mark.parametrize("effect", [EFFECTS["io"], EFFECTS["process"], EFFECTS["swallowed"]])
def test_what_an_interrupted_step_may_have_done_outside_is_done_again_only_if_that_is_asked_for(
    path: Path, tmp_path: Path, effect: str
) -> None:
    folder = tmp_path / "outside"
    folder.mkdir()
    step = f"folder = {str(folder)!r}\nsent = send('Oslo')\n{effect}\nimport os\nos.kill(os.getpid(), 9)\nstop()"

    def killed() -> None:
        with Memory(path) as memory:
            memory.attach(code_agent(code(step), tools=stepping(), **ANY)).run("Go")

    assert os.WIFSIGNALED(os.waitpid(fork(killed), 0)[1])
    for made in folder.iterdir():
        made.rmdir() if made.is_dir() else made.unlink()
    with Memory(path) as memory:
        with pytest.raises(UnknownOutcome, match="may have had an effect outside"):
            memory.resume(code_agent(tools=stepping(), **ANY))
        assert list(folder.iterdir()) == []
        again = code_agent(code("final_answer(1)"), tools=stepping(), **ANY)
        assert memory.resume(again, unknown="skip") == 1
        assert list(folder.iterdir()) == []


def test_the_effect_is_repeated_where_a_caller_says_rerun(memory: Memory, tmp_path: Path) -> None:
    step = "import os\nsent = send('Oslo')\nos.mkdir(f'{folder}/note')\n1 / cut"
    folder, made = interrupted_in(memory, tmp_path, step)
    assert made == ["note"]
    with pytest.raises(UnknownOutcome, match=r"the code would os.mkdir"):
        memory.resume(code_agent(tools=stepping(), **ANY))
    again = code_agent(code("final_answer(1)"), tools=stepping(), **ANY)
    again.state["cut"] = 2
    assert memory.resume(again, unknown="rerun") == 1
    assert [path.name for path in folder.iterdir()] == ["note"]


def test_an_interrupted_step_that_only_computes_is_run_again_once(memory: Memory, tmp_path: Path) -> None:
    step = "import json\nknown.append(len(json.loads('[7]')))\nsent = send('Oslo')\nstop()\nknown.append(3)"
    interrupted_in(memory, tmp_path, step)
    again = code_agent(code("final_answer(known)"), tools=stepping(), **ANY)
    assert memory.resume(again) == [1, 1, 3]


def test_a_rehearsal_leaves_the_objects_of_the_agents_state_as_they_are(memory: Memory) -> None:
    numbers = [1]
    agent = code_agent(code("numbers.append(2)\nstop()"), tools=stepping(stopped=True))
    memory.attach(agent)
    with pytest.raises(Cut):
        agent.run("Go", additional_args={"numbers": numbers})
    memory.detach(agent)
    again = code_agent(code("final_answer(numbers)"), tools=stepping())
    again.state["numbers"] = fresh = [1]
    assert memory.resume(again) == [1, 2]
    assert fresh in ([1], [1, 2])


@pytest.mark.promise("D12")
@pytest.mark.parametrize("printed", ["'same'", "random.random()"], ids=["run again", "snapshot"])
def test_a_function_of_an_earlier_step_calls_no_tool_in_a_rehearsal(memory: Memory, printed: str) -> None:
    send, made = counting_tool()
    first = code(f"import random\ndef f(to):\n    return send(to)\nprint({printed})")
    agent = code_agent(first, code("a = f('Oslo')\nstop()\nb = f('Bergen')"), tools=[send, stepping(stopped=True)[1]])
    memory.attach(agent)
    with pytest.raises(Cut):
        agent.run("Go")
    memory.detach(agent)
    again = code_agent(code("final_answer([a, b])"), tools=[send, stepping()[1]])
    assert memory.resume(again) == ["sent to Oslo", "sent to Bergen"]
    assert made == ["Oslo", "Bergen"]


def test_a_step_that_was_skipped_is_not_run_after_a_second_kill_either(memory: Memory, tmp_path: Path) -> None:
    folder, _ = interrupted_in(memory, tmp_path, "import os\nos.mkdir(f'{folder}/note')\nstop()")
    again = code_agent(STOP, tools=stepping(), **ANY)
    memory.attach(again)
    with pytest.raises(Exception, match="429"):
        memory.resume(again, unknown="skip")
    memory.detach(again)
    last = code_agent(code("final_answer(known)"), tools=stepping(), **ANY)
    assert memory.resume(last) == [1]
    assert list(folder.iterdir()) == []
    assert [step.number for step in memory.runs()[0].steps if step.kind == "action"] == [1, 2, 3]


# --- changed arguments -----------------------------------------------------------------------------------------------


def filling(first: list[bool]) -> Any:
    @tool
    def fill(box: object, by: int) -> object:
        """Changes what it is given.

        Args:
            box: what
            by: how much
        """
        if isinstance(box, list):
            box.insert(0, {"by": by})
            box[1]["seen"] = box
        elif isinstance(box, dict):
            box["inner"].append(by)
            box["new"] = box["inner"]
        elif isinstance(box, set):
            box.add(by)
        elif isinstance(box, Order):
            box.items.append(by)
            box.number = by
        else:
            box += by
        return box if by % 2 else None

    @tool
    def stop() -> str:
        """Stops the process, once."""
        if first and first.pop():
            raise Cut
        return "on"

    stop.safe_to_repeat = True
    return [fill, stop]


CHANGES = {
    "list": ("d = {'n': 1}\nbox = [d]", "d['seen'] is box and box[1] is d and box[0] == {'by': by} and len(box) == 2"),
    "dict": ("inner = [1]\nbox = {'inner': inner}", "inner == [1, by] and box['new'] is inner"),
    "set": ("box = {1}", "box == {1, by}"),
    "array": ("import numpy as np\nbox = np.arange(2)\nview = box[:1]", "view[0] == by and list(box) == [by, by + 1]"),
}


@pytest.mark.promise("D12")
@pytest.mark.parametrize("by", [8, 9], ids=["returns nothing", "returns its argument"])
@pytest.mark.parametrize(("before", "check"), CHANGES.values(), ids=CHANGES.keys())
def test_what_a_tool_changed_in_its_arguments_is_changed_when_it_is_played_back(
    memory: Memory, before: str, check: str, by: int
) -> None:
    first = [True]
    step = f"{before}\nby = {by}\nr = fill(box, by=by)\nstop()\ny = bool({check}) and r is {'box' if by % 2 else None}"
    agent = memory.attach(code_agent(code(step), tools=filling(first), **ANY))
    with pytest.raises(Cut):
        agent.run("Go")
    memory.detach(agent)
    again = code_agent(code("final_answer(y)"), tools=filling(first), **ANY)
    assert memory.resume(again) is True
    last = code_agent(code("final_answer(y)"), STOP, tools=filling(first), **ANY)
    broken_off(memory, code_agent(code(step), STOP, tools=filling(first), **ANY))
    assert memory.resume(last) is True  # a step that was done is run again in the same way


def test_a_calling_agents_state_is_changed_when_a_call_is_played_back(path: Path) -> None:
    @tool
    def stop() -> str:
        """Waits for the other call, and stops the process."""
        while not basket > {1}:
            time.sleep(0.01)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
        return ""

    def killed() -> None:
        both = calls(("fill", {"box": "basket", "by": 8}), ("stop", {}))
        agent = ToolCallingAgent(tools=[filling([])[0], stop], model=Scripted(both), verbosity_level=-1)
        with Memory(path) as memory:
            memory.attach(agent).run("Go", additional_args={"basket": basket})

    basket = {1}
    assert os.WIFSIGNALED(os.waitpid(fork(killed), 0)[1])
    again = ToolCallingAgent(tools=filling([]), model=Scripted(answer("ok")), verbosity_level=-1)
    with Memory(path) as memory:
        assert memory.resume(again, unknown="rerun") == "ok"
    assert again.state["basket"] == {1, 8}


def test_a_change_that_cannot_be_made_again_is_unknown(memory: Memory) -> None:
    first = [True]

    @tool
    def fill(frame: object) -> str:
        """Adds a column.

        Args:
            frame: to what
        """
        frame["b"] = 1
        return "done"

    step = "import pandas as pd\nframe = pd.DataFrame({'a': [1]})\nfill(frame)\nstop()"
    agent = memory.attach(code_agent(code(step), tools=[fill, filling(first)[1]], **ANY))
    with pytest.raises(Cut):
        agent.run("Go")
    memory.detach(agent)
    with pytest.raises(UnknownOutcome, match=r"(?s)after it called fill.*could not be stored \(the arguments"):
        memory.resume(code_agent(tools=[fill, filling([])[1]], **ANY))


# --- edits inside saved steps ----------------------------------------------------------------------------------------


def stored_steps(memory: Memory, run: Any) -> Any:
    return memory._journal.session(run.session, run.id).entries


def redact_calls(step: Any) -> None:
    for call in step.tool_calls or ():
        if isinstance(call.arguments, dict):
            call.arguments["city"] = "***"
        else:
            call.arguments = call.arguments.replace("sesame", "***")


def redact_images(step: Any) -> None:
    step.observations_images[:] = [Image.new("L", (2, 2))]


def redact_text(step: Any) -> None:
    step.model_output = str(step.model_output).replace("sesame", "***")


@pytest.mark.promise("D11")
@pytest.mark.parametrize("viewed", [False, True], ids=["plain", "views"])
@pytest.mark.parametrize("redact", [redact_calls, redact_images, redact_text])
@pytest.mark.parametrize("kind", ["code", "calling"])
def test_what_is_stored_as_sent_is_what_was_sent_whoever_edits_saved_steps(
    memory: Memory, kind: str, redact: Any, viewed: bool
) -> None:
    def callback(step: Any, agent: Any) -> None:
        if step.step_number > 12:
            redact(agent.memory.steps[1])  # long saved, and not among the steps that are looked at in turn
            redact(agent.memory.steps[step.step_number - 2])

    options: dict[str, Any] = {"step_callbacks": [callback], "max_steps": 20}
    if kind == "code":
        agent = code_agent(*[code(f"key = 'sesame {i}'") for i in range(15)], code("final_answer(1)"), **options)
    else:
        called = [calls(("weather", {"city": f"sesame {i}"})) for i in range(15)]
        agent = calling_agent(*called, answer("ok"), **options)
    memory.attach(agent, views=[views.TrimObservations(600)] if viewed else None)
    agent.run("Open", images=[Image.new("L", (1, 1))])
    run = memory.runs()[0]
    stored = [list(step.to_smolagents().model_input_messages) for step in run.steps if step.kind == "action"]
    assert [[m.content for m in told] for told in stored] == [[m.content for m in sent] for sent in agent.model.prompts]
    assert "***" in str(stored[-1]) or redact is redact_images or (kind, redact) == ("calling", redact_text)
    assert [codec.encode(step).key for step in agent.memory.steps] == [step.key for step in stored_steps(memory, run)]
    assert memory.verify()
