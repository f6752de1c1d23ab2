"""A small Hugging Face Hub: what `huggingface_hub` asks for when a dataset is created, uploaded and downloaded.

All files are part of the commit; the real Hub lets the client upload large files by themselves, with its native Xet
protocol.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_of_this_test"


class Hub:
    """Datasets by name: whether they are private, and their files."""

    def __init__(self) -> None:
        self.private: dict[str, bool] = {}
        self.files: dict[str, dict[str, bytes]] = {}
        self.endpoint = ""

    def commit(self, repo: str) -> str:
        return hashlib.sha1(repr(sorted(self.files[repo].items())).encode()).hexdigest()

    def apply(self, repo: str, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                self.files[repo][value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "deletedFile":
                del self.files[repo][value["path"]]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *args: Any) -> None:
        pass

    def answer(self, status: int, body: Any = b"", **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    @property
    def allowed(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def do_POST(self) -> None:
        data, path = self.body(), self.path.partition("?")[0]
        if not self.allowed:
            return self.answer(401, {"error": "Invalid credentials"})
        if path == "/api/validate-yaml":
            return self.answer(200, {"errors": [], "warnings": []})
        if path == "/api/repos/create":
            return self.create(json.loads(data))
        if found := re.fullmatch(r"/api/datasets/([\w-]+/[\w-]+)/(preupload|commit|paths-info)/\w+", path):
            return self.act(found[1], found[2], data)
        return self.answer(404)

    def create(self, asked: dict[str, Any]) -> None:
        repo = f"{asked.get('organization') or 'me'}/{asked['name']}"
        if repo in self.hub.private:
            return self.answer(409, {"error": "exists", "url": f"{self.hub.endpoint}/datasets/{repo}"})
        self.hub.private[repo] = bool(asked.get("private")) or asked.get("visibility") == "private"
        self.hub.files[repo] = {}
        return self.answer(200, {"url": f"{self.hub.endpoint}/datasets/{repo}", "id": "1"})

    def act(self, repo: str, what: str, data: bytes) -> None:
        if what == "preupload":
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False, "oid": None}
                for file in json.loads(data)["files"]
            ]
            return self.answer(200, {"files": files})
        if what == "commit":
            self.hub.apply(repo, [json.loads(line) for line in data.decode().splitlines() if line])
            commit = self.hub.commit(repo)
            url = f"{self.hub.endpoint}/datasets/{repo}/commit/{commit}"
            return self.answer(200, {"success": True, "commitOid": commit, "commitUrl": url, "hookOutput": ""})
        return self.answer(200, [])

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        found = re.fullmatch(r"/api/datasets/([\w-]+/[\w-]+?)(?:/(revision|tree)/(\w+))?", path)
        if found is not None and self.visible(found[1]):
            return self.describe(found[1], tree=found[2] == "tree", revision=found[3])
        found = re.fullmatch(r"/datasets/([\w-]+/[\w-]+)/resolve/\w+/(.+)", path)
        if found is not None and self.visible(found[1]) and found[2] in self.hub.files[found[1]]:
            data = self.hub.files[found[1]][found[2]]
            etag = f'"{hashlib.sha1(data).hexdigest()}"'
            return self.answer(200, data, ETag=etag, X_Repo_Commit=self.hub.commit(found[1]))
        return self.answer(404, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")

    do_HEAD = do_GET

    def visible(self, repo: str) -> bool:
        return repo in self.hub.private and (self.allowed or not self.hub.private[repo])

    def describe(self, repo: str, *, tree: bool, revision: str | None) -> None:
        if revision not in (None, "main", self.hub.commit(repo)):
            return self.answer(404, {"error": "no revision"}, X_Error_Code="RevisionNotFound")
        files = self.hub.files[repo]
        if tree:
            described = [
                {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for path, data in files.items()
            ]
            return self.answer(200, described)
        about = {"id": repo, "sha": self.hub.commit(repo), "private": self.hub.private[repo], "tags": []}
        return self.answer(200, about | {"siblings": [{"rfilename": path} for path in files]})


@contextmanager
def running_hub() -> Iterator[Hub]:
    """A Hub on loopback."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
