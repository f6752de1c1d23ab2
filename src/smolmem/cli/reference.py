"""docs/cli.md, made from the parser: `python -m smolmem.cli.reference > docs/cli.md`."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterator

from smolmem.cli.parser import CODES, COMMANDS, GROUPS, commands_of, options_of, parser

_HEAD = """\
# The command line

Made from the commands' own help by `python -m smolmem.cli.reference > docs/cli.md`; a test sees that it is current,
and runs every example.

```bash
smolmem runs                # what ran, the newest first
smolmem replay --follow     # a running agent, live from another process
smolmem search "checkout"   # what was done and noted about something
smolmem ui                  # the same in the browser
smolmem demo                # a sample memory to look at
```

## For every command

- `--db PATH` names the memory; without it `SMOLMEM_URL` does; without both it is `smolmem.db` in this folder. A
  file that is not there is an error: only `load`, `demo` and `remember --create` make one.
- Runs and notes are named by the beginning of their id, as short as it is unique.
- `--scope SCOPE` looks into one scope, `acme/*` into it and all below. Without it every scope of the file is looked
  at; `remember` writes to `default`. An id names its run or note whatever its scope.
- Times are `2025-03-31`, `2025-03-31T12:00` (of this place), or a length: `90m`, `2h`, `3d`, `1w`.
- Results go to standard output, everything else (hints, progress, errors) to standard error. On a terminal there
  are colours and tables; in a pipe plain aligned lines, whole, without colours. `NO_COLOR` is respected.
- Nothing that is stored can reach the terminal as a control character: it is shown as a picture such as `␛`, or as
  `�`.

### Exit codes

| code | when |
|---|---|
"""
_JSON = """
### JSON

`--json` prints one JSON document: an object for one thing, an array for a list. Names stay; new ones may be added.
Times are ISO 8601 with an offset, lengths are seconds, what is not known is `null`, a number that JSON does not
have is its name (`"nan"`). Control characters of any alphabet are escaped. Only `replay --follow` and `watch`
without `--backtest`, which do not know when they end, print one object a line.

| command | what it prints |
|---|---|
"""
_SHAPES = {
    "runs": "array of *run*",
    "show": "*run* with `task`, `answer`, `failure` and `steps`, an array of *step*; with `--step` one *step*",
    "steps": "array of *step*; with an id one *step*",
    "replay": "as `show`; with `--detailed` each step has `sent`, an array of `role`, `text`; with "
    "`--follow` a *step* a line, then the *run*",
    "diff": "`common` (how many steps), `left`, `right` (arrays of *step*)",
    "stats": "`url`, `runs`, `steps`, `notes`, `bytes`, `statuses`, … as `memory.stats()` has them",
    "alerts": "array of *alert*: `rule`, `reason`, `agent`, `run`, `number`, `at`, `acts`",
    "watch": "an *alert* a line; with `--backtest` an array of `rule`, `alerts`, `steps`, `runs`, `counted`, `fired`, "
    "`unread`",
    "search": "array of `text`, `score`, `parts`, `kind`, `origin`, `trust`, `scope`, `at`, `agent`, `run`, `step`, "
    "`note`, `tool`, `unit`, `copies`, `stale`",
    "context": "`context`, a text",
    "notes": "array of *note*; with an id one *note*",
    "remember": "the *note*",
    "forget": "array of `kind` (note, step, run) and `id`",
    "fork": "`run`, a *run*, and `python`, an array of lines",
    "export": "`path`, `scope`, `written`, `media`, `bytes`",
    "load": "`path`, `added`, `skipped`, `differing`",
    "backup": "`path`, `bytes`",
    "verify": "`url`, `checked`, `problems`, `count`",
    "doctor": "`url`, `findings`, an array of `level` (ok, hint, warning, problem), `text`, `mend`",
    "migrate": "`url`, `before`, `after`, `backup`",
    "ui": "nothing",
    "demo": "`path`, `try`; the inspector is not started",
    "completion": "`shell`, `script`",
}
_VALUES = """
A *run* has `id`, `status` (running, finished, failed, interrupted, max_steps), `agent`, `agent_type`, `title`,
`scope`, `session`, `began`, `ended`, `seconds`, `step_count`, `error_count`, `input_tokens`, `output_tokens`,
`parent`, `parent_step`, `fork_of`, `model`,
`smolagents`, `max_steps`. A *step* has `id`, `run`, `session`, `scope`, `agent`, `kind`, `number`, `place`, `at`,
`seconds`, `error`, `tools`, `input_tokens`, `output_tokens`, `revision`, `removed`, `text`. A *note* has `id`,
`scope`, `kind`, `text`, `tags`, `origin`, `run`, `at`, `expires`, `supersedes`, `sources`, `status`, `stale`.
"""


def page() -> Iterator[str]:
    """The page, line by line."""
    yield from _HEAD.splitlines()
    yield from (f"| {code} | {about} |" for code, about in CODES.items())
    yield from _JSON.splitlines()
    yield from (f"| `{name}` | {shape} |" for name, shape in _SHAPES.items())
    yield from _VALUES.splitlines()
    parsers = commands_of(parser())
    for group in GROUPS:
        yield from ("", f"## {group}")
        for command in (command for command in COMMANDS if command.group == group):
            one = parsers[command.name]
            yield from ("", f"### smolmem {command.name}", "")
            about = f"{command.about[0].upper()}{command.about[1:]}. {command.more}".strip()
            yield from textwrap.wrap(about, 116, break_on_hyphens=False)
            yield from ("", "```bash", *command.examples, "```")
            own = [action for action in options_of(one) if action.dest not in ("db", "scope", "json")]
            if own:
                yield from ("", "| | |", "|---|---|")
            yield from (f"| `{_written(action)}` | {action.help} |" for action in own)


def _written(action: argparse.Action) -> str:
    """An argument as one writes it."""
    value = action.metavar or (
        "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper()
    )
    if not action.option_strings:
        return f"[{value}]" if action.nargs == "?" else f"{value} …" if action.nargs == "+" else str(value)
    if action.nargs == 0:
        return action.option_strings[-1]
    return f"{action.option_strings[-1]} {f'[{value}]' if action.nargs == '?' else value}"


if __name__ == "__main__":
    sys.stdout.write("\n".join(page()) + "\n")
