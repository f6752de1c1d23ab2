"""The scripted models of the tutorials. Each reads its prompt and does what a language model would do there."""

from __future__ import annotations

from typing import Any

from scripted import Scripted, answer, calls, code


def since_task(messages: list[Any]) -> str:
    """The prompt from the newest task on."""
    return "\n".join(str(message.content) for message in messages).rpartition("New task:")[2]


def operator(messages: list[Any]) -> Any:
    """Checks the health of a service; restarts the service after an alert, or at once if it remembers the remedy."""
    text = since_task(messages)
    observed = text.rpartition("Observation:")[2] if "Observation:" in text else ""
    if "200 OK" in observed:
        return answer("The service is healthy again: a restart helped.")
    if "[ALERT]" in observed or ("a restart helped" in text and not observed):
        return calls(("restart", {}))
    return calls(("check_health", {}))


def browser(messages: list[Any]) -> str:
    """Opens three pages, one per step, and answers."""
    text = since_task(messages)
    pages = ("products", "cart", "checkout")
    done = text.count("Observation:")
    return code(f"print(open_page('{pages[done]}'))") if done < 3 else code("final_answer('The checkout works')")


def editor(messages: list[Any]) -> str:
    """Asks the researcher, then the writer, and answers."""
    steps = (
        "facts = researcher('When was the lighthouse built?')\nprint(facts)",
        "text = writer('Write one sentence', additional_args={'facts': facts})\nprint(text)",
        "final_answer('The lighthouse has stood here since 1911.')",
    )
    return code(steps[since_task(messages).count("Observation:")])


def models() -> dict[str, dict[str, Any]]:
    """The models of each tutorial, by the name of the page."""
    return {
        "tutorial-monitoring.md": {"model": Scripted(*[operator] * 50)},
        "tutorial-browser.md": {"model": Scripted(*[browser] * 50)},
        "tutorial-team.md": {
            "model": Scripted(*[editor] * 50),
            "research_model": Scripted(*[code("final_answer('It was built in 1911.')")] * 50),
            "writing_model": Scripted(*[code("final_answer('The lighthouse has stood here since 1911.')")] * 50),
        },
    }
