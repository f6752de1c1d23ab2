"""The command that watches: rules from the command line, tried on the past or on what comes."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Any

from smolmem.cli.command import Command, count, number, opened, past, prices, scope_of
from smolmem.core.errors import InvalidArgument

if TYPE_CHECKING:
    from smolmem.cli.output import Out
    from smolmem.policies.watch import Watch

READY = ("failures", "same_error", "loop", "slow", "tokens", "cost", "silence")
"""The names of ready-made rules."""


def watch(args: argparse.Namespace, out: Out) -> None:
    """Tries rules on the past, or follows what comes."""
    rules = [rule_of(text, args) for text in args.rule]
    with opened(args) as memory:
        if args.backtest:
            wanted = {"agent": args.agent, "run": args.run, "since": args.since, "until": args.until}
            tried = [memory.backtest(rule, scope=scope_of(args), **wanted, limit=args.limit) for rule in rules]
            out.give(tried, lambda: _group(tried))
            return
        from smolmem.cli.following import Watcher, wait

        watcher = Watcher(memory, rules, scope=scope_of(args), agent=args.agent)
        names = ", ".join(rule.name for rule in rules)
        out.tell(f"Watching for {names}; Ctrl-C ends.")
        while True:
            for alert in watcher.look():
                out.line(alert, lambda alert=alert: alert)  # type: ignore[misc]
                if args.once:
                    return
            wait()


def _group(tried: list[Any]) -> Any:
    from rich.console import Group

    return Group(*tried)


def rule_of(text: str, args: argparse.Namespace) -> Watch:
    """A rule as it is written on the command line.

    Raises:
        InvalidArgument: there is no such rule.
    """
    from smolmem.policies.watch import Watch

    given = {"name": args.name, "window": args.window, "threshold": args.threshold, "tools": args.tool}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    word, colon, rest = text.partition(":")
    word = word.replace("-", "_")
    if word == "pattern" and colon:
        return Watch(rest, **options)
    if word not in READY or (colon and not re.fullmatch(r"[\d._]+", rest)):
        return Watch(text, **options)
    return _ready(word, rest, args, options)


def _ready(word: str, rest: str, args: argparse.Namespace, options: dict[str, Any]) -> Watch:
    from smolmem.policies.watch import Watch

    amount = _amount(rest)
    if word in ("failures", "same_error", "loop"):
        rules = {"failures": Watch.failures, "same_error": Watch.same_error, "loop": Watch.loop}
        return rules[word](**options | ({} if amount is None else {"threshold": int(amount)}))
    if word == "slow":
        return Watch.slow(**options | ({} if amount is None else {"factor": amount}))
    if amount is None:
        raise InvalidArgument(f"the rule {word} needs a limit: --rule {word}:{'600' if word == 'silence' else '1000'}.")
    if word == "silence":
        return Watch.silence(amount, **options)
    if word == "tokens":
        return Watch.tokens(int(amount), hours=args.hours, **options)
    if args.prices is None:
        raise InvalidArgument("the rule cost needs the prices of a million tokens in and out: --prices 0.5,1.5.")
    return Watch.cost(amount, args.prices, hours=args.hours, **options)


def _amount(text: str) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        raise InvalidArgument(f"{text!r} is not a number.") from None


def _of_watch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rule", metavar="RULE", action="append", required=True, help="what to watch for; repeatable")
    parser.add_argument("--backtest", action="store_true", help="try it on the past instead, with a picture")
    parser.add_argument("--once", action="store_true", help="end with the first alert")
    parser.add_argument("--window", metavar="N", type=count, help="so many of the newest steps are looked at (10)")
    parser.add_argument("--threshold", metavar="N", type=count, help="it fires when so many of them count (3)")
    parser.add_argument("--tool", metavar="NAME", action="append", help="only steps that call this tool; repeatable")
    parser.add_argument("--name", metavar="NAME", help="what the rule is called in alerts")
    parser.add_argument("--hours", metavar="N", type=number, help="tokens and cost of so many hours, not of one run")
    parser.add_argument("--prices", metavar="IN,OUT", type=prices, help="of a million tokens, for the rule cost")
    parser.add_argument("--agent", metavar="NAME", help="only of the agent of this name")
    parser.add_argument("--run", metavar="RUN", help="with --backtest: only this run")
    parser.add_argument("--since", metavar="TIME", type=past, help="with --backtest: only from then on")
    parser.add_argument("--until", metavar="TIME", type=past, help="with --backtest: only before then")
    parser.add_argument(
        "--limit", metavar="N", type=count, default=10_000, help="with --backtest: so many steps (10,000)"
    )


COMMANDS = (
    Command(
        "watch",
        "Watch",
        "tells when a rule fires, live in any process or on the past",
        watch,
        (
            "smolmem watch --rule 'pattern:HTTP 5..' --backtest",
            "smolmem watch --rule failures --rule loop --threshold 2 --backtest",
            "smolmem watch --rule silence:600 --once",
        ),
        _of_watch,
        "RULE is a regular expression that is looked for in what comes back, or a ready-made rule: failures, "
        "same_error, loop, slow:FACTOR, tokens:LIMIT, cost:LIMIT (with --prices), silence:SECONDS. `pattern:TEXT` is a "
        "regular expression whatever it looks like. Without --backtest it waits for steps that any process records, "
        "prints an alert each time the rule fires, and goes on until Ctrl-C; the rules of agents themselves act as "
        "before.",
    ),
)
