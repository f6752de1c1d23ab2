"""Runs with a secret in everything, killed and resumed: `secret_resumers.py KIND FOLDER`, one JSON line.

The secret is in the task, the code, the calls, what tools return and raise, and the variables. A resumed run whose
model is asked anything else than in the control run fails: the secret must be back in every prompt.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import resumers
from scripted import answer, calls, code
from smolagents import CodeAgent, ToolCallingAgent, tool

TOKEN, PASSWORD = os.environ["SHOP_TOKEN"], os.environ["SHOP_PASSWORD"]


@tool
def pay(amount: int, token: str, password: str = "") -> str:
    """Pays.

    Args:
        amount: how much
        token: the key
        password: the other one
    """
    assert token == TOKEN
    assert password in ("", PASSWORD)
    resumers.moment()
    with open(resumers.folder / "paid", "a") as file:
        file.write(f"{amount}\n")
    resumers.moment()
    if amount == 13:
        raise ValueError(f"unlucky with {token}")
    return f"paid {amount} with {token} {password}"


def scripts() -> dict[str, tuple[Any, list[Any], list[Any]]]:
    steps = [
        code(f"key = '{TOKEN}'\nkeys = [key]\nprint(pay(amount=1, token=key, password='{PASSWORD}'))"),
        code("said = pay(amount=2, token=keys[0])\nprint(key, pay(amount=3, token=key))"),
        code("pay(amount=13, token=key)"),
        code("final_answer(len(said + key))"),
    ]
    two = [
        calls(("pay", {"amount": 1, "token": TOKEN, "password": PASSWORD})),
        calls(("pay", {"amount": 2, "token": TOKEN}), ("pay", {"amount": 3, "token": TOKEN})),
        calls(("pay", {"amount": 13, "token": TOKEN})),
        answer("done"),
    ]
    return {"secret code": (CodeAgent, steps, []), "secret calls": (ToolCallingAgent, two, [])}


def go_on(name: str, tables: list[Any]) -> None:
    stored = b"".join(file.read_bytes() for file in resumers.folder.glob("agent.db*"))
    assert TOKEN.encode() not in stored
    assert PASSWORD.encode() not in stored
    resume(name, tables)


if __name__ == "__main__":
    resume, resumers.go_on = resumers.go_on, go_on
    resumers.scripts, resumers.pay = scripts, pay
    resumers.TASK = f"Pay with {TOKEN}; the password is {PASSWORD}."
    resumers.folder = Path(sys.argv[2])
    print(json.dumps(resumers.main(sys.argv[1])))
