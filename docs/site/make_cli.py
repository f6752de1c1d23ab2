"""Generates docs/cli.md from the commands: `python docs/site/make_cli.py > docs/cli.md`."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Iterator

import click

from smolmem.cli.commands import EXIT_CODES, SECTIONS, Argument, Command
from smolmem.cli.main import all_commands

_HEAD = """\
# The command line

List, read, search, watch, export and repair what your agents recorded, from any process, also while they run.

```bash
smolmem runs                # list runs, the newest first
smolmem replay --follow     # show a running agent live, from another process
smolmem runs agent.db       # the same for the store in this file
smolmem show 3f9a2c1b/2     # show step 2 of a run
smolmem tail                # show each step as any agent records it
smolmem search "checkout"   # search everything that was done and noted
smolmem ui                  # open the inspector in the browser
smolmem demo                # create a sample store
```

This page is generated from the help texts by `python docs/site/make_cli.py > docs/cli.md`. A test checks that the
page is current and runs every example.

## Options of every command

- The first word after a command names the store, if it is a URL, a file name that ends in `.db`, `.sqlite` or
  `.sqlite3`, or a store: `smolmem runs agent.db`. `--db PATH` names any file. Without both, the store is `SMOLMEM_URL`,
  else the only store in the current folder; if there are several, a terminal asks which one, and elsewhere that is an
  error. A missing file is an error: only `load`, `import`, `demo` and `remember --create` create one, by default
  `smolmem.db`.
- A file that can be read but not written, or whose folder cannot be written, is looked at as a private copy. Commands
  that change the store are refused.
- `--key-file PATH` names a file with the key of an encrypted store: a passphrase, or `raw:` and 64 hexadecimal digits.
  Without `--key-file`, the key is `SMOLMEM_KEY`; without both, a terminal asks for the key. No option takes the key
  itself, because other users can read the arguments of a process.
- Runs and notes are named by the beginning of their id, as short as it is unique. A step is named by its run and
  number, `3f9a2c1b/2`, or by its id, `3f9a2c1b/@29` or `29`: as `search`, `steps` and `tail` print it.
- `--scope SCOPE` reads one scope, `acme/*` that scope and all scopes in it. Without `--scope`, all scopes are read, and
  `remember` writes to the scope `default`. An id names its run or note in every scope.
- Times are `2025-03-31`, `2025-03-31T12:00` (local time), a day (`today`, `yesterday`, `monday`), or a
  duration: `90m`, `2h`, `3d`, `1w`.
- Results go to standard output; hints, progress and errors go to standard error. A terminal gets colours and tables; a
  pipe gets plain aligned lines, never wrapped or shortened to a width. `NO_COLOR` is respected.
- Stored text cannot send control characters to the terminal: they are shown as symbols such as `␛`, or as `�`.
- `smolmem completion SHELL` prints a script that completes commands, options, stores and run ids.
- `python -m smolmem` is the same command line.

### Exit codes

| code | meaning |
|---|---|
"""
_JSON = """
### JSON

`--json` prints one JSON document: an object for one value, an array for a list. Names do not change; new names may be
added. Times are ISO 8601 with an offset, durations are seconds, unknown values are `null`, and a number that JSON does
not have is its name (`"nan"`). Control characters are escaped. `replay --follow`, and `watch` without `--backtest`,
print one object per line as soon as it is known.

| command | output |
|---|---|
"""
_SHAPES = {
    "runs": "array of *run*, each with `total_steps`, `total_errors`, `total_tokens` and `total_cost`, "
    "which include the runs that it called",
    "show": "*run* with `task`, `answer`, `failure` and `steps`, an array of *step*; with `--step` one *step*",
    "steps": "array of *step*; with an id one *step*",
    "replay": "as `show`; with `--detailed` each step has `sent`, an array of `role`, `text`; with "
    "`--follow` one *step* per line, then the *run*",
    "tail": "one *step* per line",
    "top": "`at`, `running`, `steps`, `tokens`, `runs`, an array of *run*",
    "sql": "array of objects with the columns of the SELECT; `--format ndjson` one object per line",
    "diff": "`common` (the number of equal steps), `left`, `right` (arrays of *step*)",
    "stats": "`url`, `runs`, `steps`, `notes`, `passages`, `bytes`, `statuses`, … as in `memory.stats()`",
    "alerts": "array of *alert*: `rule`, `reason`, `agent`, `run`, `number`, `at`, `actions`",
    "watch": "one *alert* per line; with `--backtest` an array of `rule`, `alerts`, `steps`, `runs`, `counted`, "
    "`fired`, `skipped`",
    "search": "array of `text`, `score`, `signals`, `kind`, `origin`, `trust`, `scope`, `at`, `agent`, `run`, `step`, "
    "`note`, `tool`, `passage`, `document`, `excerpts`, `matched`, `copies`, `stale`, `reference`",
    "context": "`context`, a text",
    "notes": "array of *note*; with an id one *note*",
    "remember": "the *note*",
    "forget": "array of `kind` (note, step, run) and `id`",
    "model": "array of `name`, `used`, `here`, `megabytes`, `languages`, `needs`, `missing`, `sources`, `path`; with "
    "`fetch` and `use` one of them",
    "mcp": "nothing",
    "erase": "`at`, `runs`, `steps`, `notes`, `counts`, `bytes_freed`, `finished`, `dry_run`",
    "purge": "`sources` and `derived`, arrays of `kind`, `id`, `why` and `text`; `receipt`, as `erase` returns it",
    "prune": "array of `at`, `runs`, `steps`, `notes`, `counts`, `bytes_freed`, `finished`, `dry_run`",
    "tag": "a *run*",
    "fork": "`run`, a *run*, and `python`, an array of lines",
    "export": "`path`, `scope`, `written`, `media`, `bytes`",
    "index": "`indexed`, `passages`, `vectors`",
    "load": "`path`, `added`, `skipped`, `differing`",
    "import": "`path`, `added`, `skipped`, `differing`",
    "trace": "`trace`, `run`, `runs`, `spans`, `to`",
    "backup": "`path`, `bytes`",
    "copy": "`source`, `target`, `added`, `skipped`",
    "roles": "`url`, `role`",
    "verify": "`url`, `checked`, `problems`, `count`",
    "doctor": "`url`, `findings`, an array of `level` (ok, hint, warning, problem), `text`, `repair`",
    "migrate": "`url`, `before`, `after`, `backup`",
    "encrypt": "`path`, `encrypted`",
    "decrypt": "`path`, `encrypted`",
    "rekey": "`path`, `encrypted`",
    "ui": "nothing",
    "demo": "`path`, `try`; the inspector is not opened",
    "completion": "`shell`, `script`",
}
_VALUES = """
A *run* has `id`, `status` (running, finished, failed, interrupted, max_steps), `agent`, `agent_type`, `title`,
`scope`, `session`, `began`, `ended`, `seconds`, `step_count`, `error_count`, `input_tokens`, `output_tokens`,
`parent`, `parent_step`, `fork_of`, `model`, `smolagents`, `max_steps`, `tags`, `cost` (in dollars, if the price of the
model is known). A *step* has `id`, `reference`, `run`, `session`, `scope`,
`agent`, `kind`, `number`, `position`, `at`, `seconds`, `error`, `tools`, `input_tokens`, `output_tokens`, `revision`,
`removed`, `text`. A *note* has `id`, `scope`, `kind`, `text`, `tags`, `origin`, `run`, `at`, `expires`, `supersedes`,
`sources`, `status`, `stale`.
"""


def page() -> Iterator[str]:
    """The lines of the page."""
    yield from _HEAD.splitlines()
    yield from (f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items())
    yield from _JSON.splitlines()
    yield from (f"| `{name}` | {shape} |" for name, shape in _SHAPES.items())
    yield from _VALUES.splitlines()
    for section in SECTIONS:
        yield from ("", f"## {section}")
        for command in all_commands().commands.values():
            if isinstance(command, Command) and command.section == section:
                yield from _command(command)


def _command(command: Command) -> Iterator[str]:
    yield from ("", f"### smolmem {command.name}")
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        yield from ("", *textwrap.wrap(paragraph, 116, break_on_hyphens=False))
    yield from ("", "```bash", *command.examples, "```")
    if command.own_params:
        yield from ("", "| | |", "|---|---|")
    yield from (f"| `{_usage(param)}` | {_help(param)} |" for param in command.own_params)


def _usage(param: click.Parameter) -> str:
    if isinstance(param, Argument):
        return str(param.metavar)
    return f"{param.opts[-1]} {param.metavar or ''}".rstrip()


def _help(param: click.Parameter) -> str:
    return param.description if isinstance(param, Argument) else str(getattr(param, "help", ""))


if __name__ == "__main__":
    sys.stdout.write("\n".join(page()) + "\n")
