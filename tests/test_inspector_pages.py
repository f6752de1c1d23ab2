"""What the inspector's pages say: the timeline of a run, sums, the dashboard, filters, comparisons and search results.

Skipped where Chromium is not installed (`apt install chromium chromium-driver`). All tests share one browser and read
one memory; the tests that write have a copy. Screenshots are written to the folder that SMOLMEM_SCREENSHOTS names.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import programs
import pytest
import uvicorn
from chromium import browsing, needs_browser
from scripted import Scripted, code, code_agent
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select, WebDriverWait
from smolagents import CodeAgent, tool

from smolmem import Memory
from smolmem.cli import sample
from smolmem.core import prices
from smolmem.core.errors import InvalidArgument
from smolmem.core.smolagents_texts import managed_task
from smolmem.core.totals import Totals
from smolmem.core.values import Run
from smolmem.inspector import charts, comparison, dashboard, formatting, page_data, run_list, step_data
from smolmem.inspector import waterfall as waterfall_module
from smolmem.inspector.app import make_app, templates
from smolmem.inspector.guard import new_access
from smolmem.inspector.serve import link_of
from smolmem.inspector.waterfall import Row, Span, Waterfall, time_axis, waterfall
from smolmem.listening import hosts_of, listen

ROOT = Path(__file__).parent.parent
AXE = ROOT / ".venv" / "axe" / "package" / "axe.min.js"
PRICES = {"scripted": [2.0, 10.0]}
KILLED_AFTER = 2
TORTURE = bool(os.environ.get("SMOLMEM_TORTURE"))
SCREENS = [(width, theme) for width in (390, 1400) for theme in ("light", "dark")]
SOME_SCREENS = SCREENS if TORTURE else [(390, "dark"), (1400, "light")]
"""A browser takes seconds for a page: each is shown in both widths and both themes, in all four under torture."""

# --- a memory in which everything has happened ------------------------------------------------------------------------

_WORK = f"""
import sys, time, workers
def done(number):
    print(number, flush=True)
    if number == {KILLED_AFTER}:
        time.sleep(60)
workers.record(sys.argv[1], "resilient", 5, done)
"""


def kill_and_resume(path: Path) -> None:
    """An agent whose process is killed in the middle; another process resumes the run."""
    working = programs.start(["-c", _WORK, path])
    assert working.stdout is not None
    while int(working.stdout.readline()) < KILLED_AFTER:
        pass
    working.send_signal(signal.SIGKILL)
    working.communicate()
    with Memory(path, embedder="off") as memory:
        script = [code(f"print('resilient', {i})") for i in range(KILLED_AFTER + 1, 5)]
        agent = code_agent(*script, code("final_answer(0)"), name="resilient", description="d", max_steps=6)
        memory.resume(agent)


@tool
def slow_lookup(word: str) -> str:
    """Looks a word up, slowly.

    Args:
        word: the word
    """
    time.sleep(0.12)
    return f"{word}: found"


def talk(memory: Memory) -> None:
    """Two runs of one conversation, with a model and a tool that take their time."""

    def thinks(body: str) -> Any:
        def reply(_: Any) -> str:
            time.sleep(0.06)
            return code(body)

        return reply

    script = [thinks("print(slow_lookup(word='tea'))"), thinks("final_answer('tea')"), thinks("final_answer('milk')")]
    agent = CodeAgent(
        tools=[slow_lookup], model=Scripted(*script), name="waiter", description="waits", verbosity_level=0
    )
    memory.attach(agent)
    agent.run("What do I drink?")
    agent.run("And with what?", reset=False)
    memory.detach(agent)


@pytest.fixture(scope="module", autouse=True)
def priced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    path = tmp_path_factory.mktemp("prices") / "prices.json"
    path.write_text(json.dumps(PRICES))
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(prices.VARIABLE, str(path))
        yield


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pages") / "work.db"
    sample.fill(path)
    kill_and_resume(path)
    with Memory(path, embedder="off") as memory:
        talk(memory)
        step = next(step for step in of(memory, "browser").steps if step.number == 2)
        step.edit(observations="Opened page 2: Bowls, sold out.")
    return path


@pytest.fixture(scope="module")
def shown(recorded: Path) -> Iterator[Memory]:
    """For tests that only read."""
    with Memory(recorded, embedder="off") as memory:
        yield memory


@pytest.fixture
def copy(recorded: Path, path: Path) -> Iterator[Memory]:
    """For tests that write."""
    shutil.copy(recorded, path)
    with Memory(path, embedder="off") as memory:
        yield memory


def of(memory: Memory, agent: str, *, fork: bool = False) -> Any:
    return next(run for run in memory.runs(scope="*", agent=agent) if (run.fork_of is not None) == fork)


# --- the browser ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with browsing(tmp_path_factory.mktemp("chromium"), "--hide-scrollbars") as driver:
        yield driver


@contextmanager
def serving(memory: Memory) -> Iterator[str]:
    """A server; yields the link that opens it."""
    with listen("127.0.0.1", 0, strict=True) as listening:
        port = listening.getsockname()[1]
        access = new_access(hosts_of("127.0.0.1", port), read_only=False)
        server = uvicorn.Server(uvicorn.Config(make_app(memory, access), log_level="warning", access_log=False))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield link_of("127.0.0.1", port, access)
        finally:
            server.should_exit = True
            thread.join()


_HAS_STYLES = """
    return !document.querySelector('link[rel=stylesheet]') || [...document.styleSheets].some((sheet) => sheet.href)
"""


class Browser:
    def __init__(self, chrome: Any, link: str) -> None:
        self.chrome, self.base = chrome, link.partition("/?")[0]
        chrome.get(link)

    def go(self, target: str, width: int = 1400, theme: str = "light") -> None:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        media = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
        self.chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        self.chrome.get(f"{self.base}{target}")
        end = time.monotonic() + 10
        while not self.chrome.execute_script(_HAS_STYLES):  # a busy browser applies them late
            assert time.monotonic() < end, f"{target} has no style sheet"
            time.sleep(0.02)

    def one(self, found: str) -> Any:
        return self.chrome.find_element(By.CSS_SELECTOR, found)

    def texts(self, found: str) -> list[str]:
        return [element.text for element in self.chrome.find_elements(By.CSS_SELECTOR, found)]

    def count(self, found: str) -> int:
        return len(self.chrome.find_elements(By.CSS_SELECTOR, found))

    def until(self, true: Any) -> None:
        """Waits; an element that the page replaces while it is looked at is looked for again."""
        replaced = (NoSuchElementException, StaleElementReferenceException)
        WebDriverWait(self.chrome, 20, 0.03, ignored_exceptions=replaced).until(lambda _: true())

    @property
    def path(self) -> str:
        return str(self.chrome.execute_script("return location.pathname + location.search"))


@pytest.fixture(scope="module")
def browser(chrome: Any, shown: Memory) -> Iterator[Browser]:
    with serving(shown) as link:
        yield Browser(chrome, link)


def pages(memory: Memory) -> dict[str, str]:
    """Every kind of page."""
    fork = of(memory, "forecaster", fork=True)
    named = {name: f"/runs/{of(memory, name).id}" for name in ("resilient", "researcher", "browser")}
    return named | {
        "fork": f"/runs/{fork.id}",
        "runs": "/?sort=tokens&since=24h",
        "dashboard": "/dashboard?period=24h",
        "memory": "/memory?q=no+such+column",
        "note": f"/notes/{memory.notes(scope='*')[0].id}",
        "compare": "/compare",
        "compared": f"/compare?left={fork.fork_of}&right={fork.id}",
        "alerts": "/alerts?rule=pattern&pattern=health&threshold=2&window=5",
        "error": "/runs/zz",
    }


# --- a run over time --------------------------------------------------------------------------------------------------


def test_a_kill_and_the_resume_after_it_stand_between_the_steps_where_they_happened(shown: Memory) -> None:
    rows = waterfall(shown, of(shown, "resilient")).rows
    order = [row.mark.kind if row.mark else row.step and (row.step.number or row.step.kind) for row in rows]
    assert order == ["task", 1, 2, "killed", "resumed", 3, 4, 5]
    killed, resumed = (row.mark for row in rows if row.mark)
    assert killed is not None
    assert resumed is not None
    second, third = (row for row in rows if row.step is not None and row.step.number in (2, 3))
    assert second.ended <= killed.at < resumed.at < third.ended


def test_a_kill_in_the_middle_of_a_step_is_after_its_last_recorded_call_and_the_idle_week_is_no_work() -> None:
    week = 7 * 86_400.0
    run = cast(Run, SimpleNamespace(model="", began=datetime.fromtimestamp(1_000)))
    kept = {"run": "", "kind": "action", "tools": [], "removed": False, "text": "", "error": None, "revision": 0}
    step = page_data.StepSummary(**kept, id=4, number=4, at=week + 1_010, seconds=0.5, input_tokens=0, output_tokens=0)
    spans = [Span("model", "", 1_001, 1_003, False), Span("tool", "restart", week + 1_009, week + 1_010, False)]
    row = waterfall_module._step_row(run, step, spans, 0)
    killed, resumed = waterfall_module._kill_and_resume(run, [(row.intervals, step)], week + 1_005, "another process")
    assert (killed.at, resumed.at) == (1_003, week + 1_005)
    assert "in the middle of step 4. The run was resumed 168.0 h later" in killed.text
    axis = time_axis(row.intervals)
    assert [began for began, _ in axis.gaps] == [1_003], "the process did not work on the step for a week"
    shown = Waterfall([row], axis, [killed, resumed], Totals())
    drawn: Any = templates().get_template("_charts.html").module
    assert "No process worked on the run for 168.0 h." in drawn.overview(shown, charts.ticks([row], axis))
    assert drawn.row_bar(row, axis).count('class="whole"') == 2


def test_the_list_and_the_page_of_a_team_count_the_same_steps(shown: Memory) -> None:
    manager, helper = of(shown, "researcher"), of(shown, "librarian")
    listed = run_list.list_runs(shown, {"agent": "researcher"}).groups[0].runs[0]
    page = waterfall(shown, manager)
    assert listed.totals.steps == page.totals.steps == manager.step_count + helper.step_count
    assert listed.totals.failed == page.totals.failed == manager.error_count + helper.error_count


def test_the_list_marks_runs_that_were_killed_and_resumed(shown: Memory) -> None:
    listed = {each.run.agent: each for group in run_list.list_runs(shown, {}).groups for each in group.runs}
    assert (listed["resilient"].resumed, listed["resilient"].alerts) == (1, 0)
    assert (listed["monitor"].resumed, listed["reader"].resumed) == (0, 0)


@needs_browser
def test_the_page_of_a_resumed_run_draws_the_kill_and_the_resume(browser: Browser, shown: Memory) -> None:
    browser.go(pages(shown)["resilient"])
    assert [text[0] for text in browser.texts(".mark-row")] == ["✕", "↻"]
    assert browser.count("svg.overview rect.down") == 1
    assert "killed here" in browser.texts(".mark-row")[0]
    places = [
        float(browser.one(f"svg.overview .{kind} line").get_attribute("x1").rstrip("%"))
        for kind in ("killed", "resumed")
    ]
    assert 0 < places[0] < places[1] < 100


def test_the_time_of_the_model_and_of_tools_are_told_apart(shown: Memory) -> None:
    first = min(shown.runs(scope="*", agent="waiter"), key=lambda run: run.began)
    found = waterfall(shown, first)
    assert 0.12 <= found.totals.model_seconds < first.seconds
    assert 0.12 <= found.totals.tool_seconds < first.seconds
    step = next(row for row in found.rows if row.step is not None and row.step.number == 1)
    assert [span.kind for span in step.spans] == ["model", "tool"]
    assert 0.06 <= step.totals.model_seconds <= step.seconds
    assert 0.12 <= step.totals.tool_seconds <= step.seconds


@needs_browser
def test_called_agents_are_a_tree_below_the_step_that_called_them_with_all_sums(
    browser: Browser, shown: Memory
) -> None:
    manager, helper = of(shown, "researcher"), of(shown, "librarian")
    browser.go(f"/runs/{manager.id}")
    rows = [
        (element.get_attribute("class").split()[0], element.find_element(By.TAG_NAME, "b").text)
        for element in browser.chrome.find_elements(By.CSS_SELECTOR, "#step-list li")
    ]
    assert [name for name, _ in rows].index("run-row") == 3, "below task, plan and the first step"
    assert rows[3] == ("run-row", "librarian")
    assert [name for name, _ in rows].count("depth-2") == helper.step_count + 1
    figures = dict(zip(browser.texts(".run-head dt"), browser.texts(".run-head dd"), strict=True))
    tokens = manager.input_tokens + helper.input_tokens, manager.output_tokens + helper.output_tokens
    assert figures["tokens in"] == f"{tokens[0]:,}"
    assert figures["steps"] == str(manager.step_count + helper.step_count)
    assert figures["cost"] == f"${(tokens[0] * 2 + tokens[1] * 10) / 1e6:.4f}"
    child = browser.one("#step-list .depth-2 a[data-kind=action]")
    child.click()
    browser.until(lambda: "Step of the managed agent librarian" in browser.one("#step-detail").text)
    assert f"/runs/{helper.id}/fork" in browser.one("#step-detail").get_attribute("innerHTML")


def test_the_time_of_a_called_agent_is_counted_once(shown: Memory) -> None:
    manager = of(shown, "researcher")
    found = waterfall(shown, manager)
    caller = next(row for row in found.rows if row.step is not None and row.step.number == 1 and row.depth == 0)
    assert [span.kind for span in caller.spans] == ["model", "agent"]
    assert caller.totals.tool_seconds == 0
    assert found.totals.model_seconds + found.totals.tool_seconds <= (manager.seconds or 0)


def test_the_title_of_a_called_agent_is_its_task(shown: Memory) -> None:
    listed = run_list.list_runs(shown, {"agent": "researcher"})
    (called,) = listed.groups[0].runs[0].called
    assert managed_task(called.run.title) == "What is SQLite?"
    assert managed_task("--- Task: is what a user wrote ---") == "--- Task: is what a user wrote ---"
    assert managed_task("Do it") == "Do it"


@pytest.mark.parametrize(
    ("agent", "fork", "kind"),
    [
        ("forecaster", False, "fork"),
        ("forecaster", True, "forked"),
        ("browser", False, "edited"),
        ("browser", False, "trimmed"),
        ("monitor", False, "recalled"),
        ("counter", False, "failed"),
        ("reader", False, "interrupted"),
    ],
)
def test_what_happened_to_a_run_is_marked(shown: Memory, agent: str, fork: bool, kind: str) -> None:
    runs = [run for run in shown.runs(scope="*", agent=agent) if (run.fork_of is not None) == fork]
    marks = [mark for run in runs for mark in waterfall(shown, run).marks]
    assert kind in {mark.kind for mark in marks}


def test_an_alert_is_marked_at_its_step(shown: Memory) -> None:
    run = next(run for run in shown.runs(scope="*", agent="monitor") if run.step_count == 5)
    row = next(row for row in waterfall(shown, run).rows if any(mark.kind == "alert" for mark in row.marks))
    assert row.step is not None
    assert row.step.number == 3


def test_recording_a_step_is_no_edit(shown: Memory) -> None:
    marks = [mark.kind for run in shown.runs(scope="*") for mark in waterfall(shown, run).marks]
    assert marks.count("edited") == 1


def test_long_idle_times_are_short_on_the_axis() -> None:
    week = 7 * 86_400.0
    axis = time_axis([(0, 10), (10, 20), (week, week + 20)])
    assert [ended - began for began, ended in axis.gaps] == [week - 20]
    assert 45 < axis.place(20) < axis.place(week) < 55
    assert (axis.place(-5), axis.place(0), axis.place(week + 20), axis.place(week * 2)) == (0, 0, 100, 100)
    assert time_axis([(0, 10), (10.5, 20)]).gaps == []
    assert time_axis([]).place(3) == 0
    assert time_axis([(5, 5)]).place(5) == 0


@pytest.mark.parametrize("seconds", [0.004, 0.163, 0.999, 2.4, 59, 731, 90_000, 40_000_000])
def test_the_ticks_of_the_axis_are_round_and_do_not_touch(seconds: float) -> None:
    row = cast(Row, SimpleNamespace(began=100.0, ended=100.0 + seconds))
    axis = time_axis([(100.0, 100.0 + seconds)])
    ticks = [at for at, _ in charts.ticks([row], axis)]
    places = [axis.place(at) for at in ticks]
    assert (places[0], places[-1]) == (0, 100)
    assert all(after - before > 10 for before, after in pairwise(places))
    assert 2 <= len(ticks) <= charts.MAX_TICKS + 1
    for tick in ticks[1:-1]:
        assert re.fullmatch(r"(\d{1,2}0{0,2}|\d{1,2}\.[05]) (ms|s|min|h)", formatting.seconds(tick - 100.0)), tick


def test_a_fork_shows_the_times_of_the_steps_that_it_shares(shown: Memory) -> None:
    fork = of(shown, "forecaster", fork=True)
    rows = waterfall(shown, fork).rows
    shared = [row for row in rows if row.step is not None and row.step.kind == "action" and row.step.run != fork.id]
    assert len(shared) == 3
    assert all([span.kind for span in row.spans].count("model") == 1 for row in shared)
    assert not [row for row in rows if row.kind == "unfinished"], "calls after the fork belong to the origin"


@needs_browser
def test_the_legend_names_each_kind_of_mark_once_and_links_in_marks_are_readable(chrome: Any, copy: Memory) -> None:
    origin = of(copy, "forecaster")
    origin.fork(step=1)
    forked = origin.fork(step=2)
    with serving(copy) as link:
        browser = Browser(chrome, link)
        browser.go(f"/runs/{origin.id}")
        legend = browser.texts(".legend .mark")
        assert len(legend) == len(set(legend)) < len(waterfall(copy, origin).marks)
        browser.go(f"/runs/{forked.id}")
        row = browser.one(".mark-row.forked")
        assert row.size["height"] < 60, "the link of a mark flows as text"


_TOPS_OF_CAPTIONS = """
return [...document.querySelectorAll(".spread")].map((row) => [...row.children].map((part) => part.offsetTop))
"""


@needs_browser
def test_the_times_below_a_chart_stay_on_one_line_beside_a_long_legend(chrome: Any, copy: Memory) -> None:
    with serving(copy) as link:
        browser = Browser(chrome, link)
        for width in (1_000, 1_300, 1_400):
            browser.go("/dashboard?period=24h", width)
            captions = chrome.execute_script(_TOPS_OF_CAPTIONS)
            assert len(captions) == 4
            assert all(first == last < legend for first, legend, last in captions), (width, captions)


# --- one step ---------------------------------------------------------------------------------------------------------


def test_code_is_shown_once(shown: Memory) -> None:
    step = next(step for step in of(shown, "forecaster").steps if step.number == 1)
    sections = step_data.step_detail(shown, step.id).sections
    assert sum("sales = [120" in section.text for section in sections) == 1
    assert [section.title for section in sections] == ["Model output", "Code", "Observation"]
    assert sections[0].text == "I load the sales of the last weeks."


def test_code_that_was_run_differently_is_shown_as_the_model_wrote_it() -> None:
    assert step_data._without_code("Thought: x\n```py\nprint(1)\n```", "print(1)") == "x"
    assert step_data._without_code("a <code>print(1)</code> b", "print(1)") == "a\n\nb"
    assert step_data._without_code("say <code>print(1)</code>", "print(2)") == "say <code>print(1)</code>"


def test_a_call_stands_above_what_came_back(shown: Memory) -> None:
    step = next(step for step in of(shown, "monitor").steps if step.number == 1)
    titles = [section.title for section in step_data.step_detail(shown, step.id).sections]
    assert titles == ["Model output", "Call: check_health", "Observation"]


@needs_browser
def test_a_tag_is_added_and_removed_on_the_page_of_a_run(chrome: Any, copy: Memory) -> None:
    run = of(copy, "browser")
    with serving(copy) as link:
        browser = Browser(chrome, link)
        browser.go(f"/runs/{run.id}")
        browser.one(".add-tag summary").click()
        browser.one(".add-tag input").send_keys("release 41\n")
        browser.until(lambda: browser.texts(".facts .tag a") == ["#release 41"])
        assert [each.id for each in copy.runs(tag="release 41")] == [run.id]
        browser.one("[aria-label='Remove the tag release 41']").click()
        browser.until(lambda: not browser.count(".facts .tag"))
    assert copy.run(run.id).tags == ()


@needs_browser
def test_an_edit_is_undone_with_an_earlier_version(chrome: Any, copy: Memory) -> None:
    run = of(copy, "browser")
    step = next(step for step in run.steps if step.number == 2)
    with serving(copy) as link:
        browser = Browser(chrome, link)
        browser.go(f"/runs/{run.id}?step={step.id}")
        next(each for each in chrome.find_elements(By.CSS_SELECTOR, "summary") if "2 versions" in each.text).click()
        browser.until(lambda: browser.count("form[action$='/restore']"))
        chrome.find_element(By.CSS_SELECTOR, "#step-detail .lazy[open] details summary").click()
        chrome.find_element(By.CSS_SELECTOR, "form[action$='/restore'] button").click()
        browser.until(lambda: "3 versions" in browser.one("#step-detail").text)
        assert "21 offers" not in browser.path
    assert copy.step(step.id).to_smolagents().observations.startswith("Opened page 2: Bowls, 22 offers:")


# --- the list of runs -------------------------------------------------------------------------------------------------


@needs_browser
def test_filters_and_order_are_in_the_address_and_survive_a_reload(browser: Browser, shown: Memory) -> None:
    browser.go("/")
    everything = browser.count("tr[data-href]")
    Select(browser.one("select[name=tool]")).select_by_value("open_page")
    browser.until(lambda: browser.count("tr[data-href]") == 1)
    assert "tool=open_page" in browser.path
    Select(browser.one("select[name=tool]")).select_by_value("")
    Select(browser.one("select[name=sort]")).select_by_value("steps")
    browser.until(lambda: browser.count("tr[data-href]") == everything and "sort=steps" in browser.path)
    browser.chrome.refresh()
    assert Select(browser.one("select[name=sort]")).first_selected_option.text == "most steps first"
    most = max(shown.runs(scope="*"), key=lambda run: run.step_count)
    assert browser.one("tr[data-href]").get_attribute("data-href") == f"/runs/{most.id}"
    browser.one("thead th:last-child a").click()
    browser.until(lambda: "sort" not in browser.path)


@pytest.mark.parametrize(
    ("query", "agents"),
    [
        ({"model": "scripted-1"}, {"resilient", "waiter"}),
        ({"tool": "slow_lookup"}, {"waiter"}),
        ({"status": "failed"}, {"counter"}),
        ({"since": "1h", "text": "mugs"}, {"forecaster"}),
        ({"since": "2999-01-01"}, set()),
    ],
)
def test_runs_are_filtered_by_model_tool_status_and_time(
    shown: Memory, query: dict[str, str], agents: set[str]
) -> None:
    found = run_list.list_runs(shown, query)
    assert {each.run.agent for group in found.groups for each in group.runs} == agents
    assert found.filtered


@pytest.mark.parametrize("order", [order for order in run_list.ORDERS if order not in ("newest", "oldest")])
def test_each_order_sorts_by_what_its_name_says(shown: Memory, order: str) -> None:
    def rank(run: Any) -> float:
        figures = {"duration": run.seconds or 0, "tokens": run.input_tokens + run.output_tokens}
        return float((figures | {"steps": run.step_count, "errors": run.error_count})[order])

    found = [each.run for group in run_list.list_runs(shown, {"sort": order}).groups for each in group.runs]
    ranks = [rank(run) for run in found]
    assert ranks == sorted(ranks, reverse=True)
    assert len(set(ranks)) > 1


@pytest.mark.parametrize("query", [{"sort": "mood"}, {"status": "lost"}, {"since": "soon"}])
def test_an_address_that_asks_for_what_there_is_not_is_refused_in_a_sentence(
    shown: Memory, query: dict[str, str]
) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(query.values()))):
        run_list.list_runs(shown, query)


@needs_browser
def test_runs_of_one_conversation_stand_together_with_their_sum(browser: Browser, shown: Memory) -> None:
    browser.go("/")
    (head,) = [text for text in browser.texts("tr.session") if "2 runs" in text]
    runs = shown.runs(scope="*", agent="waiter")
    assert f"{sum(run.input_tokens + run.output_tokens for run in runs):,}" in head
    browser.one("tr.session a").click()
    assert browser.count("tr[data-href]") == 2
    assert f"session={runs[0].session}" in browser.path


def test_the_newest_runs_are_found_by_the_index_of_time(shown: Memory) -> None:
    """The list must not read every run of a large file."""
    store: Any = shown._journal.store
    text = re.sub(r":\w+", "NULL", store._statements["find_runs"])
    plan = [row[3] for row in store._connection.execute(f"EXPLAIN QUERY PLAN {text}")]
    assert any("run_by_time" in line for line in plan)
    assert not any("TEMP B-TREE FOR ORDER BY" in line for line in plan[:1])


# --- dashboard and cost -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("period", dashboard.PERIODS)
def test_the_dashboard_adds_up_what_the_runs_say(shown: Memory, period: str) -> None:
    found = dashboard.dashboard(shown, {"period": period})
    runs = shown.runs(scope="*")
    assert found.total.runs == len(runs) == sum(bucket.figures.runs for bucket in found.buckets)
    assert found.total.failed == 1
    assert found.total.input_tokens == sum(run.input_tokens for run in runs)
    assert found.total.dollars == pytest.approx(
        sum((run.input_tokens * 2 + run.output_tokens * 10) / 1e6 for run in runs)
    )
    assert sum(figures.tokens for _, figures in found.agents) == found.total.tokens
    assert dashboard.FEWEST_BUCKETS <= len(found.buckets) <= dashboard.MOST_BUCKETS
    busy = [bucket for bucket in found.buckets if bucket.figures.runs]
    assert busy[0].began.timestamp() <= min(run.began.timestamp() for run in runs)


@pytest.mark.parametrize("period", dashboard.PERIODS)
@pytest.mark.parametrize("age", [10, 3_000, 50_000, 600_000, 5_000_000, 400_000_000])
def test_the_charts_begin_with_the_first_run_and_end_now(period: str, age: float) -> None:
    """A memory of ten minutes fills the charts of a month, too."""
    now = datetime.now().astimezone()
    first = SimpleNamespace(rows=lambda name, values: [{"began": now.timestamp() - age}])
    young = cast(Memory, SimpleNamespace(_journal=SimpleNamespace(store=first)))
    began, width, count = dashboard._buckets(young, period, now)
    assert dashboard.FEWEST_BUCKETS <= count <= dashboard.MOST_BUCKETS
    assert now < began + width * count <= now + max(width, timedelta(days=1))
    shown_age = min(timedelta(seconds=age), dashboard.PERIOD_LENGTHS.get(period, timedelta(seconds=age)))
    assert began <= now - shown_age
    assert width * (count - 1) <= shown_age + max(width * dashboard.FEWEST_BUCKETS, timedelta(days=1))


def test_the_dashboard_counts_tools_and_errors(shown: Memory) -> None:
    found = dashboard.dashboard(shown, {})
    tools = {tool["name"]: tool["calls"] for tool in found.tools}
    assert (tools["open_page"], tools["check_health"], tools["slow_lookup"]) == (13, 4, 1)
    assert ("AgentExecutionError", "ZeroDivisionError: division by zero") in [
        (error.error, error.message) for error in found.errors
    ]
    assert dashboard.dashboard(shown, {"scope": "elsewhere"}).total.runs == 0


@needs_browser
def test_the_dashboard_needs_no_script_and_leads_to_the_runs(browser: Browser) -> None:
    browser.chrome.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.go("/dashboard?period=24h")
        assert browser.count("svg.columns") == 4
        assert browser.count("svg.columns rect") >= 4
        browser.one("a[href='/?tool=open_page']").click()
        browser.until(lambda: browser.count("tr[data-href]") == 1)
        browser.go("/dashboard")
        Select(browser.one("select[name=period]")).select_by_value("all")
        browser.one("form button").click()
        browser.until(lambda: "period=all" in browser.chrome.current_url)
    finally:
        browser.chrome.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("gpt-4o-2024-11-20", 12.5),
        ("gpt-4o-mini", 0.75),
        ("openai/gpt-4o", 12.5),
        ("scripted-1", 12.0),
        ("qwen3:4b", None),
        ("", None),
    ],
)
def test_the_longest_prefix_of_a_models_name_has_its_price(model: str, expected: float | None) -> None:
    found = prices.cost(model, 1_000_000, 1_000_000)
    assert found == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize("text", ["{", "[1]", '{"x": 1}', '{"x": [1]}', '{"x": [1, "y"]}', '{"x": [1, -1]}'])
def test_a_file_of_prices_that_cannot_be_read_is_reported(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "prices.json"
    monkeypatch.setenv(prices.VARIABLE, str(path))
    with pytest.raises(InvalidArgument, match="cannot be read"):
        prices.prices()
    path.write_text(text)
    with pytest.raises(InvalidArgument, match=r"SMOLMEM_PRICES names .*prices\.json.*, which is not a JSON file"):
        prices.prices()


# --- compare and search -----------------------------------------------------------------------------------------------


def test_words_that_differ_are_marked_and_nothing_else() -> None:
    left, right = comparison.compare_words("the trend of three weeks", "the average of three days")
    assert [text for text, differs in left if differs] == ["trend", "weeks"]
    assert [text for text, differs in right if differs] == ["average", "days"]
    assert "".join(text for text, _ in left) == "the trend of three weeks"


def test_steps_are_aligned_although_one_run_has_a_step_more(memory: Memory) -> None:
    bodies = ["x = 1", "x += 1", "print(x)", "final_answer(x)"]
    for chosen in (bodies, [bodies[0], *bodies[2:]]):
        agent = memory.attach(code_agent(*map(code, chosen), name="adder", description="adds"))
        agent.run("Add")
        memory.detach(agent)
    right, left = memory.runs()
    found = comparison.compare(memory, left, right)
    assert found.differs
    (missing,) = [line for line in found.lines if line.left is not None and line.right is None]
    assert missing.left is not None
    assert "x += 1" in missing.left.step.text
    (suggested,) = comparison.suggestions(memory)
    assert (suggested.left.id, suggested.right.id, suggested.reason) == (left.id, right.id, "the same task, twice")


@needs_browser
def test_the_compare_page_suggests_a_run_and_its_fork_and_marks_the_difference(browser: Browser, shown: Memory) -> None:
    fork = of(shown, "forecaster", fork=True)
    browser.go("/compare")
    browser.one(f".suggestions a[href='/compare?left={fork.fork_of}&right={fork.id}']").click()
    assert "4 equal steps" in browser.texts(".same")
    assert {"That", "232", "160"} <= set(browser.texts(".sides mark"))
    assert "final_answer" not in " ".join(browser.texts(".sides mark"))
    assert browser.texts("pre.answer") == ["About 232 next week", "About 160 next week"]
    browser.go(f"/compare?left={fork.id}")
    assert "the run that this one was forked from" in browser.one(".suggestions").text


@needs_browser
def test_a_search_marks_the_words_of_the_question_here_and_in_the_step_that_it_leads_to(browser: Browser) -> None:
    browser.go("/memory?q=currency+column")
    assert {text.lower() for text in browser.texts("#results mark")} >= {"currency", "column"}
    browser.one("#results a[href^='/runs/']").click()
    browser.until(lambda: browser.path.startswith("/runs/"))
    assert {text.lower() for text in browser.texts("#step-detail mark")} >= {"currency", "column"}


# --- access -----------------------------------------------------------------------------------------------------------


@contextmanager
def started(path: Path, *options: str) -> Iterator[Any]:
    words = ["ui", "--db", str(path), "--no-browser", *options]
    program = f"import sys; from smolmem.cli.main import main; sys.exit(main({words!r}))"
    process = programs.start(["-c", program])
    try:
        yield process
    finally:
        process.terminate()
        process.communicate()


def next_link(process: Any) -> str:
    for line in process.stdout:
        found = re.search(r"http://\S+", line)
        if found:
            return found[0]
    raise AssertionError("no link was printed")


def test_a_used_link_is_followed_by_the_next_one_in_the_terminal(recorded: Path, path: Path) -> None:
    shutil.copy(recorded, path)
    with started(path) as process:
        link = next_link(process)
        with httpx.Client(follow_redirects=True) as first, httpx.Client(follow_redirects=True) as second:
            assert first.head(link).status_code == 403, "a preview of the link does not use it up"
            assert first.get(link).status_code == 200
            assert first.get(link).status_code == 200, "the browser that has the cookie may open it again"
            refused = second.get(link)
            assert refused.status_code == 403
            assert "newest link in the terminal" in refused.text
            another = next_link(process)
            assert another != link
            assert second.get(another).status_code == 200


def test_a_link_with_a_token_of_ones_own_opens_again_also_after_a_restart(recorded: Path, path: Path) -> None:
    shutil.copy(recorded, path)
    token = "a-token-of-my-own-0123"
    port = ""
    with httpx.Client(follow_redirects=True) as first:
        for number in range(2):
            with started(path, "--token", token, *(["--port", port] if port else [])) as process:
                link = next_link(process)
                port = link.partition("/?")[0].rpartition(":")[2]
                assert token in link
                if number:
                    assert first.get(link.partition("/?")[0]).status_code == 200, "the cookie is still good"
                for _ in range(2):
                    with httpx.Client(follow_redirects=True) as other:
                        assert other.get(link).status_code == 200
                assert first.get(link).status_code == 200


def test_a_token_that_can_be_guessed_is_refused() -> None:
    for token in ("short", "with spaces in it, but long", ""):
        with pytest.raises(InvalidArgument, match="a token has at least 16"):
            new_access(frozenset({"localhost:1"}), read_only=False, token=token)


# --- for everyone -----------------------------------------------------------------------------------------------------

_AXE = """
const done = arguments[arguments.length - 1];
axe.run(document, {resultTypes: ['violations']}).then(
    (found) => done(found.violations.map(
        (one) => [one.impact, one.id, one.nodes.slice(0, 3).map((node) => node.html)])),
    (error) => done([['failed', String(error), []]]));
"""


@needs_browser
@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not there")
@pytest.mark.sampled
@pytest.mark.parametrize(("width", "theme"), SOME_SCREENS)
def test_axe_finds_nothing_serious_on_any_page(browser: Browser, shown: Memory, width: int, theme: str) -> None:
    """On all pages and screens under torture; otherwise half of the pages on one screen, the others on another one."""
    source, wrong = AXE.read_text(encoding="utf-8"), {}
    some = slice(None) if TORTURE else slice(width == 390, None, 2)
    for name, target in list(pages(shown).items())[some]:
        browser.go(target, width, theme)
        browser.chrome.execute_script("for (const each of document.querySelectorAll('details')) each.open = true")
        browser.chrome.execute_script(source)
        found = browser.chrome.execute_async_script(_AXE)
        serious = [each for each in found if each[0] not in ("minor", "moderate")]
        if serious:
            wrong[name] = serious
    assert wrong == {}


@pytest.fixture(scope="module")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(os.environ.get("SMOLMEM_SCREENSHOTS") or tmp_path_factory.mktemp("screenshots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@needs_browser
@pytest.mark.sampled
@pytest.mark.parametrize(("width", "theme"), SOME_SCREENS)
def test_every_page_fits_the_screen_and_a_picture_of_it_is_kept(
    browser: Browser, shown: Memory, screenshots: Path, width: int, theme: str
) -> None:
    """On all pages and screens under torture; otherwise all pages on a narrow screen, and every third on a wide one."""
    wide = {}
    for name, target in list(pages(shown).items())[:: 1 if TORTURE or width == 390 else 3]:
        browser.go(target, width, theme)
        size = browser.chrome.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
        if size[0] > size[1]:
            wide[name] = size
        assert browser.chrome.save_screenshot(str(screenshots / f"{name}-{width}-{theme}.png"))
    assert wide == {}
