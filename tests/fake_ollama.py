"""A server that speaks as Ollama does, with a scripted model: pages that name a model server run against this one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

ADDRESS = "localhost:11434"
"""The address of Ollama in the pages."""
SCRIPTS = {
    "square numbers": ["squares = [n * n for n in range(1, 6)]\nprint(squares)", "final_answer(sum(squares))"],
    "7 times 7": ["x = 7\nprint(x)", "final_answer(x * x)"],
    "6 times 7": ["print(6 * 7)", "final_answer(42)"],
}
"""What the model writes, step by step, by words of the task."""


def write(messages: list[dict[str, Any]]) -> str:
    """The next code for the newest task: one observation has been made for each step that is done."""
    texts = [str(message["content"]) for message in messages if message["role"] != "system"]
    task = "\n".join(texts).rpartition("New task:")[2]
    steps = next(script for words, script in SCRIPTS.items() if words in task)
    return f"Thought: next step.\n<code>\n{steps[min(task.count('Observation:'), len(steps) - 1)]}\n</code>"


class Ollama(BaseHTTPRequestHandler):
    """Answers `POST /v1/chat/completions`."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        said = {"role": "assistant", "content": write(asked["messages"])}
        answer = {
            "id": "1",
            "object": "chat.completion",
            "created": 0,
            "model": asked["model"],
            "choices": [{"index": 0, "message": said, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 2_000, "completion_tokens": 40, "total_tokens": 2_040},
        }
        body = json.dumps(answer).encode()
        self.send_response(200 if self.path == "/v1/chat/completions" else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Is silent."""


@contextmanager
def serving() -> Iterator[str]:
    """Serves on a free port; yields the address to put in the place of `ADDRESS`."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Ollama) as server:
        server.daemon_threads = True
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
