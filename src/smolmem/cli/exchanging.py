"""Commands that exchange runs with other tools: traces are sent, and what others saved is imported."""

from __future__ import annotations

import click

from smolmem.cli.commands import command
from smolmem.cli.environment import Environment
from smolmem.cli.options import option, optional_run, prices_option


def _header(value: str) -> tuple[str, str]:
    name, equals, text = value.partition("=")
    if not equals or not name.strip():
        raise click.BadParameter(f"{value!r} is not a header such as 'authorization=Bearer …'")
    return name.strip(), text.strip()


@command(
    "Runs and steps",
    "smolmem trace --to http://localhost:6006",
    "smolmem trace 3f9a2c1b --to https://host/v1/traces --header 'authorization=Bearer …'",
)
@optional_run
@option("--to", "URL", "The collector: OTLP over HTTP. Without a path, /v1/traces is used.", required=True)
@option("--header", "NAME=VALUE", "A header to send; can be given several times.", type=_header, multiple=True)
@prices_option("The prices of a million input and output tokens, to send the cost of each answer.")
def trace(
    env: Environment,
    run: str | None,
    to: str,
    header: tuple[tuple[str, str], ...],
    prices: tuple[float, float] | None,
) -> None:
    """Send a run to a collector of traces such as Phoenix or Langfuse.

    Any run can be sent, also one that failed or was killed. A run is sent with the runs of managed agents that it
    called. Sending a run twice changes nothing. Headers are also read from OTEL_EXPORTER_OTLP_HEADERS.
    """
    with env.open() as memory, env.output.progress(f"sending to {to}") as progress:
        chosen = env.run(memory, run)
        sent = memory.trace(chosen, to, headers=dict(header), prices=prices, progress=progress)
    env.output.result(sent)
