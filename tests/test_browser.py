"""The inspector in a real browser: hostile texts are inert; mouse, keyboard, live updates and themes work.

Skipped where Chromium is not installed (`apt install chromium chromium-driver`). All tests share one browser.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import uvicorn
from chromium import CHROMIUM, browsing, needs_browser
from scripted import code, code_agent
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from smolagents.memory import ActionStep, PlanningStep, TaskStep, ToolCall
from smolagents.models import ChatMessage, MessageRole
from smolagents.monitoring import AgentLogger, LogLevel, Timing
from smolagents.utils import AgentError

from smolmem import Memory
from smolmem.cli import sample
from smolmem.core.encoding import codec, step_facts
from smolmem.core.injected import injected
from smolmem.core.rows import Batch, Change, Passage, RunRow, SessionRow, SharedPrompt
from smolmem.core.text import storable
from smolmem.core.values import Alert, Trim, when
from smolmem.inspector.app import make_app
from smolmem.inspector.guard import new_access
from smolmem.inspector.serve import hosts_of, link_of, listen
from smolmem.store.contents import seal
from smolmem.store.passage_rows import PassageOwner, add_passages

pytestmark = needs_browser
TORTURE = bool(os.environ.get("SMOLMEM_TORTURE"))
PATIENCE = 20.0
"""Seconds to wait for a page to show what was written."""
POLL = "(one) => one.name.endsWith('/data-version')"

# --- payloads ---------------------------------------------------------------------------------------------------------

FIRE = "__fired.push(1)"
AWAY = "//evil.invalid"
_SCRIPTS = [
    *(
        "<script>{f}</script>",
        "<SCRIPT>{f}</SCRIPT>",
        "<script src={a}/x.js></script>",
        "<script>{f}",
        "<scr\0ipt>{f}</script>",
    ),
    *(
        "<script\n>{f}</script\n>",
        "<script/x>{f}</script>",
        "<<script>{f}//<</script>",
        "</script><script>{f}</script>",
    ),
    *(
        "<script type=module>{f}</script>",
        "<script>\u2028{f}</script>",
        "<script src=data:text/javascript,{f}></script>",
    ),
    *("<svg><script>{f}</script></svg>", "<svg><script href=data:,{f} />", "<math><script>{f}</script></math>"),
    *("<noscript><p title='</noscript><script>{f}</script>'>", "<template><script>{f}</script></template>"),
    *("<iframe srcdoc='<script>parent.{f}</script>'></iframe>", "<object data=data:text/html,<script>{f}</script>>"),
    *("<embed src={a}/x.swf>", "<frameset onload={f}>", "<base href={a}/>", "<link rel=stylesheet href={a}/x.css>"),
    *(
        "<meta http-equiv=refresh content='0;url={a}'>",
        "<link rel=prefetch href={a}>",
        "<style>@import '{a}/x.css';</style>",
    ),
    *("<style>*{{background:url({a}/x.png)}}</style>", "<div style=background:url({a}/x.png)>x</div>"),
    *(
        "<div style='width:expression({f})'>",
        "<table background={a}/x.png>",
        "<form action={a}><input name=q autofocus>",
    ),
]
_PLACES = [
    *(
        "img src=x onerror={f}",
        "img src=x onerror='{f}'",
        'img src=x onerror="{f}"',
        "img/src=x/onerror={f}",
        "IMG SRC=x ONERROR={f}",
    ),
    *("svg onload={f}", "svg/onload={f}", "body onload={f}", "video src=x onerror={f}", "audio src=x onerror={f}"),
    *(
        "video><source onerror={f}",
        "input autofocus onfocus={f}",
        "select autofocus onfocus={f}",
        "textarea autofocus onfocus={f}",
    ),
    *(
        "details open ontoggle={f}",
        "marquee onstart={f}",
        "object data=x onerror={f}",
        "iframe onload={f}",
        "image src=x onerror={f}",
    ),
    *(
        "div onmouseover={f} style=position:fixed;inset:0",
        "a href=javascript:{f} id=x autofocus",
        "math href=javascript:{f}>x",
    ),
    *(
        "svg><animate onbegin={f} attributeName=x dur=1s",
        "svg><a xlink:href=javascript:{f}><text>x</text",
        "form action=javascript:{f}><button autofocus",
    ),
    *(
        "button formaction=javascript:{f} form=f",
        "isindex action=javascript:{f}",
        "keygen autofocus onfocus={f}",
        "style onload={f}",
    ),
    *(
        "img srcset={a}/1.png",
        "img src={a}/2.png",
        "video poster={a}/3.png",
        "svg><image href={a}/4.png",
        "svg><use href={a}/5.svg#x",
    ),
    *(
        "input type=image src={a}/6.png",
        "link rel=icon href={a}/7.ico",
        "iframe src={a}",
        "audio src={a}/8.ogg autoplay",
        "track src={a}",
    ),
    *(
        "x contenteditable autofocus onfocus={f}",
        "meter onmouseover={f}",
        "dialog open onfocus={f} autofocus tabindex=0",
        "x style=animation-name:x onanimationstart={f}",
    ),
]
_BEFORE = [
    "",
    '">',
    "'>",
    "</textarea>",
    "</title>",
    "</pre>",
    "-->",
    "</style>",
    "]]>",
    "</option></select>",
    "</p></div>",
    '" x="',
]
_OTHERS = [
    *(
        "javascript:{f}",
        "JaVaScRiPt:{f}",
        "java\tscript:{f}",
        "javascript://%0a{f}",
        "data:text/html,<script>{f}</script>",
        "vbscript:x",
    ),
    *(
        "{{{{7*7}}}}",
        "${{7*7}}",
        "{{%25 set x=1 %25}}",
        "{{{{config}}}}",
        "{{{{''.__class__.__mro__}}}}",
        "{{% include 'base.html' %}}",
        "#{{7*7}}",
        "<%= 7*7 %>",
    ),
    *(
        "{{{{constructor.constructor('{f}')()}}}}",
        "[[${{7*7}}]]",
        "{{{{self}}}}",
        "{{{{cycler.__init__.__globals__}}}}",
        "{{# comment #}}",
    ),
    *(
        "\u202e<script>{f}</script>",
        "\ufeff<script>{f}</script>",
        "＜script＞{f}＜/script＞",
        "\u2028<img src=x onerror={f}>",
        "<ımg src=x onerror={f}>",
    ),
    *(
        "+ADw-script+AD4-{f}+ADw-/script+AD4-",
        "%3Cscript%3E{f}%3C/script%3E",
        "&lt;script&gt;{f}&lt;/script&gt;",
        "&#60;script&#62;{f}&#60;/script&#62;",
    ),
    *(
        "\\x3cscript\\x3e{f}\\x3c/script\\x3e",
        "\\u003cscript\\u003e{f}",
        "<!--><script>{f}</script>-->",
        "<![CDATA[<script>{f}</script>]]>",
        "<?xml version='1.0'?><x/>",
    ),
    *(
        "<!ENTITY x SYSTEM 'file:///etc/passwd'>",
        "';{f}//",
        '";{f}//',
        "`;{f}//`",
        "*/{f}/*",
        "\r\n\r\n<script>{f}</script>",
        "</main><h1>Login</h1>",
    ),
    *(
        "<x/ onclick={f}>y",
        "onerror={f}",
        "' onfocus='{f}' autofocus='",
        '" onfocus="{f}" autofocus="',
        " autofocus onfocus={f} x=",
        "<a href='//evil.invalid'>y</a>",
    ),
    *(
        "<p id=step-detail>x</p>",
        "<ol id=step-list><li><a data-step='/../../evil'>x</a></ol>",
        "<a data-step=1 aria-current=true>x</a>",
        "<form data-live=run-list action={a}>",
    ),
    *(
        "<details data-src={a} open><div></div></details>",
        "<tr data-href=javascript:{f}><td>x</td></tr>",
        "<button data-copy=x>x</button>",
        "<input id=step-slider>",
    ),
    *(
        "<form id=help>",
        "<img name=body>",
        "<form name=documentElement>",
        "<a id=links><a id=links name=x>",
        "\x1b]8;;http://evil.invalid\x07x\x1b]8;;\x07",
        "<b>" * 200,
    ),
]


def payloads() -> list[str]:
    """At least 300 payloads: scripts, event handlers, URLs and templates, after different closing tags."""
    made = [one.format(f=FIRE, a=AWAY) for one in [*_SCRIPTS, *_OTHERS]]
    for number, place in enumerate(_PLACES):
        for turn in range(5):
            start = _BEFORE[(number + turn * 5) % len(_BEFORE)]
            made.append(f"{start}<{place.format(f=FIRE, a=AWAY)}>")
    return list(dict.fromkeys(made))


PAYLOADS = payloads()
GROUP = 12 if TORTURE else 40
TOGETHER = [PAYLOADS[start : start + GROUP] for start in range(0, len(PAYLOADS), GROUP)]
"""Every payload, many to a page."""
ALONE = PAYLOADS if TORTURE else PAYLOADS[::8]
"""Payloads that have pages of their own: a sample, and every payload under torture."""


def test_there_are_enough_payloads() -> None:
    assert len(PAYLOADS) >= 300


# --- servers and the browser ------------------------------------------------------------------------------------------


@dataclass
class Server:
    memory: Memory
    host: str

    def __post_init__(self) -> None:
        self._socket = listen("127.0.0.1", 0, strict=True)
        self.port = self._socket.getsockname()[1]
        self.access = new_access(hosts_of("127.0.0.1", self.port), read_only=False)
        self.link = link_of(self.host, self.port, self.access)
        self.base = f"http://{self.host}:{self.port}"
        config = uvicorn.Config(make_app(self.memory, self.access), log_level="warning", access_log=False)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]})
        self._thread.start()

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()


CANARY = """
window.__fired = window.__fired || [];
for (const name of ['alert', 'prompt', 'print', 'open']) {
  window[name] = (...given) => { window.__fired.push([name, ...given.map(String)]); };
}
document.addEventListener('securitypolicyviolation', (event) => {
  window.__fired.push(['policy', event.violatedDirective, event.blockedURI]);
});
"""


HOLD_UPDATE = """
const original = window.fetch;
window.fetch = async (...given) => {
  const answer = await original(...given);
  if (String(given[0]).includes("fragment") && !window.release) await new Promise((done) => { window.release = done; });
  return answer;
};
"""


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    logs = {"goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}, "unhandledPromptBehavior": "ignore"}
    with browsing(tmp_path_factory.mktemp("chromium"), "--window-size=1360,900", **logs) as driver:
        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": CANARY})
        yield driver


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, chrome: Any) -> Iterator[Server]:
    """The sample memory."""
    path = tmp_path_factory.mktemp("browser") / "sample.db"
    sample.fill(path)
    with Memory(path, embedder="off") as memory:
        server = Server(memory, "localhost")
        try:
            chrome.get(server.link)
            yield server
        finally:
            server.stop()


@dataclass
class Browser:
    """A browser with one server."""

    chrome: Any
    server: Server
    allowed: list[str] = field(default_factory=list)

    def go(self, target: str) -> None:
        self.chrome.get(f"{self.server.base}{target}")

    def one(self, found: str) -> Any:
        return self.chrome.find_element(By.CSS_SELECTOR, found)

    def all(self, found: str) -> list[Any]:
        return list(self.chrome.find_elements(By.CSS_SELECTOR, found))

    def js(self, script: str, *given: Any) -> Any:
        return self.chrome.execute_script(script, *given)

    def press(self, *pressed: str) -> None:
        actions = ActionChains(self.chrome)
        for key in pressed:
            actions.send_keys(key)
        actions.perform()

    def until(self, true: Callable[[], Any], seconds: float = PATIENCE) -> Any:
        end = time.monotonic() + seconds
        while True:
            with_found = _tried(true)
            if with_found or time.monotonic() > end:
                assert with_found, "timed out"
                return with_found
            time.sleep(0.03)

    def polled(self) -> None:
        """Waits until the page has asked for changes twice more: the first answer was dealt with before the second."""
        count = f"return performance.getEntriesByType('resource').filter({POLL}).length"
        before = self.js(count)
        self.until(lambda: self.js(count) >= before + 2)

    @property
    def path(self) -> str:
        return str(self.js("return location.pathname + location.search"))

    @property
    def chosen(self) -> int:
        return int(self.js("return Number(document.querySelector('#step-list a[aria-current]')?.dataset.step || 0)"))

    def shows(self, step: int) -> bool:
        reference = self.server.memory.step(step).reference
        return self.chosen == step and reference in self.one("#step-detail .facts").text.splitlines()

    def log(self) -> list[str]:
        return [entry["message"] for entry in self.chrome.get_log("browser")]


def _tried(act: Callable[[], Any]) -> Any:
    from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException

    try:
        return act()
    except (NoSuchElementException, StaleElementReferenceException):
        return None


@pytest.fixture
def browser(chrome: Any, shop: Server) -> Iterator[Browser]:
    """The browser with the sample; after each test, its console must be empty."""
    opened = Browser(chrome, shop)
    opened.log()
    yield opened
    fired = opened.js("return window.__fired || []")
    log = [line for line in opened.log() if not any(word in line for word in opened.allowed)]
    chrome.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert log == []
    assert fired == []


def of(memory: Memory, agent: str) -> Any:
    return next(run for run in memory.runs(scope="*", agent=agent) if run.fork_of is None)


# --- S4: hostile texts are inert --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory, chrome: Any) -> Iterator[Server]:
    """A memory with payloads in every field that is shown."""
    path = tmp_path_factory.mktemp("hostile") / "hostile.db"
    with Memory(path, embedder="off", durability="normal") as memory:
        for number, payload in enumerate(ALONE):
            _plant(memory, payload, time.time() + number)
        for number, group in enumerate(TOGETHER):
            _plant(memory, "\n".join(group), time.time() + len(PAYLOADS) + number, agent="together")
        size = 3 if TORTURE else 12
        for start in range(0, len(PAYLOADS), size):
            _note(memory, "\n".join(PAYLOADS[start : start + size]), start)
        server = Server(memory, "127.0.0.1")
        try:
            chrome.get(server.link)
            yield server
        finally:
            server.stop()


def _plant(memory: Memory, text: str, at: float, agent: str | None = None) -> None:
    """Stores a run with the text in every field."""
    plain = storable(text)
    name, journal = agent or plain, memory._journal
    session: SessionRow = {
        "id": os.urandom(8).hex(),
        "scope": plain,
        "agent": name,
        "began": at,
        "fork_of": None,
        "fork_at": None,
    }
    row: Any = {"id": os.urandom(8).hex(), "session": session["id"], "scope": plain, "agent": name, "agent_type": plain}
    row |= {"title": plain, "status": "running", "began": at, "ended": None, "parent": None, "parent_step": None}
    row |= {"fork_of": None, "model": plain, "smolagents": plain, "max_steps": 9, "steps": 0, "errors": 0}
    row |= {"input_tokens": 0, "output_tokens": 0, "answer": None, "failure": None, "writer": "elsewhere:1:1"}
    row["tags"] = json.dumps([plain])
    changes = list(_changes(row, text, at))
    saved = journal.save(Batch(session, True, [row], (), changes))
    odd = len(plain) % 2
    ended: RunRow = {**row, "status": "failed" if odd else "finished", "ended": at + 1}
    failure = {"type": plain, "message": plain, "traceback": plain}
    results = [(row["id"], "failure" if odd else "answer", codec.encode(failure if odd else text))]
    journal.save(Batch(session, False, [ended], results))
    journal.alerts.add(Alert(plain, plain, plain, row["id"], 1, when(at), (plain,)), plain)
    journal.trims.add(session["id"], Trim(plain, saved[0].step, 1, 2, 1, plain))
    told = ChatMessage(MessageRole.USER, [{"type": "text", "text": text}])
    journal.reminders.add(row["id"], None, plain, [told], [])


def _changes(row: Any, text: str, at: float) -> Iterator[Change]:
    said = ChatMessage(MessageRole.USER, [{"type": "text", "text": text}])
    action = ActionStep(
        1,
        Timing(at, at + 1),
        tool_calls=[ToolCall(text, {text: [text]}, text)],
        error=AgentError(text, AgentLogger(level=LogLevel.OFF)),
        model_output=text,
        code_action=text,
        observations=text,
        action_output=text,
        is_final_answer=True,
    )
    steps = [TaskStep(text), PlanningStep([], said, text, Timing(at, at)), injected(text, text, text), action]
    for place, step in enumerate(steps):
        facts = step_facts.facts(step)
        if step is action:
            facts = {**facts, "error": storable(text), "tools": json.dumps([storable(text)])}  # type: ignore[typeddict-item]
        prompt = SharedPrompt(None, 0, [codec.encode([said])], 1) if step is action else None
        yield Change("insert", row["id"], at, place, encoded=codec.encode(step), facts=facts, prompt=prompt)
    again = ActionStep(1, Timing(at, at + 1), observations=text, model_output=text, code_action=text)
    yield Change("insert", row["id"], at, len(steps), encoded=codec.encode(again), facts=step_facts.facts(again))


def _note(memory: Memory, text: str, number: int) -> None:
    plain, id = storable(text), f"{number:016x}"
    row = {"id": id, "scope": plain, "kind": plain, "text": f"payload {plain}", "tags": json.dumps([plain])}
    row |= {"origin": plain, "run": None, "at": time.time(), "expires": None, "supersedes": None, "sources": "[]"}

    def add() -> None:
        memory._store.do("add_note", row | {"hash": seal("note", row)})
        owner = PassageOwner(scope=plain, session="", step=None, note=id, run=None, agent=plain, at=time.time())
        add_passages(memory._store, owner, [Passage(plain, "user", f"payload {plain}")])

    memory._store.transact(add)


LOOK = """
const [targets, every, done] = arguments, wrong = [];
(async () => {
  const ask = async (target) => {
    const answer = await fetch(target);
    return [target, answer.status, await answer.text()];
  };
  const waiting = targets.splice(0, 6).map(ask);
  for (let number = 0; waiting.length; number++) {
    const [target, status, text] = await waiting.shift();
    if (targets.length) waiting.push(ask(targets.shift()));
    if (status >= 500) wrong.push([target, status]);
    let page = document;
    if (number % every) {                     // parsed only, to look for markup
      page = new DOMParser().parseFromString(text, 'text/html');
    } else if (text.startsWith('<!doctype')) {  // loaded like a page: its scripts would run
      document.open();
      document.write(text.replace('<script src="/static/app.js" defer></script>', ''));
      document.close();
    } else {                                  // inserted like our own script inserts fragments
      document.body.innerHTML = '<article id="step-detail"></article>';
      document.querySelector('#step-detail').innerHTML = text;
      for (const each of document.querySelectorAll('details')) each.open = true;
    }
    for (const each of page.querySelectorAll('[autofocus]')) wrong.push([target, 'autofocus']);
    const made = 'b b, script:not([src]), iframe, style, [onerror], [onfocus], base, embed, object';
    if (page.querySelector(made)) wrong.push([target, 'markup']);
  }
  await new Promise((soon) => setTimeout(soon, 50));
})().catch((error) => wrong.push([String(error)])).then(() => done([wrong, window.__fired]));
"""


@contextmanager
def quiet(chrome: Any, server: Server) -> Iterator[None]:
    """Fails if a payload runs, opens a dialog, or sends a request to another host."""
    for kind in ("browser", "performance"):
        chrome.get_log(kind)
    yield
    assert chrome.execute_script("return window.__fired") == []
    events = [json.loads(entry["message"])["message"] for entry in chrome.get_log("performance")]
    asked = {event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"}
    assert [url for url in asked if not url.startswith((f"{server.base}/", "data:,"))] == []
    assert [event for event in events if event["method"] == "Page.javascriptDialogOpening"] == []
    said = [entry["message"] for entry in chrome.get_log("browser")]
    assert [line for line in said if "the server responded with a status of 4" not in line] == []


@pytest.mark.promise("S4")
def test_hostile_texts_in_every_field_are_inert_on_every_page(chrome: Any, hostile: Server) -> None:
    """Whole pages, opened by navigation, with many payloads on each."""
    runs = hostile.memory.runs(scope="*", agent="together")
    with quiet(chrome, hostile):
        for run in runs[::5]:
            chrome.get(f"{hostile.base}/runs/{run.id}")
            chrome.execute_script("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        target = "/"
        for _ in range(8):
            chrome.get(f"{hostile.base}{target}")
            following = chrome.find_elements(By.CSS_SELECTOR, "a[rel=next]")
            if not following:
                break
            target = following[0].get_attribute("href").removeprefix(hostile.base)
        for page in ("/memory", "/memory?past=1", "/memory?q=payload", "/alerts", "/compare"):
            chrome.get(f"{hostile.base}{page}")
        chrome.get(f"{hostile.base}/compare?left={runs[0].id}&right={runs[1].id}")


@pytest.mark.promise("S4")
def test_each_payload_is_inert_in_runs_steps_prompts_and_notes(chrome: Any, hostile: Server) -> None:
    """Groups of payloads are loaded like pages; single payloads are parsed, to look for markup."""
    memory = hostile.memory
    alone, together = list[str](), list[str]()
    for run in memory.runs(scope="*", limit=1000):
        steps = run.steps
        target = f"/runs/{run.id}?step={steps[3].id}"
        if run.agent != "together":
            alone.append(target)
            continue
        together += [target, *(f"/steps/{step.id}" for step in (steps if TORTURE else steps[:3]))]
        together += [f"/steps/{steps[3].id}/prompt", f"/steps/{steps[3].id}/revisions"]
    alone += [f"/notes/{note.id}" for note in memory.notes(scope="*", limit=1000)]
    assert len(alone) > len(ALONE)
    chrome.get(f"{hostile.base}/alerts")
    with quiet(chrome, hostile):
        for targets, every in ((together, 1), (alone, 7)):
            assert chrome.execute_async_script(LOOK, targets, every) == [[], []]


@pytest.mark.promise("S4")
def test_payloads_in_urls_are_inert(chrome: Any, hostile: Server) -> None:
    said = [quote(storable(payload), safe="") for payload in ALONE]
    targets = [f"/?status={each}" for each in said]
    targets += [f"/?text={each}&agent={each}" for each in said[::3]]
    for each in said[1::6]:
        targets.append(f"/alerts?rule={each}&pattern={each}&tool={each}")
        targets += [f"/runs/{each}", f"/notes/{each}", f"/?status={each}&until={each}"]
    for each in said[2::12]:
        targets += [f"/memory?q={each}&fragment=1", f"/compare?left={each}&right=x"]
    chrome.get(f"{hostile.base}/alerts")
    with quiet(chrome, hostile):
        assert chrome.execute_async_script(LOOK, targets, 11) == [[], []]


@pytest.mark.promise("S4")
def test_the_detector_of_executed_payloads_works(chrome: Any, hostile: Server) -> None:
    """A payload on a page that does not escape it is detected."""
    chrome.get(f"{hostile.base}/alerts")
    chrome.execute_script("document.body.innerHTML = '<img src=x onerror=__fired.push(1)><p style=color:red>x</p>'")
    deadline = time.monotonic() + PATIENCE
    while not (fired := chrome.execute_script("return window.__fired")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert fired, "a violation of the policy is reported"
    assert [one for one in fired if one[0] == "policy"]
    chrome.get_log("browser")


# --- by keyboard ------------------------------------------------------------------------------------------------------


def test_the_list_is_used_by_keyboard(browser: Browser) -> None:
    browser.go("/")
    browser.press("j", "j", "k", "j")
    rows = browser.all("tr[data-href]")
    browser.until(lambda: [row.get_attribute("class").split()[-1] == "focused" for row in rows].index(True) == 1)
    wanted = rows[1].get_attribute("data-href")
    browser.press(Keys.ENTER)
    browser.until(lambda: browser.path.startswith(str(wanted)))
    browser.press("u")
    browser.until(lambda: browser.path == "/")


def test_the_list_is_filtered_while_the_user_types(browser: Browser) -> None:
    browser.go("/")
    browser.js("window.same = true")
    browser.press("/")
    assert browser.js("return document.activeElement.name") == "text"
    browser.press(*"warehouse")
    browser.until(lambda: len(browser.all("tr[data-href]")) == 1)
    assert browser.path == "/?text=warehouse"
    browser.press(Keys.ESCAPE, "j")
    assert browser.one("tr.focused").text
    browser.press("/", Keys.BACKSPACE, *"zeppelin")
    browser.until(lambda: "No runs match" in browser.one("#run-list").text)
    browser.js(
        "const field = document.querySelector('[name=text]'); field.value = '';"
        "field.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    browser.one("select[name=status] option[value=failed]").click()
    browser.until(lambda: [chip.text for chip in browser.all("#run-list .chip")] == ["failed"])
    assert browser.path == "/?status=failed"
    assert browser.js("return window.same"), "the page was not reloaded"
    browser.chrome.refresh()
    assert browser.one("select[name=status]").get_attribute("value") == "failed"
    assert len(browser.all("tr[data-href]")) == 1


def test_steps_are_selected_by_keyboard(browser: Browser) -> None:
    run = of(browser.server.memory, "forecaster")
    steps = [step for step in run.steps if step.kind != "system_prompt"]
    browser.go(f"/runs/{run.id}")
    browser.js("window.same = true")
    browser.until(lambda: browser.shows(steps[1].id))
    browser.press("j")
    browser.until(lambda: browser.shows(steps[2].id))
    assert browser.path == f"/runs/{run.id}?step={steps[2].id}"
    browser.press(Keys.ARROW_UP)
    browser.until(lambda: browser.shows(steps[1].id))
    browser.press("e")
    failed = next(step for step in steps if step.error)
    browser.until(lambda: browser.shows(failed.id))
    assert "error" in [title.text.lower() for title in browser.all("#step-detail h3")]
    browser.press("s")
    browser.until(lambda: browser.all("#prompt .message"))
    assert browser.one("#prompt").get_attribute("open")
    browser.press("s")
    assert not browser.one("#prompt").get_attribute("open")
    browser.press("k", "k", "k", "k", "k", "k")
    browser.until(lambda: browser.shows(steps[0].id))
    assert browser.js("return window.same")
    browser.press("?")
    assert browser.one("#help").is_displayed()
    browser.press("j")
    assert browser.chosen == steps[0].id, "an open dialog receives the keys"
    browser.press(Keys.ESCAPE)
    assert not browser.one("#help").is_displayed()


@pytest.mark.parametrize("page", ["/memory", "/alerts", "/compare"])
def test_keys_without_a_shortcut_on_a_page_are_left_to_the_browser(browser: Browser, page: str) -> None:
    browser.go(page)
    taken = browser.js(
        """const taken = [];
        for (const key of ['ArrowDown', 'ArrowUp', 'j', 'e', 's', 'Enter', 'PageDown', ' ']) {
          const event = new KeyboardEvent('keydown', {key, bubbles: true, cancelable: true});
          if (!document.body.dispatchEvent(event)) taken.push(key);
        }
        return taken"""
    )
    assert taken == []


def test_typing_in_a_field_triggers_no_shortcut(browser: Browser) -> None:
    run = of(browser.server.memory, "forecaster")
    browser.go(f"/runs/{run.id}")
    before = browser.chosen
    browser.js("document.querySelector('details.edit').open = true")
    area = browser.one("details.edit textarea")
    area.click()
    browser.press(*"jkesut?/")
    assert browser.chosen == before
    assert browser.path.startswith(f"/runs/{run.id}")
    assert "jkesut?/" in area.get_attribute("value")


# --- a run: slider, chart, prompt -------------------------------------------------------------------------------------


def test_steps_are_selected_by_slider_chart_and_list(browser: Browser) -> None:
    run = of(browser.server.memory, "browser")
    steps = [step for step in run.steps if step.kind != "system_prompt"]
    browser.go(f"/runs/{run.id}")
    browser.until(lambda: browser.one("#step-position").text == f"step {steps[1].number}")
    scrub = browser.one("#step-slider")
    browser.js("arguments[0].value = 5; arguments[0].dispatchEvent(new Event('input', {bubbles: true}))", scrub)
    browser.until(lambda: browser.shows(steps[5].id))
    assert browser.one("#step-position").text == f"step {steps[5].number}"
    scrub.send_keys(Keys.ARROW_RIGHT)
    browser.until(lambda: browser.shows(steps[6].id))
    plot = browser.one("svg.run-chart")
    width, actions = plot.size["width"], [step for step in steps if step.kind == "action"]
    ActionChains(browser.chrome).move_to_element_with_offset(
        plot, -width / 2 + 1.5 * width / len(actions), 0
    ).click().perform()
    browser.until(lambda: browser.shows(actions[1].id))
    assert float(browser.one("svg.run-chart .selected").get_attribute("x")) > 0
    browser.all("#step-list a")[9].click()
    browser.until(lambda: browser.shows(steps[9].id))
    pictures = browser.all(".pictures img")
    assert len(pictures) == 1
    browser.until(lambda: browser.js("return arguments[0].complete && arguments[0].naturalWidth === 640", pictures[0]))


def test_the_prompt_is_fetched_when_it_is_opened(browser: Browser) -> None:
    run = of(browser.server.memory, "browser")
    last = [step for step in run.steps if step.kind == "action"][-1]
    browser.go(f"/runs/{run.id}?step={last.id}")
    entries = "return performance.getEntriesByType('resource').filter((one) => one.name.endsWith('/prompt')).length"
    assert browser.js(entries) == 0
    browser.one("#prompt summary").click()
    browser.until(lambda: len(browser.all("#prompt .message")) == len(last.to_smolagents().model_input_messages))
    assert "Trimmed by views" in browser.one("#prompt").text
    browser.one("#prompt summary").click()
    browser.one("#prompt summary").click()
    assert browser.js(entries) == 1


# --- live -------------------------------------------------------------------------------------------------------------


@contextmanager
def working(memory: Memory, task: str, name: str = "worker") -> Iterator[Callable[[], Any]]:
    """A running agent in this process; each call makes one step."""
    script = [code(f"print('line {number}')") for number in range(30)]
    agent = code_agent(*script, name=name, description="works")
    steps = iter(memory.stepwise(agent, task))
    try:
        yield lambda: next(steps)
    finally:
        memory.detach(agent)


def test_the_page_of_a_running_agent_is_updated_without_a_reload(browser: Browser) -> None:
    memory = browser.server.memory
    with working(memory, "Follow me") as step:
        step(), step(), step()
        run = of(memory, "worker")
        browser.go(f"/runs/{run.id}")
        browser.js("window.same = true")
        first = browser.chosen
        count = len(browser.all("#step-list a"))
        step(), step()
        browser.until(lambda: len(browser.all("#step-list a")) == count + 2)
        assert browser.chosen == first, "the selected step stays selected"
        assert browser.one(".run-head .chip").text == "running"
        browser.all("#step-list a")[-1].click()
        browser.until(lambda: "line 4" in browser.one("#step-detail").text)
        step()
        browser.until(lambda: "line 5" in browser.one("#step-detail").text)
        assert browser.chosen == int(browser.all("#step-list a")[-1].get_attribute("data-step") or 0)
        assert browser.js("return window.same")
        browser.js("document.querySelector('.run-head details')?.setAttribute('open', '')")


def test_the_list_is_updated_and_keeps_the_focused_row(browser: Browser) -> None:
    memory = browser.server.memory
    browser.go("/")
    browser.js("window.same = true")
    browser.press("j", "j", "j")
    chosen = browser.one("tr.focused").get_attribute("data-href")
    with working(memory, "Appear in the list") as step:
        step()
        browser.until(lambda: "Appear in the list" in browser.one("#run-list").text)
        assert browser.js("return window.same")
        assert browser.one("tr.focused").get_attribute("data-href") == chosen
        browser.press("j")
        step()
        browser.polled()
        assert browser.all("tr.focused"), "the focused row stays focused"


@contextmanager
def held_update(browser: Browser) -> Iterator[None]:
    """The answer with the page's next update arrives after this block."""
    browser.js(HOLD_UPDATE)
    yield
    browser.js("release()")


def test_a_row_that_is_focused_while_the_list_is_fetched_stays_focused(browser: Browser) -> None:
    browser.go("/")
    with working(browser.server.memory, "Arrive slowly") as step, held_update(browser):
        step()
        browser.until(lambda: browser.js("return Boolean(window.release)"))
        browser.press("j", "j")
        chosen = browser.one("tr.focused").get_attribute("data-href")
    browser.until(lambda: "Arrive slowly" in browser.one("#run-list").text)
    assert browser.one("tr.focused").get_attribute("data-href") == chosen


def test_a_step_that_is_selected_while_the_run_is_fetched_stays_selected(browser: Browser) -> None:
    with working(browser.server.memory, "Be fetched slowly") as step:
        step()
        step()
        browser.go(f"/runs/{of(browser.server.memory, 'worker').id}")
        count = len(browser.all("#step-list a"))
        browser.press("j")
        with held_update(browser):
            step()
            browser.until(lambda: browser.js("return Boolean(window.release)"))
            browser.press("k")
            chosen = browser.chosen
        browser.until(lambda: len(browser.all("#step-list a")) == count + 1)
        assert browser.chosen == chosen


def test_a_page_of_older_runs_does_not_change_while_new_runs_are_written(browser: Browser) -> None:
    memory = browser.server.memory
    until = sorted(run.began.timestamp() for run in memory.runs(scope="*"))[3]
    browser.go(f"/?until={until!r}")
    before = [row.get_attribute("data-href") for row in browser.all("tr[data-href]")]
    with working(memory, "Be newer") as step:
        step()
        browser.polled()
        assert [row.get_attribute("data-href") for row in browser.all("tr[data-href]")] == before
        assert "until=" in browser.path


def test_the_page_stays_when_the_server_is_unreachable(browser: Browser) -> None:
    browser.go("/")
    browser.allowed.append("ERR_")
    browser.chrome.execute_cdp_cmd("Network.enable", {})
    offline = {"offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    browser.chrome.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
    try:
        failed: list[str] = []
        browser.until(lambda: failed.extend(browser.log()) or len(failed) > 1)
        assert browser.all("tr[data-href]")
    finally:
        browser.chrome.execute_cdp_cmd("Network.emulateNetworkConditions", offline | {"offline": False})


# --- light, dark, narrow ----------------------------------------------------------------------------------------------


def brightness(browser: Browser) -> float:
    colour = browser.js(
        "return getComputedStyle(document.documentElement).backgroundColor.match(/[\\d.]+/g).map(Number)"
    )
    return sum(colour[:3]) / 3


def test_the_theme_follows_the_system_or_the_choice_of_the_user(browser: Browser) -> None:
    browser.go("/")
    browser.js("localStorage.removeItem('theme')")
    for wanted, dark in (("dark", True), ("light", False)):
        media = {"features": [{"name": "prefers-color-scheme", "value": wanted}]}
        browser.chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        browser.go("/")
        browser.until(lambda: (brightness(browser) < 80) == dark)
    browser.press("t")
    assert brightness(browser) < 80
    browser.go("/memory")
    assert brightness(browser) < 80, "the choice is stored"
    browser.one("#switch-theme").click()
    assert brightness(browser) > 200
    browser.chrome.refresh()
    assert brightness(browser) > 200
    browser.js("localStorage.removeItem('theme')")


def pages(memory: Memory) -> list[str]:
    fork = next(run for run in memory.runs(scope="*", agent="forecaster") if run.fork_of)
    runs = [of(memory, name) for name in ("forecaster", "browser", "monitor", "researcher", "counter")]
    made = ["/", "/memory", "/memory?q=no+such+column", "/compare", f"/compare?left={fork.fork_of}&right={fork.id}"]
    made += ["/alerts", "/alerts?rule=pattern&pattern=health&threshold=2&window=5", f"/runs/{fork.id}"]
    made += [f"/notes/{note.id}" for note in memory.notes(scope="*")[:2]]
    return [*made, *(f"/runs/{run.id}?step={run.steps[-1].id}" for run in runs)]


@pytest.mark.sampled
def test_nothing_is_wider_than_a_narrow_screen(browser: Browser) -> None:
    memory = browser.server.memory
    long = "Aworkofonewordthatnobodywouldwriteexceptforatestlikethis" * 4
    note = memory.remember(f"{long} is one word", kind="fact")
    agent = memory.attach(
        code_agent(code(f"print('{long}')"), code(f"final_answer('{long}')"), name=long[:60], description="x")
    )
    agent.run(f"{long} do it")
    memory.runs(scope="*")[0].tag(long[:100])
    memory.detach(agent)
    run = memory.runs(scope="*")[0]
    metrics = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    browser.chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    wide = {}
    more = [f"/notes/{note.id}", f"/runs/{run.id}?step={run.steps[-1].id}", f"/compare?left={run.id}&right={run.id}"]
    for target in [*pages(memory)[:: 1 if TORTURE else 3], *more]:
        browser.go(target)
        browser.js("for (const each of document.querySelectorAll('details')) each.open = true")
        shown, inner = browser.js("return [document.documentElement.scrollWidth, window.innerWidth]")
        assert inner == 400
        if shown > inner:
            script = (
                "return [...document.querySelectorAll('main *, header *')]"
                ".filter((one) => one.getBoundingClientRect().right > 401)"
                ".map((one) => one.tagName + '.' + one.className).slice(0, 5)"
            )
            wide[target] = (shown, browser.js(script))
    assert wide == {}


# --- actions ----------------------------------------------------------------------------------------------------------


def test_the_snippet_is_copied(browser: Browser) -> None:
    run = of(browser.server.memory, "forecaster")
    permissions = ["clipboardReadWrite", "clipboardSanitizedWrite"]
    browser.chrome.execute_cdp_cmd("Browser.grantPermissions", {"permissions": permissions})
    browser.go(f"/runs/{run.id}")
    button = browser.one("[data-copy]")
    button.click()
    browser.until(lambda: button.text == "copied")
    script = "const done = arguments[0]; navigator.clipboard.readText().then(done, (error) => done(String(error)))"
    copied = browser.chrome.execute_async_script(script)
    assert f'memory.run("{run.id}").restore(agent)' in copied
    browser.until(lambda: "Copy code" in button.text)


def test_a_step_is_edited_and_forked_through_the_forms(browser: Browser) -> None:
    memory = browser.server.memory
    run = of(memory, "forecaster")
    step = next(step for step in run.steps if step.number == 1)
    browser.go(f"/runs/{run.id}?step={step.id}")
    browser.one("details.edit summary").click()
    form = next(
        form for form in browser.all("details.edit form") if form.find_elements(By.CSS_SELECTOR, "[value=observations]")
    )
    area = form.find_element(By.TAG_NAME, "textarea")
    area.clear()
    area.send_keys("9 weeks\nand a day")
    form.find_element(By.TAG_NAME, "button").click()
    browser.until(lambda: "9 weeks\nand a day" in browser.one("#step-detail pre.observations").text)
    assert memory.step(step.id).to_smolagents().observations == "9 weeks\nand a day"
    assert browser.chosen == step.id
    versions = next(one for one in browser.all("#step-detail details.lazy") if "versions" in one.text)
    versions.find_element(By.TAG_NAME, "summary").click()
    browser.until(lambda: "recorded" in versions.text)
    before = len(memory.runs(scope="*"))
    browser.one("details.edit summary").click()
    browser.one('form[action$="/fork"] button').click()
    browser.until(lambda: f"fork of {run.id[:8]}" in browser.one(".related").text)
    assert len(memory.runs(scope="*")) == before + 1


def test_forgetting_asks_for_confirmation(browser: Browser) -> None:
    memory = browser.server.memory
    note = memory.remember("The balloon is red", kind="fact")
    browser.go(f"/notes/{note.id}")
    for answer, status in (("dismiss", "current"), ("accept", "forgotten")):
        browser.one('form[action="/forget"] button').click()
        asked = browser.chrome.switch_to.alert
        assert "from recall" in asked.text
        getattr(asked, answer)()
        browser.until(lambda: memory.note(note.id).status == status)
    browser.until(lambda: "Forgotten" in browser.one("main").text or "forgotten" in browser.one("main").text)


def test_a_note_is_written_and_found(browser: Browser) -> None:
    browser.go("/memory")
    browser.one('form[action="/notes"] [name=text]').send_keys("The kite is <b>green</b>", Keys.ENTER)
    browser.until(lambda: browser.path.startswith("/notes/"))
    assert "The kite is <b>green</b>" in browser.one("h1").text
    browser.go("/memory")
    browser.press("/", *"kite")
    browser.until(lambda: browser.all("#results article"))
    assert "The kite is <b>green</b>" in browser.one("#results article").text
    assert browser.all("#results meter")


# --- accessibility ----------------------------------------------------------------------------------------------------


@pytest.mark.sampled
def test_every_control_has_a_name_and_a_visible_focus(browser: Browser) -> None:
    for target in pages(browser.server.memory)[:: 1 if TORTURE else 3]:
        browser.go(target)
        browser.js("for (const each of document.querySelectorAll('details')) each.open = true")
        used = [*browser.all("main a")[:3], *browser.all("button, input:not([type=hidden]), select, textarea")]
        assert [
            one.get_attribute("outerHTML")[:90] for one in used if one.is_displayed() and not one.accessible_name
        ] == []
        assert len(browser.all("nav a[aria-current=page]")) == 1
    browser.go("/")
    plain = 0
    for _ in range(12):
        browser.press(Keys.TAB)
        outline = browser.js(
            "const here = document.activeElement;"
            "return here === document.body || getComputedStyle(here).outlineStyle !== 'none'"
        )
        plain += not outline
    assert plain == 0


def test_every_page_works_without_a_script(browser: Browser) -> None:
    run = of(browser.server.memory, "forecaster")
    step = run.steps[-1]
    browser.chrome.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.go("/")
        browser.one("tr[data-href] a").click()
        assert browser.one("#step-detail h2").text
        browser.go(f"/runs/{run.id}")
        browser.all("#step-list a")[-1].click()
        assert step.reference in browser.one("#step-detail .facts").text.splitlines()
        browser.go("/")
        browser.one("[name=text]").send_keys("warehouse", Keys.ENTER)
        browser.until(lambda: len(browser.all("tr[data-href]")) == 1)
    finally:
        browser.chrome.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
        browser.go("/")


def test_all_resources_come_from_this_server(browser: Browser) -> None:
    browser.go("/")
    names = browser.js("return performance.getEntriesByType('resource').map((one) => one.name)")
    assert names
    assert [name for name in names if not str(name).startswith(browser.server.base)] == []
    assert Path(str(CHROMIUM)).exists()
