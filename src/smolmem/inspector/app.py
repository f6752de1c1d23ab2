"""The web application: pages (GET) and actions (POST), each a few lines from a request to the memory and back.

Every page is rendered completely on the server and works without JavaScript. The script only makes pages faster: it
fetches the part of a page that changed (`fragment=1`), and one step at a time.
"""

from __future__ import annotations

import io
import json
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from smolmem.core.errors import InvalidArgument, NotFound, SmolmemError, StoreError
from smolmem.core.rows import STATUSES
from smolmem.core.smolagents_texts import managed_task
from smolmem.core.values import Recollection, Run
from smolmem.inspector import (
    charts,
    comparison,
    dashboard,
    formatting,
    page_data,
    parameters,
    run_list,
    step_data,
)
from smolmem.inspector.guard import Access, guard
from smolmem.inspector.waterfall import waterfall
from smolmem.memory import Memory
from smolmem.recall.query import words
from smolmem.render.plain_values import whole

log = logging.getLogger("smolmem")

HERE = Path(__file__).parent
MAX_PICTURE_SIDE = 1600
"""The maximum width and height of a picture; larger pictures are scaled down."""
CLOSEST = 3
"""How many results are shown if nothing fits well."""
COMPARABLE = 100
"""How many of the newest runs the page offers for comparison."""
BACKTEST_STEPS = 20_000
"""How many of the newest steps a rule is tested on."""


def templates() -> Environment:
    """The templates, with the filters that they use."""
    loader = FileSystemLoader(HERE / "templates")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters.update(formatting.FILTERS)
    environment.globals["rect"] = charts.rect
    return environment


class Inspector:
    """The pages and actions of one memory."""

    def __init__(self, memory: Memory, access: Access) -> None:
        self.note_scope = memory.scope
        self.memory = memory.scoped("*")
        self._templates = templates()
        url = memory._store.url
        self._templates.globals.update(
            file=Path(url).name,
            url=url,
            read_only=access.read_only,
            statuses={status: formatting.STATUS_LABELS.get(status, status) for status in STATUSES},
            max_text=formatting.MAX_TEXT,
            labels=step_data.FIELD_LABELS,
        )

    def render(self, template: str, status: int = 200, /, **values: Any) -> HTMLResponse:
        """A response made of a template."""
        html = self._templates.get_template(template).render(vanished=self.memory._store.has_vanished, **values)
        return HTMLResponse(html.encode("utf-8", "replace"), status)  # models do write lone surrogates

    # --- pages --------------------------------------------------------------------------------------------------------

    def runs(self, request: Request) -> Response:
        """The list of runs; as a fragment, only the table."""
        query = request.query_params
        values = {
            "list": run_list.list_runs(self.memory, query),
            "query": defaultdict(str, query),
            "sparkline": charts.sparkline,
            "sorted_by": partial(_sorted_by, query),
        }
        if query.get("fragment"):
            return self.render("_runs.html", **values)
        version = page_data.data_version(self.memory)
        choices = run_list.choices(self.memory, "agents", "models", "tools", "run_tags", "run_scopes")
        orders = {"" if order == "newest" else order: label for order, label in run_list.ORDERS.items()}
        choices |= {"orders": orders, "periods": run_list.PERIODS}
        return self.render("runs.html", **values, **choices, data_version=version)

    def run(self, request: Request) -> Response:
        """One run: its facts, chart and steps, and one step in full; as a fragment, without the step."""
        run = self.memory.run(request.path_params["run"])
        shown = waterfall(self.memory, run)
        selected = _selected_step(shown.steps, run, request.query_params)
        bars = [step for step in shown.steps if step.kind in ("action", "planning")]
        recalls = page_data.recalls(self.memory, run)
        values = {
            "run": run,
            "page_run": run.id,
            "task": (managed_task(run.task) if run.parent else run.task).strip() or formatting.NO_TASK,
            "shown": shown,
            "ticks": charts.ticks(shown.rows, shown.axis),
            "chart": charts.run_chart(bars),
            "caption": charts.run_chart_caption(bars),
            "related": page_data.related_runs(self.memory, run),
            "recalls": recalls,
            "step_runs": page_data.runs_of_steps(self.memory, [source for each in recalls for source in each.sources]),
            "selected": selected,
            "words": words(request.query_params.get("q", "")),
        }
        if request.query_params.get("fragment"):
            return self.render("_run.html", **values)
        detail = None if selected is None else step_data.step_detail(self.memory, selected, run)
        return self.render("run.html", **values, detail=detail, data_version=page_data.data_version(self.memory))

    def dashboard(self, request: Request) -> Response:
        """Runs, failures, tokens and latency over time."""
        query = request.query_params
        shown = dashboard.dashboard(self.memory, query)
        return self.render(
            "dashboard.html",
            shown=shown,
            query=defaultdict(str, query),
            periods=dashboard.PERIODS,
            **run_list.choices(self.memory, "run_scopes"),
        )

    def step(self, request: Request) -> Response:
        """One step in full, as a fragment."""
        run = self._named_run(request.query_params)
        detail = step_data.step_detail(self.memory, parameters.step_id(request), run)
        return self.render("_step.html", detail=detail, words=(), page_run=detail.run.id if run is None else run.id)

    def prompt(self, request: Request) -> Response:
        """The prompt of a step, and the steps that views left out of the prompt."""
        detail = step_data.step_detail(self.memory, parameters.step_id(request))
        trimmed = step_data.trimmed_steps(self.memory, detail)
        return self.render("_prompt.html", messages=detail.prompt, trimmed=trimmed)

    def revisions(self, request: Request) -> Response:
        """Every version of a step and what each version changed."""
        versions = step_data.step_versions(self.memory, parameters.step_id(request))
        run = request.query_params.get("run", "")
        return self.render("_revisions.html", versions=versions, step=parameters.step_id(request), run=run)

    def picture(self, request: Request) -> Response:
        """A picture of a step, encoded again: stored bytes never reach the browser."""
        detail = step_data.step_detail(self.memory, parameters.step_id(request))
        pictures, index = detail.pictures, parameters.number(request.path_params["index"], "picture") or 0
        if index >= len(pictures) or isinstance(pictures[index], str):
            raise NotFound(f"step {detail.step.id} has no picture {index}.")
        output = io.BytesIO()
        try:
            image = pictures[index].convert("LA") if pictures[index].mode == "La" else pictures[index]
            image = image.convert("RGBA" if "A" in image.mode else "RGB")
            image.thumbnail((MAX_PICTURE_SIDE, MAX_PICTURE_SIDE))
            image.save(output, "PNG")
        except ValueError as error:
            raise NotFound(f"picture {index} of step {detail.step.id} cannot be shown: {error}.") from None
        return Response(output.getvalue(), media_type="image/png")

    def compare(self, request: Request) -> Response:
        """Two runs side by side, or runs that are worth comparing."""
        sides = {side: request.query_params.get(side, "").strip() for side in ("left", "right")}
        runs = {side: self.memory.run(id) for side, id in sides.items() if id}
        given = list(runs.values())
        suggested = comparison.suggestions(self.memory, given[0] if given else None)
        return self.render(
            "compare.html",
            chosen={side: run.id for side, run in runs.items()},
            comparison=comparison.compare(self.memory, *given) if len(given) == 2 else None,
            suggestions=[each for each in suggested if [each.left.id, each.right.id] != [run.id for run in given]],
            choices=comparison.choices([*given, *self.memory.runs(scope="*", managed=False, limit=COMPARABLE)]),
        )

    def memories(self, request: Request) -> Response:
        """The search over steps and notes, and the notes; as a fragment, only the results."""
        query = request.query_params
        question, scope = query.get("q", "").strip(), query.get("scope") or "*"
        results = self.memory.recall(question, 20, scope=scope) if question else []
        closest = self.memory.recall(question, CLOSEST, scope=scope, floor=0) if question and not results else []
        values = {
            "uncertain": bool(closest),
            "query": defaultdict(str, query),
            "question": question,
            "results": results or closest,
            "largest_signals": _largest_signals(results or closest),
        }
        if query.get("fragment"):
            return self.render("_results.html", **values)
        filters = {name: query[name] for name in ("kind", "tag") if query.get(name)}
        notes = self.memory.notes(scope=scope, **filters, past=bool(query.get("past")), limit=200)
        return self.render("memory.html", **values, notes=notes, **run_list.choices(self.memory, "run_scopes"))

    def note(self, request: Request) -> Response:
        """A note: its versions, its sources, and the runs that recalled it."""
        note = self.memory.note(request.path_params["note"])
        return self.render(
            "note.html",
            note=note,
            versions=note.history(),
            recalled_in=page_data.runs_that_recalled(self.memory, note),
            step_runs=page_data.runs_of_steps(self.memory, note.sources),
        )

    def alerts(self, request: Request) -> Response:
        """The alerts, and a rule tested on recorded steps."""
        query = request.query_params
        values: dict[str, Any] = {"backtest": None, "chart": "", "error": ""}
        if query.get("rule"):
            try:
                scope = query.get("scope") or "*"
                backtest = self.memory.backtest(parameters.rule(query), scope=scope, limit=BACKTEST_STEPS)
                values |= {"backtest": backtest, "chart": charts.backtest_chart(backtest.counted, backtest.fired)}
            except InvalidArgument as error:
                values["error"] = str(error)
        alerts = self.memory.alerts(scope="*")
        return self.render(
            "alerts.html",
            **values,
            query=defaultdict(str, query),
            rules={rule: rule.replace("_", " ") for rule in parameters.RULES},
            alerts=alerts,
        )

    def data_version(self, request: Request) -> Response:
        """A text that changes whenever something is written; open pages ask for it every second."""
        return JSONResponse({"data_version": page_data.data_version(self.memory)})

    def download(self, request: Request) -> Response:
        """A run as a JSON file."""
        run = self.memory.run(request.path_params["run"])
        body = json.dumps(whole(run), indent=1)
        disposition = f'attachment; filename="run-{run.id[:8]}.json"'
        return Response(body, media_type="application/json", headers={"content-disposition": disposition})

    def _named_run(self, given: Mapping[str, str]) -> Run | None:
        """The run that an address or a form names, if it names one."""
        return self.memory.run(given["run"]) if given.get("run") else None

    # --- actions ------------------------------------------------------------------------------------------------------

    def fork(self, request: Request, form: Mapping[str, str]) -> Response:
        """Forks a run after a step."""
        step = parameters.number(form.get("step"), "step", InvalidArgument)
        fork = self.memory.run(request.path_params["run"]).fork(step=step)
        return RedirectResponse(f"/runs/{fork.id}", 303)

    def tag(self, request: Request, form: Mapping[str, str]) -> Response:
        """Adds a tag to a run, or removes one."""
        run = self.memory.run(request.path_params["run"])
        added, removed = (form.get(name, "").strip() for name in ("add", "remove"))
        if added:
            run.tag(added)
        if removed:
            run.untag(removed)
        return RedirectResponse(f"/runs/{run.id}", 303)

    def edit(self, request: Request, form: Mapping[str, str]) -> Response:
        """Edits a text of a step; earlier versions are kept."""
        run = self._named_run(form)
        detail = step_data.step_detail(self.memory, parameters.step_id(request), run)
        if form.get("field") not in detail.editable_fields:
            raise InvalidArgument(f"step {detail.step.id} has no field {form.get('field')!r} that can be edited.")
        before, text = getattr(detail.original, form["field"]), form.get("text", "").replace("\r\n", "\n")
        if text != before.replace("\r\n", "\n"):  # browsers send each line break as CR and LF
            detail.step.edit(**{form["field"]: text})
        return RedirectResponse(f"/runs/{run.id if run else detail.step.run}?step={detail.step.id}", 303)

    def restore(self, request: Request, form: Mapping[str, str]) -> Response:
        """Makes an earlier version of a step the current one."""
        step = self.memory.step(parameters.step_id(request))
        step_data.restore_version(step, parameters.number(form.get("event"), "version") or 0)
        run = self._named_run(form)
        return RedirectResponse(f"/runs/{run.id if run else step.run}?step={step.id}", 303)

    def remember(self, request: Request, form: Mapping[str, str]) -> Response:
        """Writes a note, or replaces a note with a new one."""
        before = self.memory.note(form["supersedes"]) if form.get("supersedes") else None
        scope = before.scope if before is not None else form.get("scope") or self.note_scope
        kind = before.kind if before is not None else form.get("kind") or "note"
        kept: dict[str, Any] = {} if before is None else {"tags": before.tags, "expires": before.expires}
        note = self.memory.remember(form.get("text", ""), kind=kind, scope=scope, supersedes=before, **kept)
        return RedirectResponse(f"/notes/{note.id}", 303)

    def forget(self, request: Request, form: Mapping[str, str]) -> Response:
        """Removes a note, step or run from recall, with `influenced` also what depends on it; or undoes that."""
        target, undo = page_data.erase_target(self.memory, form), bool(form.get("undo"))
        changed = self.memory.forget(target.what, influenced=bool(form.get("influenced")), undo=undo)
        names = ", ".join(map(str, changed)) or "nothing new"
        if undo:
            return self.render(
                "message.html", title="Recalled again", text=f"Recall returns: {names}.", back=target.back
            )
        text = f"Recall no longer returns: {names}. The record keeps everything."
        given = {name: form[name] for name in ("id", "step") if form.get(name)}
        return self.render("message.html", title="Forgotten", text=text, back=target.back, undo=given)

    def erase(self, request: Request, form: Mapping[str, str]) -> Response:
        """Shows what erasing a note, step or run would delete; erases it once the user confirms."""
        target = page_data.erase_target(self.memory, form)
        if not form.get("confirmed"):
            planned = self.memory.erase(target.what, dry_run=True)
            counts = page_data.counted(planned.counts)
            return self.render("erase.html", **target._asdict(), planned=planned, counts=counts)
        erased = self.memory.erase(target.what)
        text = f"Deleted for good: {page_data.counted(erased.counts)}."
        if not erased.finished:
            text += " Another process is reading the file: run `smolmem erase --finish` to remove the last bytes."
        return self.render("message.html", title="Erased", text=text, back="")

    # --- errors -------------------------------------------------------------------------------------------------------

    def error(self, request: Request, error: Exception) -> Response:
        """An expected error as a page with one sentence."""
        if isinstance(error, HTTPException):
            text = _HTTP_ERRORS.get(error.status_code, "The request is not valid. Reload the page and try again.")
            return self._problem(error.status_code, text)
        status = 404 if isinstance(error, NotFound) else 503 if isinstance(error, StoreError) else 400
        text = str(error).partition(": `memory.")[0].rstrip(".")  # a page needs no hint about a method
        if text.partition(" ")[0].isalpha():  # not the path of the store, which can come first
            text = f"{text[0].upper()}{text[1:]}"
        return self._problem(status, f"{text}.")

    def _problem(self, status: int, text: str) -> Response:
        title = "Not found" if status == HTTPStatus.NOT_FOUND else "Error"
        return self.render("message.html", status, title=title, text=text, back="")

    def guarded(self, respond: Callable[[], Response]) -> Response:
        """Turns an unexpected error into a page with one sentence; the log gets the traceback."""
        try:
            return respond()
        except (SmolmemError, HTTPException):
            raise
        except Exception as error:
            log.warning("smolmem: the inspector could not answer a request", exc_info=True)
            text = f"This page cannot be shown ({type(error).__name__}). Check the file with `smolmem verify`."
            return self._problem(500, text)


_HTTP_ERRORS = {
    404: "This page does not exist.",
    405: "This page does not support that method.",
    413: "The form is too large.",
}


def _sorted_by(query: Mapping[str, str], order: str) -> str:
    """The address of the list in another order."""
    address = parameters.next_page(query, None) | {"sort": "" if order == "newest" else order}
    return f"/?{urlencode({name: value for name, value in address.items() if value})}"


def _selected_step(steps: Sequence[page_data.StepSummary], run: Run, query: Mapping[str, str]) -> int | None:
    """The step that an address asks for by `step`, `number` or `at`, else the run's first action or first step.

    `at` asks for the first action after a time: an alert about a run as a whole has no step.
    """
    id, number = (parameters.number(query.get(name), "step") for name in ("step", "number"))
    actions = [step for step in steps if step.kind == "action"]
    asked = [step for step in steps if step.id == id]
    asked += [step for step in actions if step.number == number and step.run == run.id]
    at = parameters.timestamp(query.get("at"))
    asked += [step for step in actions if at is not None and step.at >= at]
    return next((step.id for step in (*asked, *actions, *steps)), None)


def _largest_signals(results: Sequence[Recollection]) -> dict[str, float]:
    """The largest value of each signal among the results: the full width of its meter."""
    largest: dict[str, float] = {}
    for result in results:
        for name, value in result.signals.items():
            largest[name] = max(largest.get(name, 0.0), abs(value))
    return largest


def _page(inspector: Inspector, page: Callable[[Request], Response]) -> Any:
    @wraps(page)
    def endpoint(request: Request) -> Response:
        return inspector.guarded(partial(page, request))

    return endpoint


def _action(inspector: Inspector, action: Callable[[Request, Mapping[str, str]], Response]) -> Any:
    @wraps(action)
    async def endpoint(request: Request) -> Response:
        form = await parameters.form(request)
        return await run_in_threadpool(partial(inspector.guarded, partial(action, request, form)))

    return endpoint


def make_app(memory: Memory, access: Access) -> Any:
    """The application, behind its guard."""
    inspector = Inspector(memory, access)
    pages = {
        "/": inspector.runs,
        "/dashboard": inspector.dashboard,
        "/runs/{run}": inspector.run,
        "/runs/{run}/json": inspector.download,
        "/steps/{step}": inspector.step,
        "/steps/{step}/prompt": inspector.prompt,
        "/steps/{step}/revisions": inspector.revisions,
        "/steps/{step}/pictures/{index}": inspector.picture,
        "/compare": inspector.compare,
        "/memory": inspector.memories,
        "/notes/{note}": inspector.note,
        "/alerts": inspector.alerts,
        "/data-version": inspector.data_version,
    }
    actions = {
        "/runs/{run}/fork": inspector.fork,
        "/runs/{run}/tags": inspector.tag,
        "/steps/{step}/edit": inspector.edit,
        "/steps/{step}/restore": inspector.restore,
        "/notes": inspector.remember,
        "/forget": inspector.forget,
        "/erase": inspector.erase,
    }
    routes = [
        *(Route(path, _page(inspector, page)) for path, page in pages.items()),
        *(Route(path, _action(inspector, action), methods=["POST"]) for path, action in actions.items()),
        Mount("/static", StaticFiles(directory=HERE / "static")),
    ]
    handlers: dict[Any, Any] = dict.fromkeys((SmolmemError, HTTPException), inspector.error)
    return guard(Starlette(routes=routes, exception_handlers=handlers), access)
