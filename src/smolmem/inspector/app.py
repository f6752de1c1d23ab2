"""The pages and what can be done on them: each a few lines from a request to the memory and back.

Pages are made here, whole, and work without a script. The script makes them quick: it asks for the part of a page that
changed (`fragment`), and for one step at a time.
"""

from __future__ import annotations

import io
import json
import logging
import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial, wraps
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

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
from smolmem.inspector import draw, reading, words
from smolmem.inspector.guard import Guard, Keys
from smolmem.memory import Memory
from smolmem.policies.watch import Watch
from smolmem.render.plain_values import whole

log = logging.getLogger("smolmem")

HERE = Path(__file__).parent
LARGEST = 1600
"""Pixels of a side: pictures are shown no larger."""
RULES = ("pattern", "failures", "same_error", "loop", "slow")


class Inspector:
    """The pages of one memory."""

    def __init__(self, memory: Memory, keys: Keys) -> None:
        self.memory = memory
        self.keys = keys
        self._pages = Environment(
            loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
        )
        self._pages.filters.update(words.FILTERS)
        self._pages.globals.update(
            file=Path(memory._store.url).name, url=memory._store.url, read_only=keys.read_only, statuses=STATUSES
        )

    def page(self, name: str, status: int = 200, /, **given: Any) -> HTMLResponse:
        """A page made of a template."""
        html = self._pages.get_template(name).render(given)
        return HTMLResponse(html.encode("utf-8", "replace"), status)  # models do write lone surrogates

    # --- looking -----------------------------------------------------------------------------------------------------

    def runs(self, request: Request) -> Response:
        """The list of runs; as a fragment, its rows alone."""
        asked = request.query_params
        names = ("agent", "status", "text")
        wanted = {name: asked[name] for name in names if asked.get(name)}
        scope = asked.get("scope") or "*"
        found = reading.runs(
            self.memory, **wanted, scope=scope, until=_time(asked.get("until")), managed=bool(wanted.get("agent"))
        )
        last = reading.began(self.memory, found[-1].run) if len(found) == reading.PAGE else None
        shown = {
            "runs": found,
            "asked": defaultdict(str, asked),
            "filtered": bool(wanted or asked.get("scope") or asked.get("until")),
            "spark": draw.spark,
            "last": last,
            "more": _query(asked, last),
        }
        if asked.get("fragment"):
            return self.page("_runs.html", **shown)
        return self.page("runs.html", **shown, **reading.choices(self.memory), pulse=reading.pulse(self.memory))

    def run(self, request: Request) -> Response:
        """A run: its facts, its plot, its steps, one of them whole."""
        run = self.memory.run(request.path_params["run"])
        lines = reading.outline(self.memory, run)
        there = {line.id for line in lines}
        first = next((line.id for line in lines if line.kind == "action"), lines[0].id if lines else None)
        given = _number(request.query_params.get("step"), "step")
        chosen = given if given in there else first
        bars = [line.bar for line in lines if line.kind in ("action", "planning")]
        reminded = reading.reminded(self.memory, run)
        shown = {
            "run": run,
            "lines": lines,
            "plot": draw.plot(bars),
            "caption": draw.caption(bars),
            "family": reading.family(self.memory, run),
            "reminded": reminded,
            "places": reading.step_places(self.memory, _numbers(reminded)),
            "alerts": self.memory.alerts(scope="*", run=run.id),
            "cuts": self.memory._journal.trims.of(run.session),
            "chosen": chosen,
        }
        if request.query_params.get("fragment"):
            return self.page("_run.html", **shown)
        detail = None if chosen is None else reading.detail(self.memory, chosen, run)
        return self.page("run.html", **shown, found=detail, pulse=reading.pulse(self.memory))

    def step(self, request: Request) -> Response:
        """One step, whole."""
        run = request.query_params.get("run")
        within = None if not run else self.memory.run(run)
        found = reading.detail(self.memory, _step(request), within)
        return self.page("_step.html", found=found, run=within or self.memory.run(found.step.run))

    def sent(self, request: Request) -> Response:
        """What the model was sent for a step, and what it was not."""
        found = reading.detail(self.memory, _step(request))
        with reading.glancing():
            messages = list(getattr(found.live, "model_input_messages", None) or ())
        return self.page("_sent.html", messages=messages, unseen=reading.unseen(self.memory, found))

    def revisions(self, request: Request) -> Response:
        """Every version of a step, what each changed, and when that was."""
        return self.page("_revisions.html", versions=reading.versions(self.memory, _step(request)))

    def picture(self, request: Request) -> Response:
        """A picture of a step, made anew: nothing that somebody stored is sent to a browser as it is."""
        found = reading.detail(self.memory, _step(request))
        pictures, place = reading.pictures(found.live), _number(request.path_params["place"], "picture") or 0
        if place >= len(pictures) or isinstance(pictures[place], str):
            raise NotFound(f"step {found.step.id} has no picture {place}.")
        written = io.BytesIO()
        try:
            image = pictures[place].convert("LA") if pictures[place].mode == "La" else pictures[place]
            image = image.convert("RGBA" if "A" in image.mode else "RGB")
            image.thumbnail((LARGEST, LARGEST))
            image.save(written, "PNG")
        except ValueError as error:
            raise NotFound(f"picture {place} of step {found.step.id} cannot be shown: {error}.") from None
        return Response(written.getvalue(), media_type="image/png")

    def compare(self, request: Request) -> Response:
        """Two runs, side by side from where they part."""
        left, right = (request.query_params.get(side, "").strip() for side in ("left", "right"))
        shown: dict[str, Any] = {
            "left": left,
            "right": right,
            "parted": None,
            "runs": self.memory.runs(scope="*", limit=40),
        }
        if left and right:
            shown |= {
                "parted": self.memory.run(left).diff(right),
                "a": self.memory.run(left),
                "b": self.memory.run(right),
            }
        return self.page("compare.html", **shown)

    def memories(self, request: Request) -> Response:
        """What is remembered in a scope, and the search over all of it."""
        asked = request.query_params
        question, scope = asked.get("q", "").strip(), asked.get("scope") or "*"
        found = self.memory.recall(question, 20, scope=scope) if question else []
        shown = {"asked": defaultdict(str, asked), "question": question, "found": found, "tops": _tops(found)}
        if asked.get("fragment"):
            return self.page("_found.html", **shown)
        notes = self.memory.notes(scope=scope, past=bool(asked.get("past")), limit=200)
        return self.page("memory.html", **shown, notes=notes, **reading.choices(self.memory))

    def note(self, request: Request) -> Response:
        """A note: its versions, where it comes from, and whom it was brought to mind of."""
        note = self.memory.note(request.path_params["note"])
        numbers = [source for source in note.sources if isinstance(source, int)]
        return self.page(
            "note.html",
            note=note,
            versions=note.history(),
            influenced=reading.influenced(self.memory, note),
            places=reading.step_places(self.memory, numbers),
        )

    def patterns(self, request: Request) -> Response:
        """When rules fired, and a rule tried on the past."""
        asked = request.query_params
        shown: dict[str, Any] = {
            "asked": defaultdict(str, asked),
            "rules": RULES,
            "tried": None,
            "picture": "",
            "wrong": "",
        }
        if asked.get("rule"):
            try:
                tried = self.memory.backtest(_rule(asked), scope=asked.get("scope") or "*", limit=20_000)
                shown |= {"tried": tried, "picture": draw.timeline(tried.counted, tried.fired)}
            except InvalidArgument as wrong:
                shown["wrong"] = str(wrong)
        return self.page("patterns.html", **shown, alerts=self.memory.alerts(scope="*"), **reading.choices(self.memory))

    def pulse(self, request: Request) -> Response:
        """A word that changes when something was written."""
        return JSONResponse({"pulse": reading.pulse(self.memory)})

    def download(self, request: Request) -> Response:
        """A run as JSON."""
        run = self.memory.run(request.path_params["run"])
        body = json.dumps(whole(run), indent=1)
        name = f'attachment; filename="run-{run.id[:8]}.json"'
        return Response(body, media_type="application/json", headers={"content-disposition": name})

    # --- acting ------------------------------------------------------------------------------------------------------

    def fork(self, request: Request, form: Mapping[str, str]) -> Response:
        """A second way from a step on."""
        fork = self.memory.run(request.path_params["run"]).fork(step=_number(form.get("at"), "step", InvalidArgument))
        return RedirectResponse(f"/runs/{fork.id}", 303)

    def edit(self, request: Request, form: Mapping[str, str]) -> Response:
        """A corrected text of a step; the original stays in its history."""
        run = self.memory.run(form["run"]) if form.get("run") else None
        found = reading.detail(self.memory, _step(request), run)
        if form.get("field") not in found.editable:
            raise InvalidArgument(f"step {found.step.id} has no {form.get('field')!r} that can be edited.")
        before, text = getattr(found.live, form["field"]), form.get("text", "").replace("\r\n", "\n")
        if text != before.replace("\r\n", "\n"):  # browsers send every line end as two characters
            found.step.edit(**{form["field"]: text})
        return RedirectResponse(f"/runs/{run.id if run else found.step.run}?step={found.step.id}", 303)

    def remember(self, request: Request, form: Mapping[str, str]) -> Response:
        """A new note, or another in the place of an old one."""
        before = self.memory.note(form["supersedes"]) if form.get("supersedes") else None
        scope = before.scope if before is not None else form.get("scope") or self.memory.scope
        kind = before.kind if before is not None else form.get("kind") or "note"
        note = self.memory.remember(form.get("text", ""), kind=kind, scope=scope, supersedes=before)
        return RedirectResponse(f"/notes/{note.id}", 303)

    def forget(self, request: Request, form: Mapping[str, str]) -> Response:
        """Leaves a note, step or run out of recall; with all that came of it, if asked."""
        step = _number(form.get("step"), "step")
        gone = self.memory.forget(
            form.get("what", "") if step is None else step, influenced=bool(form.get("influenced"))
        )
        return self.page("message.html", title="Forgotten", said=f"Recall leaves out: {', '.join(map(str, gone))}.")

    def answered(self, request: Request, error: Exception) -> Response:
        """What went wrong, as one sentence on a page."""
        if isinstance(error, HTTPException):
            said = _SAID.get(error.status_code, "That cannot be read: reload the page and try again.")
            return self.page("message.html", error.status_code, title="That did not work", said=said)
        status = 404 if isinstance(error, NotFound) else 503 if isinstance(error, StoreError) else 400
        return self.page("message.html", status, title="That did not work", said=str(error))


_SAID = {
    404: "There is no such page.",
    405: "That is not something this page can do.",
    413: "That is too much at once.",
}
LONGEST = 2_000_000
"""Bytes of a form."""


def _number(text: str | None, what: str, wrong: type[SmolmemError] = NotFound) -> int | None:
    if not text:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", text):
        digits = re.fullmatch(r"[0-9]+", text)
        raise (NotFound if digits else wrong)(f"there is no {what} {text[:40]!r}.")
    return int(text)


def _step(request: Request) -> int:
    return _number(request.path_params["step"], "step") or 0


def _time(text: str | None) -> float | None:
    try:
        moment = float(text) if text else None
    except ValueError:
        moment = math.nan
    if moment is not None and not math.isfinite(moment):
        raise InvalidArgument(f"{str(text)[:40]!r} is not a time.")
    return moment


def _numbers(reminded: list[dict[str, Any]]) -> list[int]:
    return [source for each in reminded for source in each["found"] if isinstance(source, int)]


def _query(asked: Mapping[str, str], until: float | None) -> dict[str, str]:
    kept = {name: value for name, value in asked.items() if name not in ("until", "fragment") and value}
    return kept | ({} if until is None else {"until": repr(until)})


def _tops(found: list[Any]) -> dict[str, float]:
    """The largest share of each voice, to draw the others by."""
    tops: dict[str, float] = {}
    for one in found:
        for name, share in one.signals.items():
            tops[name] = max(tops.get(name, 0.0), abs(share))
    return tops


def _rule(asked: Mapping[str, str]) -> Watch:
    try:
        window, threshold = int(asked.get("window") or 10), int(asked.get("threshold") or 3)
    except ValueError:
        raise InvalidArgument("window and threshold are numbers.") from None
    options: dict[str, Any] = {"window": window, "threshold": threshold, "tools": asked.get("tool") or None}
    if asked["rule"] == "pattern":
        return Watch(asked.get("pattern", ""), **options)
    makers: dict[str, Callable[..., Watch]] = {name: getattr(Watch, name) for name in RULES[1:]}
    if asked["rule"] not in makers:
        raise InvalidArgument(f"there is no rule {asked['rule']!r}.")
    return makers[asked["rule"]](**options)


def _acting(pages: Inspector, act: Callable[[Request, Mapping[str, str]], Response]) -> Any:
    @wraps(act)
    async def endpoint(request: Request) -> Response:
        given = await _form(request)
        return await run_in_threadpool(partial(_whatever, pages, partial(act, request, given)))

    return endpoint


async def _form(request: Request) -> dict[str, str]:
    """What a form of ours sends: a few texts. Nothing else is read."""
    if not request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        raise HTTPException(415)
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > LONGEST:
            raise HTTPException(413)
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, strict_parsing=bool(body), max_num_fields=20))
    except ValueError:
        raise HTTPException(400) from None


def _looking(pages: Inspector, look: Callable[[Request], Response]) -> Any:
    @wraps(look)
    def endpoint(request: Request) -> Response:
        return _whatever(pages, partial(look, request))

    return endpoint


def _whatever(pages: Inspector, do: Callable[[], Response]) -> Response:
    """What was not foreseen is a sentence too, and the terminal is told the rest."""
    try:
        return do()
    except (SmolmemError, HTTPException):
        raise
    except Exception as error:
        log.warning("smolmem: a page could not be made", exc_info=True)
        said = f"This cannot be shown ({type(error).__name__}). `smolmem verify` tells whether the file is whole."
        return pages.page("message.html", 500, title="That did not work", said=said)


def make_app(memory: Memory, keys: Keys) -> Guard:
    """The whole inspector, behind its guard."""
    pages = Inspector(memory, keys)
    looks = {
        "/": pages.runs,
        "/runs/{run}": pages.run,
        "/runs/{run}/json": pages.download,
        "/steps/{step}": pages.step,
        "/steps/{step}/sent": pages.sent,
        "/steps/{step}/revisions": pages.revisions,
        "/steps/{step}/pictures/{place}": pages.picture,
        "/compare": pages.compare,
        "/memory": pages.memories,
        "/notes/{note}": pages.note,
        "/patterns": pages.patterns,
        "/pulse": pages.pulse,
    }
    acts = {
        "/runs/{run}/fork": pages.fork,
        "/steps/{step}/edit": pages.edit,
        "/notes": pages.remember,
        "/forget": pages.forget,
    }
    routes = [
        *(Route(path, _looking(pages, look)) for path, look in looks.items()),
        *(Route(path, _acting(pages, act), methods=["POST"]) for path, act in acts.items()),
        Mount("/static", StaticFiles(directory=HERE / "static")),
    ]
    handlers: dict[Any, Any] = dict.fromkeys((SmolmemError, HTTPException), pages.answered)
    return Guard(Starlette(routes=routes, exception_handlers=handlers), keys)
