"""The work of `bench/postgres.py` with what one would use instead: LangGraph's PostgresSaver, and DBOS.

    python bench/postgres_rivals.py langgraph URL STEPS      one JSON line
    python bench/postgres_rivals.py dbos URL STEPS

A step is a model's answer and a tool call. Both store each of them; neither stores the prompt, and nothing can be
recalled by its words.
"""

from __future__ import annotations

import json
import operator
import sys
import time
from typing import Annotated, Any, TypedDict

TEXT = "looks as it always did " * 20


def answer(number: int) -> str:
    """What the model says at a step."""
    return f"Thought: next.\n<code>\nprint(look(number={number}))\n</code>"


def langgraph(url: str, steps: int) -> float:
    """Milliseconds a step of a graph with a checkpoint after each node."""
    from langgraph.checkpoint.postgres import PostgresSaver
    from langgraph.graph import END, START, StateGraph

    class State(TypedDict):
        messages: Annotated[list[str], operator.add]

    def model(state: State) -> dict[str, list[str]]:
        return {"messages": [answer(len(state["messages"]) // 2)]}

    def tool(state: State) -> dict[str, list[str]]:
        return {"messages": [f"number {len(state['messages'])} {TEXT}"]}

    graph = StateGraph(State)
    graph.add_node("model", model)
    graph.add_node("tool", tool)
    graph.add_edge(START, "model")
    graph.add_edge("model", "tool")
    graph.add_conditional_edges("tool", lambda state: END if len(state["messages"]) >= 2 * steps else "model")
    with PostgresSaver.from_conn_string(url) as saver:
        saver.setup()
        compiled = graph.compile(checkpointer=saver)
        config: Any = {"configurable": {"thread_id": "1"}, "recursion_limit": 3 * steps}
        began = time.perf_counter()
        compiled.invoke({"messages": []}, config, durability="sync")
        return 1000 * (time.perf_counter() - began) / steps


def dbos(url: str, steps: int) -> float:
    """Milliseconds a step of a workflow whose model and tool are steps."""
    from dbos import DBOS

    DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR", "run_admin_server": False})

    @DBOS.step()
    def model(number: int) -> str:
        return answer(number)

    @DBOS.step()
    def tool(number: int) -> str:
        return f"number {number} {TEXT}"

    @DBOS.workflow()
    def work() -> int:
        for number in range(steps):
            model(number)
            tool(number)
        return steps

    DBOS.launch()
    try:
        began = time.perf_counter()
        work()
        return 1000 * (time.perf_counter() - began) / steps
    finally:
        DBOS.destroy()


if __name__ == "__main__":
    which, url, steps = sys.argv[1:]
    print(json.dumps({"ms": {"langgraph": langgraph, "dbos": dbos}[which](url, int(steps))}))
