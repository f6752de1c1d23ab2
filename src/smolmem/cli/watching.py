"""Commands about rules: watch and alerts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

from smolmem.cli.commands import (
    agent_option,
    command,
    count,
    flag,
    limit_option,
    option,
    prices_option,
    run_option,
    time_options,
)
from smolmem.cli.environment import Environment
from smolmem.cli.output import Column
from smolmem.core.errors import InvalidArgument

if TYPE_CHECKING:
    from smolmem.policies.watch import Watch

SECTION = "Rules and alerts"
READY_MADE = ("failures", "same_error", "loop", "slow", "tokens", "cost", "silence")
"""The names of ready-made rules."""


@command(SECTION, "smolmem alerts", "smolmem alerts --rule failures --limit 5")
@run_option("Only alerts of this run.")
@option("--rule", "NAME", "Only alerts of the rule with this name.")
@limit_option(50)
def alerts(env: Environment, **filters: Any) -> None:
    """List alerts, the newest first: when a rule fired, and why."""
    with env.look() as memory:
        found = memory.alerts(scope=env.read_scope, **filters)
    columns = (
        Column("at", lambda alert: env.output.time(alert.at)),
        Column("rule", lambda alert: (alert.rule, "bold"), max_width=30),
        Column("run", lambda alert: (alert.run or "")[:8]),
        Column("step", lambda alert: "" if alert.number is None else str(alert.number), right=True),
        Column("agent", lambda alert: alert.agent, max_width=20, wide=True),
        Column("actions", lambda alert: ", ".join(alert.actions), max_width=20, wide=True),
        Column("reason", lambda alert: alert.reason, rest=True),
    )
    env.output.rows(found, columns, env.nothing_found("alerts", filters), filters["limit"])


@command(
    SECTION,
    "smolmem watch --rule 'pattern:HTTP 5..' --backtest",
    "smolmem watch --rule failures --rule loop --threshold 2 --backtest",
    "smolmem watch --rule silence:600 --once",
)
@option("--rule", "RULE", "The rule; repeatable.", multiple=True, required=True)
@flag("--backtest", "Try the rules on recorded steps, and draw when they would have fired.")
@flag("--once", "Stop after the first alert.")
@option("--window", "N", "How many of the newest steps the rule looks at (default: 10).", type=count)
@option("--threshold", "N", "The rule fires when this many of these steps count (default: 3).", type=count)
@option("--tool", "NAME", "Only steps that call this tool; repeatable.", multiple=True)
@option("--name", "NAME", "The name of the rule in alerts.")
@option("--hours", "N", "Add up tokens or cost over this many hours (default: over one run).", type=float)
@prices_option("The prices of a million input and output tokens, for the rule cost.")
@agent_option
@run_option("With --backtest: only steps of this run.")
@time_options("With --backtest: only steps")
@limit_option(10_000, "With --backtest: the maximum number of steps")
def watch(env: Environment, rule: tuple[str, ...], backtest: bool, once: bool, agent: str | None, **given: Any) -> None:
    """Report when a rule fires, live or on recorded steps.

    RULE is a regular expression that is searched for in observations, plans and errors, or a ready-made rule:
    failures, same_error, loop, slow:FACTOR, tokens:LIMIT, cost:LIMIT (with --prices), silence:SECONDS. `pattern:TEXT`
    is always a regular expression.

    Without --backtest, the command waits for steps that any process records, prints each alert, and stops with Ctrl-C.
    The rules of the agents themselves are not affected.
    """
    filters = {name: given.pop(name) for name in ("run", "since", "until", "limit")}
    rules = [make_rule(text, **given) for text in rule]
    if backtest:
        with env.read() as memory:
            tried = [memory.backtest(each, scope=env.read_scope, agent=agent, **filters) for each in rules]
        env.output.result(tried)
    else:
        _watch(env, rules, agent, once)


def _watch(env: Environment, rules: list[Watch], agent: str | None, once: bool) -> None:
    from smolmem.policies.recorded_rules import StoreWatcher

    with env.open_journal() as journal:
        watcher = StoreWatcher(journal, rules, scope=env.read_scope, agent=agent)
        env.output.hint(f"Watching for {', '.join(rule.name for rule in rules)}; Ctrl-C stops.")
        while True:
            for alert in watcher.alerts():
                env.output.stream(alert)
                if once:
                    return
            env.output.wait()


# --- rules --------------------------------------------------------------------------------------------------------


def make_rule(
    text: str,
    *,
    name: str | None = None,
    window: int | None = None,
    threshold: int | None = None,
    tool: tuple[str, ...] = (),
    hours: float | None = None,
    prices: tuple[float, float] | None = None,
) -> Watch:
    """The rule that a text on the command line stands for."""
    from smolmem.policies.watch import Watch

    given = {"name": name, "window": window, "threshold": threshold, "tool": tool or None}
    options: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    word, colon, rest = text.partition(":")
    word = word.replace("-", "_")
    if word == "pattern" and colon:
        return Watch(rest, **options)
    if word not in READY_MADE or (colon and not re.fullmatch(r"[\d._]+", rest)):
        return Watch(text, **options)
    try:
        amount = float(rest) if rest else None
    except ValueError:
        raise InvalidArgument(f"{rest!r} is not a number.") from None
    if word in ("failures", "same_error", "loop"):
        counting = getattr(Watch, word)(**options | ({} if amount is None else {"threshold": int(amount)}))
        return cast("Watch", counting)
    if word == "slow":
        return Watch.slow(**options | ({} if amount is None else {"factor": amount}))
    if amount is None:
        raise InvalidArgument(f"the rule {word} needs a limit: --rule {word}:{'600' if word == 'silence' else '1000'}.")
    if word == "silence":
        return Watch.silence(amount, **options)
    if word == "tokens":
        return Watch.tokens(int(amount), hours=hours, **options)
    if prices is None:
        raise InvalidArgument("the rule cost needs the prices of a million input and output tokens: --prices 0.5,1.5.")
    return Watch.cost(amount, prices, hours=hours, **options)
