"""Scripts that complete in a shell, made from the parser: commands, options, choices, files and run ids."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from smolmem.cli.parser import commands_of, options_of

IDS = "smolmem runs --ids --limit 50 2>/dev/null"
_RUNS = ("RUN", "A", "B")
_FILES = ("PATH",)


def script(shell: str, top: argparse.ArgumentParser) -> str:
    """The script for a shell."""
    return "\n".join({"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](top))


def _values(action: argparse.Action) -> str:
    """What an argument may be: `runs`, `files`, words, or nothing that is known."""
    if action.choices is not None:
        return " ".join(map(str, action.choices))
    metavar = str(action.metavar or "")
    return "runs" if metavar in _RUNS else "files" if metavar in _FILES else ""


def _takes(action: argparse.Action) -> bool:
    return action.nargs != 0


def _quoted(text: str | None) -> str:
    """Help as it can stand between single quotes."""
    return re.sub(r"['\[\]`\\]", "", text or "")


# --- bash ---------------------------------------------------------------------------------------------------------


def _bash(top: argparse.ArgumentParser) -> Iterator[str]:
    commands = commands_of(top)
    common = " ".join(name for action in options_of(top) for name in action.option_strings)
    yield "# smolmem in bash: source it, or put it where bash looks for completions."
    yield "_smolmem() {"
    yield '    local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" command="" word db=()'
    yield "    COMPREPLY=()"
    yield '    local -i at=1; while (( at < COMP_CWORD )); do word="${COMP_WORDS[at]}"'
    yield '        case "$word" in'
    yield '            --db) db=(--db "${COMP_WORDS[at+1]}"); at+=1 ;; --scope) at+=1 ;; -*) ;;'
    yield '            *) [[ -z $command ]] && command="$word" ;;'
    yield "        esac; at+=1"
    yield "    done"
    yield f'    _smolmem_runs() {{ COMPREPLY=($(compgen -W "$({_with_db("bash")})" -- "$cur")); }}'
    yield '    _smolmem_files() { compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- "$cur")); }'
    yield '    _smolmem_words() { COMPREPLY=($(compgen -W "$1" -- "$cur")); }'
    yield '    case "$command $prev" in'
    for name, one in commands.items():
        for action in options_of(one):
            values = _values(action)
            if action.option_strings and action.dest != "db" and _takes(action) and values:
                yield f'        "{name} {action.option_strings[-1]}") {_bash_call(values)}; return ;;'
    yield '        *" --db") _smolmem_files; return ;;'
    yield "    esac"
    yield '    case "$command" in'
    yield f'        "") _smolmem_words "{" ".join(commands)} {common}"; return ;;'
    for name, one in commands.items():
        actions = list(options_of(one))
        options = " ".join(option for action in actions for option in action.option_strings)
        places = [_values(action) for action in actions if not action.option_strings]
        place = next((values for values in places if values), "")
        otherwise = _bash_call(place) if place else ":"
        yield f'        {name}) if [[ $cur == -* ]]; then _smolmem_words "{options} --help"; else {otherwise}; fi ;;'
    yield "    esac"
    yield "}"
    yield "complete -F _smolmem smolmem"


def _bash_call(values: str) -> str:
    return f"_smolmem_{values}" if values in ("runs", "files") else f'_smolmem_words "{values}"'


def _with_db(shell: str) -> str:
    """The question for ids, with the file that stands on the line."""
    return IDS.replace("smolmem runs", 'smolmem "${db[@]}" runs') if shell == "bash" else IDS


# --- zsh ----------------------------------------------------------------------------------------------------------


def _zsh(top: argparse.ArgumentParser) -> Iterator[str]:
    commands = commands_of(top)
    yield "#compdef smolmem"
    yield f'_smolmem_runs() {{ local -a ids; ids=(${{(f)"$({IDS})"}}); compadd -a ids }}'
    yield "_smolmem() {"
    yield "    local -a commands; commands=("
    for name, one in commands.items():
        yield f"        '{name}:{_quoted((one.description or '').splitlines()[0])}'"
    yield "    )"
    yield "    local context state line; _arguments -C \\"
    for action in options_of(top):
        yield f"        {_zsh_option(action)} \\"
    yield "        '1: :->command' '*:: :->rest'"
    yield "    case $state in"
    yield "        command) _describe command commands ;;"
    yield "        rest) case $line[1] in"
    for name, one in commands.items():
        actions = " ".join(
            _zsh_option(action) if action.option_strings else _zsh_place(action) for action in options_of(one)
        )
        yield f"            {name}) _arguments {actions} ;;"
    yield "        esac ;;"
    yield "    esac"
    yield "}"
    yield 'if [ "$funcstack[1]" = "_smolmem" ]; then _smolmem "$@"; else compdef _smolmem smolmem; fi'


def _zsh_option(action: argparse.Action) -> str:
    name = action.option_strings[-1]
    repeats = "*" if isinstance(action, argparse._AppendAction) else ""
    value = f":{_quoted(str(action.metavar or action.dest))}:{_zsh_values(action)}" if _takes(action) else ""
    return f"'{repeats}{name}[{_quoted(action.help)}]{value}'"


def _zsh_place(action: argparse.Action) -> str:
    many = "*" if action.nargs == "+" else ""
    return f"'{many}:{_quoted(str(action.metavar or action.dest))}:{_zsh_values(action)}'"


def _zsh_values(action: argparse.Action) -> str:
    values = _values(action)
    return {"runs": "_smolmem_runs", "files": "_files", "": " "}.get(values, f"({values})")


# --- fish ---------------------------------------------------------------------------------------------------------


def _fish(top: argparse.ArgumentParser) -> Iterator[str]:
    commands = commands_of(top)
    yield "# smolmem in fish"
    yield "complete -c smolmem -f"
    for action in options_of(top):
        yield f"complete -c smolmem {_fish_option(action)}"
    for name, one in commands.items():
        about = _quoted((one.description or "").splitlines()[0])
        yield f"complete -c smolmem -n __fish_use_subcommand -a {name} -d '{about}'"
    for name, one in commands.items():
        seen = f"complete -c smolmem -n '__fish_seen_subcommand_from {name}'"
        for action in options_of(one):
            if action.option_strings:
                yield f"{seen} {_fish_option(action)}"
            elif _values(action):
                yield f"{seen} {_fish_values(action)}"


def _fish_option(action: argparse.Action) -> str:
    name = f"-l {action.option_strings[-1].lstrip('-')} -d '{_quoted(action.help)}'"
    if not _takes(action):
        return name
    values = _fish_values(action)
    return f"{name} -r -F" if values == "-F" else f"{name} -x {values}".rstrip()


def _fish_values(action: argparse.Action) -> str:
    values = _values(action)
    if values == "files":
        return "-F"
    return f"-a '({IDS})'" if values == "runs" else f"-a '{values}'" if values else ""
