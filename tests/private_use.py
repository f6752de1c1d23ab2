"""Uses smolmem in every way that needs no network: `private_use.py FOLDER`, in a process that is watched."""

from __future__ import annotations

import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

from scripted import code, code_agent

from smolmem import Memory
from smolmem.cli.main import main
from smolmem.inspector import serve


def use(folder: Path) -> None:
    path = folder / "agent.db"
    with Memory(path, embedder="local") as memory:
        agent = memory.attach(code_agent(code("print('blue')"), code("final_answer(1)")), recall=2, tools=True)
        agent.run("Which colour is the sky?")
        memory.remember("The sky is blue.")
        assert memory.recall("colour of the heavens")
        assert memory.doctor() is not None
        memory.backup(folder / "copy.db")
        memory.export(folder / "export.zip")
    for command in (["runs"], ["search", "sky"], ["doctor"], ["verify"], ["stats"]):
        assert main(["--db", str(path), *command]) in (0, 1), command
    inspect(path)


def inspect(path: Path) -> None:
    """Starts the inspector and asks it for a page."""
    listening: list[Any] = []
    original = serve.listen

    def listen(*args: Any, **given: Any) -> Any:
        listening.append(original(*args, **given))
        return listening[0]

    serve.listen = listen  # type: ignore[assignment]
    threading.Thread(target=lambda: serve.serve(str(path), port=None, open_browser=False), daemon=True).start()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            port = listening[0].getsockname()[1]
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5)
        except urllib.error.HTTPError:
            return  # it answers, and asks for the link
        except (OSError, IndexError):
            time.sleep(0.1)
        else:
            return
    raise AssertionError("the inspector did not answer")


if __name__ == "__main__":
    use(Path(sys.argv[1]))
    time.sleep(0.5)  # telemetry is sent from a thread
    print("used", flush=True)
