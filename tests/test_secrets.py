"""Secrets are not stored; the live agent keeps them, and a resumed run gets them back."""

from __future__ import annotations

import ast
import base64
import html
import json
import os
import random
import re
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import programs
import pytest
from PIL import Image
from scripted import Scripted, answer, calling_agent, calls, code, code_agent
from secret_samples import FORMATS, NAMED, ROOT, benign, made, placed, texts
from smolagents import CodeAgent, tool
from smolagents.models import ChatMessageStreamDelta, ChatMessageToolCallFunction, ChatMessageToolCallStreamDelta
from smolagents.utils import AgentGenerationError
from test_erase import stored_bytes

from smolmem import CannotResume, Memory, Watch, views
from smolmem.core import secret_formats
from smolmem.core.encoding import codec
from smolmem.core.encoding.mutations import Outcome
from smolmem.core.errors import InvalidArgument
from smolmem.core.redaction import Redactor

HERE = Path(__file__).parent
TORTURE = bool(os.environ.get("SMOLMEM_TORTURE"))
EACH = 100 if TORTURE else 4
BENIGN = 200_000 if TORTURE else 10_000
TOKEN = made("ghp_{a36}", random.Random(11))
PASSWORD = made("{a8}-{d3}!x", random.Random(12))


@pytest.fixture
def memory(path: Path) -> Iterator[Memory]:
    with Memory(path, strict=True, embedder="off") as opened:
        yield opened


@tool
def echo(text: str, password: str = "") -> str:
    """Says what it is told.

    Args:
        text: what
        password: a secret
    """
    if "raise" in text:
        raise ValueError(f"cannot say {text}")
    return f"said {text}"


# --- the figures ----------------------------------------------------------------------------------------------------


@pytest.mark.promise("S11")
def test_99_of_100_secrets_of_known_formats_are_found_in_text_json_urls_code_and_errors() -> None:
    rng, redactor = random.Random(1), Redactor(b"key")
    assert len(FORMATS) >= 40
    cases, left = 0, []
    for _ in range(EACH):
        samples = [(made(template, rng), "") for template in FORMATS.values()]
        samples += [(made(template, rng), name) for name, template in NAMED.items()]
        for secret, name in samples:
            end = re.split(r":|\.atlasv1", secret)[-1]  # of these two formats only the secret part is taken out
            for place, text in texts(secret, name).items():
                cases += 1
                left += [(place, secret)] if {end, quote(end, safe="")} & {*parts(redactor.text(text))} else []
        for place, (secret, text) in placed(rng).items():
            cases += 1
            left += [(place, secret)] if secret in redactor.text(text) else []
    assert cases >= 40 * 5 * EACH
    assert len(left) <= cases / 100, left[:5]


def parts(text: str) -> list[str]:
    """The pieces of a text that could be a secret."""
    return [*re.split(r"""[\s"'\\&=,()<>]+""", text), *re.split(r"""[\s"'\\&=,()<>:]+""", text)]


@pytest.mark.promise("S11")
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("ghp_" + "aB3dE6gH9j" * 3 + "kL2mN5", "ghp_" + "Zz8Yy7Xx6W" * 3 + "vV5uU4"),
        ("AKIA7B4QCVJO256XM6V7", "AKIATYKRPGXCJSWN3FOG"),
        ("hf_" + "AbCdEfGhIjKlMnOpQr" * 2, "npm_" + "a1B2c3D4e5F6" * 3),
        ("SG." + "a1B2c3D4e5F" * 2 + "." + "Zz8Yy7Xx6W" * 4, "SG." + "q1W2e3R4t5Y" * 2 + "." + "Mm8Nn7Bb6V" * 4),
    ],
)
def test_keys_that_follow_each_other_without_a_gap_are_all_removed(first: str, second: str) -> None:
    told = Redactor(b"k" * 32).text(f"keys: {first}{second}.")
    assert first[-12:] not in told
    assert second[-12:] not in told


@pytest.mark.promise("S11")
@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("https://hooks.slack.com/services/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", "aB3dE6gH9jkL2mN5pQ8rS1tU"),
        ("postgresql://bob:aB3dE6gH9jkL2mN5@db.example.org/shop", "aB3dE6gH9jkL2mN5"),
        ("-----BEGIN RSA PRIVATE KEY-----\n" + "aB3+dE6/gH9j" * 40 + "\n-----END RSA PRIVATE KEY-----", "gH9jaB3"),
    ],
)
def test_a_secret_by_its_place_is_found_where_it_is_encoded_for_a_url(text: str, secret: str) -> None:
    told = Redactor(b"k" * 32).text(f"GET https://api.example.org/v1?from={quote(text)}&limit=2")
    assert secret not in told
    assert told.endswith("&limit=2")


@pytest.mark.promise("S11")
def test_a_value_that_ends_with_the_name_of_the_next_secret_does_not_hide_that_secret() -> None:
    text = "login?db_pass=hunter2hunter2A?pass := correct9HORSE"
    found = [text[one.start : one.end] for one in secret_formats.find(text)]
    assert found == ["hunter2hunter2A?pass", "correct9HORSE"]


@pytest.mark.sampled
@pytest.mark.parametrize("first", ["/", "./", "~/", "//"])
def test_a_key_that_begins_as_a_path_is_found_and_a_path_is_not(first: str) -> None:
    rng, redactor = random.Random(6), Redactor(b"key")
    for _ in range(100 * EACH):
        secret = first + made("{b42}a1", rng)
        for text in texts(secret, "AccountKey").values():
            assert secret[2:] not in redactor.text(text)
            assert quote(secret[2:], safe="") not in redactor.text(text)
    for path in ("/etc/ssl/private/key-2.pem", "./keys/id_rsa", "~/.ssh/id_ed25519", "/run/secrets/3fa9c2d1e0"):
        assert redactor.text(f"api_key: {path}") == f"api_key: {path}"


@pytest.mark.promise("S11")
def test_the_body_of_a_pgp_key_is_found() -> None:
    body = "\n".join(made("{b64}", random.Random(7)) for _ in range(5))
    text = f"-----BEGIN PGP PRIVATE KEY BLOCK-----\n\n{body}\n-----END PGP PRIVATE KEY BLOCK-----"
    assert body[70:100] not in Redactor(b"key").text(text)


@pytest.mark.sampled
def test_hashes_ids_logs_code_and_pictures_are_left_alone() -> None:
    lines, redactor = benign(random.Random(2), BENIGN), Redactor(b"key")
    changed = [line for line in lines if redactor.text(line) != line]
    assert len(lines) == BENIGN
    assert len(changed) <= BENIGN / 100, changed[:5]


@pytest.mark.promise("S11")
def test_a_record_is_searched_as_a_whole_as_well_as_text_by_text() -> None:
    """What is found in a text must be suspected in the record that holds the text, whatever JSON makes of it."""
    rng, redactor = random.Random(3), Redactor(b"key")
    for _ in range(EACH):
        for name, template in {**FORMATS, **NAMED}.items():
            secret = made(template, rng)
            for text in texts(secret, name if name in NAMED else "").values():
                for shown in (text, f"é\n{text}\té", [text], {"a": {"b": text + " x" * 3000}}, text.encode()):
                    record = codec.encode(shown, redactor)
                    assert record.redacted
                    data = record.record + b"".join(record.blobs.values())
                    assert secret.encode() not in data


@pytest.mark.promise("S11")
@pytest.mark.parametrize("value", ["f/seUeIfNh37q9zLDqkDyea9FcF0Lowh", "b'f/seUeIfNh37q9zLDqkDyea9FcF0Lowh'"])
def test_a_value_that_begins_as_the_prefix_of_a_string_is_found(value: str) -> None:
    assert "seUeIfNh37" not in Redactor(b"key").text(f"Use this, aws_secret_access_key: {value} and go on.")


def test_a_search_takes_time_in_proportion_to_the_text_whatever_it_holds() -> None:
    pieces = [
        "password=",
        "password: '",
        "://",
        "://a:b",
        "eyJ",
        "eyJhbGciOiJIUzI1NiJ9.",
        "-----BEGIN PRIVATE KEY-----",
    ]
    pieces += [
        "sk-",
        "ghp_",
        "a" * 40 + " ",
        "key='",
        "token>",
        "Bearer ",
        "basic ",
        "\\",
        "'",
        "M" * 24 + ".",
        "x",
        "AA",
    ]
    for piece in pieces:
        began = time.process_time()
        secret_formats.find((piece * (200_000 // len(piece))).encode())
        assert time.process_time() - began < 3, piece


def test_what_was_redacted_is_not_redacted_again() -> None:
    redactor = Redactor(b"key", secrets={"name": "a value that is secret"})
    rng = random.Random(4)
    for name, template in {**FORMATS, **NAMED}.items():
        for text in texts(made(template, rng), name if name in NAMED else "").values():
            once = redactor.text(text)
            assert redactor.text(once) == once
            assert redactor.known.text(once) == text


# --- nothing on disk ------------------------------------------------------------------------------------------------


def everywhere(memory: Memory, secret: str) -> CodeAgent:
    """An agent that has a secret in everything that is recorded."""
    script = [
        code(f"token = '{secret}'\nkept = {{'a': [token], b'b': token.encode()}}\nprint(echo(text=token))"),
        code(f"echo(text='raise {secret}')"),
        code(f"print('x' * 5000, token)\nlogin = {{'password': '{PASSWORD}'}}"),
        code("final_answer(token)"),
    ]
    rule = Watch(secret[:8], name="leak", then="note")
    agent = code_agent(*script, tools=[echo], instructions=f"Never print {secret}.")
    memory.attach(agent, watch=[rule], views=[views.Summarize(keep_last=1)], recall=3, tools=True)
    memory.inject(agent, f"The key is {secret}.", title=f"key {secret}")
    return agent


@pytest.mark.promise("S11")
def test_a_secret_is_in_no_byte_of_the_file_its_log_or_an_export(memory: Memory, path: Path, tmp_path: Path) -> None:
    memory.remember(f"The key is {TOKEN}.", tags=[f"tag-{TOKEN}"])
    agent = everywhere(memory, TOKEN)
    assert agent.run(f"{'Go on. ' * 25}Use {TOKEN}", additional_args={"given": TOKEN}) == TOKEN
    step = next(step for step in memory.steps() if step.kind == "action" and step.number == 1)
    step.edit(observations=f"edited {TOKEN}")
    failing = code_agent(RuntimeError(f"401 for {TOKEN}"))
    memory.attach(failing)
    with pytest.raises(Exception, match="401"):
        failing.run("Fail")
    calling = memory.attach(
        calling_agent(calls(("echo", {"text": "x", "password": PASSWORD})), answer(TOKEN), tools=[echo])
    )
    calling.run("Call")
    memory.recall(f"what about {TOKEN}?")
    memory.export(tmp_path / "export")
    for secret in (TOKEN, PASSWORD):
        stored = stored_bytes(path)
        assert secret.encode() not in stored
        for file in (tmp_path / "export").rglob("*"):
            assert file.is_dir() or secret.encode() not in file.read_bytes()
        assert secret[:20].encode() not in stored, "half a secret is left"
    assert memory.verify(), memory.verify().problems
    assert "⟨secret:github:" in memory.runs(text="Use")[0].steps[-1].text or memory.steps(text="⟨secret:github:")


def test_the_live_agent_keeps_the_value(memory: Memory) -> None:
    agent = everywhere(memory, TOKEN)
    agent.run(f"Use {TOKEN}")
    assert any(TOKEN in str(step.observations) for step in agent.memory.steps if hasattr(step, "observations"))
    assert TOKEN in str(agent.model.prompts[-1])
    sent = [step.model_input_messages for step in agent.memory.steps if getattr(step, "model_input_messages", None)]
    assert all(TOKEN in str(list(messages)) for messages in sent)
    assert [str(list(messages)) for messages in sent][-1] == str(agent.model.prompts[-1])
    memory.detach(agent)
    assert TOKEN in str(agent.memory.get_full_steps())


def test_pictures_and_arrays_are_as_they_were(memory: Memory) -> None:
    picture = Image.frombytes("RGB", (64, 64), random.Random(5).randbytes(64 * 64 * 3))
    redactor = Redactor(b"key", secrets={"all": "AAAA"})
    record = codec.encode([picture, b"\x89PNG\xff", f"{TOKEN}"], redactor)
    back = codec.decode(record.record, record.blobs.__getitem__)
    assert back[0].tobytes() == picture.tobytes()
    assert back[1] == b"\x89PNG\xff"
    assert TOKEN not in back[2]


@pytest.mark.promise("S11")
@pytest.mark.parametrize("size", [1, 5000])
def test_a_secret_in_bytes_that_are_no_text_is_not_stored_and_comes_back(size: int) -> None:
    value = {"body": b"\x89\xff" * size + TOKEN.encode() + b"\x00\xfe", "named": bytearray(b"\xe9 named-1 \xff")}
    redactor = Redactor(b"key", [lambda text: [text.encode().decode()[:0]]], {"NAMED": "named-1"})
    record = codec.encode(value, redactor)
    stored = record.record + b"".join(record.blobs.values())
    shown = codec.decode(record.record, record.blobs.__getitem__)
    assert TOKEN.encode() not in stored + shown["body"]
    assert b"named-1" not in shown["named"]
    assert shown["body"].endswith(b"\x00\xfe")
    assert codec.decode(record.record, record.blobs.__getitem__, secrets=redactor.known) == value


@pytest.mark.promise("S11")
@pytest.mark.parametrize("before", ["my_", "backup", "x-y_", "\\xff", "\\U0001f600", "%0A", "prefix_of_a_long_name"])
def test_a_token_that_follows_other_letters_is_found(before: str) -> None:
    told = Redactor(b"k" * 32).text(f"see {before}{TOKEN} here")
    assert TOKEN[4:] not in told
    assert told.startswith(f"see {before}")
    assert told.endswith(" here")


@pytest.mark.promise("S11")
def test_a_secret_anywhere_in_a_long_text_is_found() -> None:
    size, step = 3 << 20, 65_521
    text = "".join(f"{TOKEN} ".rjust(step, "ä") for _ in range(size // step))
    told = Redactor(b"k" * 32).text(text)
    assert TOKEN not in told
    assert told.count("⟨secret:github:") == size // step
    body = "-----BEGIN RSA PRIVATE KEY-----\n" + "aB3+dE6/gH9j" * 1300 + "\n-----END RSA PRIVATE KEY-----"
    for before in ((1 << 20) - 40, (1 << 20) - 9000, (1 << 20) - (1 << 16) - 9):
        assert "gH9jaB3" not in Redactor(b"k" * 32).text(" " * before + body)


@pytest.mark.promise("S11")
def test_a_tool_name_that_a_model_made_of_a_secret_is_not_stored(path: Path, memory: Memory) -> None:
    agent = memory.attach(calling_agent(calls((f"curl {TOKEN}", {"q": 1})), answer("done")))
    agent.run("Go")
    assert TOKEN.encode() not in stored_bytes(path)


class InPieces(Scripted):
    """A model that streams its tool calls, too."""

    def generate_stream(self, messages: list[Any], **kwargs: Any) -> Iterator[ChatMessageStreamDelta]:
        said = self.generate(messages, **kwargs)
        for number, call in enumerate(said.tool_calls or ()):
            written, begins = json.dumps(call.function.arguments), True
            for start in range(0, len(written), 5):
                function = ChatMessageToolCallFunction(written[start : start + 5], call.function.name if begins else "")
                delta = ChatMessageToolCallStreamDelta(number, call.id if begins else None, "function", function)
                yield ChatMessageStreamDelta(tool_calls=[delta])
                begins = False


@pytest.mark.parametrize("kind", ["code", "calls"])
def test_a_secret_that_is_streamed_in_pieces_is_not_stored(path: Path, memory: Memory, kind: str) -> None:
    if kind == "code":
        agent = code_agent(code(f"key = '{TOKEN}'"), code("final_answer(key)"), stream_outputs=True)
    else:
        agent = calling_agent(tools=[echo], stream_outputs=True)
        agent.model = InPieces(calls(("echo", {"text": TOKEN})), answer(TOKEN))
    assert memory.attach(agent).run("Go") == TOKEN
    assert TOKEN.encode() not in stored_bytes(path)
    recorded = [call for call in memory._journal.calls(memory.runs()[0].id) if call.kind == "model"]
    deltas = [delta for call in recorded for delta in call.result]
    said = [(delta.content, *(call.function.arguments for call in delta.tool_calls or ())) for delta in deltas]
    assert "⟨secret:github:" in str(said)
    assert TOKEN not in "".join(piece or "" for pieces in said for piece in pieces)


def test_secrets_in_bytes_arrays_frames_and_keys_are_found_and_put_back() -> None:
    import numpy
    import pandas

    value = {
        "array": numpy.array([["a", TOKEN]]),
        "bytes": numpy.array([TOKEN.encode()]),
        "scalar": numpy.str_(TOKEN),
        "frame": pandas.DataFrame({"token": ["x", TOKEN], TOKEN: [1, 2]}),
        "set": {TOKEN},
        TOKEN: (TOKEN.encode() + b" ") * 200,
        "long": "x " * 5000 + TOKEN,
        (1, TOKEN): bytearray(TOKEN.encode()),
        "error": ValueError(TOKEN, 1),
    }
    redactor = Redactor(b"key")
    record = codec.encode(value, redactor)
    assert TOKEN.encode() not in record.record + b"".join(record.blobs.values())
    codec.decode(record.record, record.blobs.__getitem__)
    back = codec.decode(record.record, record.blobs.__getitem__, secrets=redactor.known)
    assert codec.encode(back).record == codec.encode(value).record
    assert codec.encode(back, redactor).key == record.key


def test_a_pattern_or_function_that_fails_costs_the_text_not_the_step(path: Path) -> None:
    with Memory(
        path, strict=True, embedder="off", redact=["(x+x+)+y", lambda text: [1 / ("boom" not in text)]]
    ) as memory:
        memory.attach(code_agent(code("print('x' * 60, 1)"), code("print('boom')"), code("final_answer(1)"))).run("Go")
        assert memory.runs()[0].status == "finished"
        assert b"xxxxxxxxxxxx" not in stored_bytes(path)
        assert b"boom" not in stored_bytes(path)


def test_environment_variables_that_are_named_as_secrets_are_not_stored(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", PASSWORD)
    monkeypatch.setenv("SHOP_PASSWORD_HINT", "postgres")
    with Memory(path, embedder="off") as memory:
        agent = memory.attach(code_agent(code(f"print({PASSWORD!r}, 'postgres')"), code("final_answer(1)")))
        agent.run("Go")
        monkeypatch.setenv("LATER_KEY", "a9$kfj2lq0")
        agent.model = Scripted(code("final_answer('a9$kfj2lq0')"))
        agent.run("Go again")
        assert "⟨secret:SHOP_PASSWORD:" in memory.steps(text="postgres")[0].text
        assert PASSWORD.encode() not in stored_bytes(path)
        assert b"a9$kfj2lq0" not in stored_bytes(path)


def test_passphrases_of_several_words_in_environment_variables_are_not_stored(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_PASSPHRASE", "correct horse battery staple")
    monkeypatch.setenv("OLDPWD", "/home/ann/my own files")
    with Memory(path, embedder="off") as memory:
        text = memory.remember("correct horse battery staple opens /home/ann/my own files").text
    assert re.fullmatch(r"⟨secret:SHOP_PASSPHRASE:\w{8}⟩ opens /home/ann/my own files", text)


@pytest.mark.parametrize("value", ['päss "word"/<7>&', "xK9#mQ2$vL7&pR4!"])
def test_a_named_secret_in_html_or_base64_is_not_stored_and_is_put_back(path: Path, value: str) -> None:
    data = value.encode()
    said = [html.escape(value), base64.b64encode(data).decode(), base64.urlsafe_b64encode(data).decode()]
    with Memory(path, embedder="off", secrets={"MINE": value}) as memory:
        agent = memory.attach(code_agent(code(f"said = {said!r}"), RuntimeError("down")))
        with pytest.raises(AgentGenerationError):
            agent.run("Go")
    for form in said:
        assert form.rstrip("=").encode() not in stored_bytes(path)
    with Memory(path, strict=True, embedder="off", secrets={"MINE": value}) as memory:
        assert memory.resume(code_agent(code("final_answer(said)"))) == said


def test_named_values_patterns_and_functions_are_redacted_besides_in_every_spelling(path: Path) -> None:
    value = 'päss "word"/\\7'
    finds = lambda text: re.findall(r"card \d{4}", text)  # noqa: E731
    with Memory(path, embedder="off", redact=[r"order-(\d{6})", finds], secrets={"MINE": value}) as memory:
        said = f"{value} {json.dumps(value)} {value!r} {quote(value)} order-123456 card 4242"
        memory.attach(code_agent(code(f"print({said!r})"), code("final_answer(1)"))).run("Go")
        stored = stored_bytes(path)
        for secret in (
            value.encode(),
            json.dumps(value)[1:-1].encode(),
            quote(value).encode(),
            b"123456",
            b"card 4242",
        ):
            assert secret not in stored
        assert TOKEN.encode() not in stored
        text = memory.steps(kind="action")[-1].text
        assert "⟨secret:MINE:" in text
        assert "order-⟨secret:custom:" in text


def test_a_named_value_is_found_where_its_format_is_not(path: Path) -> None:
    with Memory(path, embedder="off", secrets={"MINE": TOKEN}) as memory:
        memory.attach(code_agent(code(f"print('x{TOKEN}x')"), code("final_answer(1)"))).run(f"Use {TOKEN}")
        assert TOKEN.encode() not in stored_bytes(path)
        assert "⟨secret:github:" in memory.runs()[0].title


def test_recalled_text_keeps_its_placeholders(memory: Memory) -> None:
    memory.remember(f"The key of the door is {TOKEN}.")
    agent = memory.attach(code_agent(code("final_answer(1)")), recall=3)
    agent.run("Which key opens the door?")
    assert "The key of the door is ⟨secret:github:" in str(agent.model.prompts[0])


def test_redact_false_stores_everything_as_it_is(path: Path) -> None:
    with Memory(path, redact=False, secrets={"name": "value value"}, embedder="off") as memory:
        memory.attach(code_agent(code(f"print('{TOKEN} value value')"), code("final_answer(1)"))).run("Go")
        assert f"{TOKEN} value value" in memory.steps(text=TOKEN)[0].text


@pytest.mark.parametrize(
    "options",
    [{"redact": "("}, {"redact": [1]}, {"secrets": {"a": "b"}}, {"secrets": {"a": 1}}, {"secrets": {1: "abcd"}}],
)
def test_a_pattern_or_secret_that_cannot_be_used_is_refused(path: Path, options: Any) -> None:
    with pytest.raises(InvalidArgument):
        Memory(path, **options)


def test_everything_that_agents_record_passes_the_redactor() -> None:
    """Only the store encodes, with its redactor; what erasing rewrites was stored without secrets."""
    allowed = {"store/contents.py", "store/erasure/erased_contents.py", "store/erasure/erased_sessions.py"}
    for file in (ROOT / "src" / "smolmem").rglob("*.py"):
        name = file.relative_to(ROOT / "src" / "smolmem").as_posix()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr == "encode" and ast.unparse(node.value) == "codec":
                assert name in allowed, f"{name} encodes by itself"
            if isinstance(node, ast.ImportFrom) and (node.module or "").endswith("codec"):
                assert "encode" not in [alias.name for alias in node.names], name


# --- resume ---------------------------------------------------------------------------------------------------------


@pytest.mark.promise("D12")
@pytest.mark.parametrize("scenario", ["secret code", "secret calls"])
def test_a_killed_run_gets_its_secrets_back_in_every_prompt_call_and_variable(tmp_path: Path, scenario: str) -> None:
    secrets = {"SHOP_TOKEN": TOKEN, "SHOP_PASSWORD": PASSWORD}
    command = [HERE / "secret_resumers.py", scenario, tmp_path]
    done = programs.run(command, env=os.environ | secrets, timeout=1800 if TORTURE else 250)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout[done.stdout.rindex("{") :])
    assert told["killed"] > (36 if TORTURE else 4)
    assert told["unknown"] > 0
    same = {"killed": told["killed"], "resumed": told["killed"], "unknown": told["unknown"]}
    assert told == {**same, "wrong answer": 0, "lost": 0, "doubled": 0}


def interrupted(path: Path, *script: Any, task: str = "Go", **options: Any) -> None:
    with Memory(path, strict=True, embedder="off", **options) as memory:
        agent = memory.attach(code_agent(*script, ConnectionError("429"), tools=[echo]))
        with pytest.raises(Exception, match="429"):
            agent.run(task)


def test_a_missing_secret_is_named_before_anything_runs(path: Path) -> None:
    interrupted(path, code(f"token = '{TOKEN}'\nprint(token)"), task=f"Use {TOKEN}")
    with Memory(path, strict=True, embedder="off") as memory:
        agent = code_agent(code("final_answer(token)"), tools=[echo])
        with pytest.raises(CannotResume) as refused:
            memory.resume(agent)
        known = memory._journal.redactor.fingerprint(TOKEN)
        for said in (f"github {known}", "the task, task", "step 1, code action", "variable token", "secrets={"):
            assert said in str(refused.value)
        assert not agent.model.prompts
        assert memory.runs()[0].status == "failed"
    for secrets in ({"ANY": TOKEN}, {known: TOKEN}):
        with Memory(path, strict=True, embedder="off", secrets=secrets) as memory:
            fork = memory.runs()[-1].fork()
            agent = code_agent(code("final_answer(token)"), tools=[echo])
            assert fork.resume(agent) == TOKEN
            assert TOKEN in str(agent.model.prompts)
    with Memory(path, strict=True, embedder="off") as memory:
        fork = memory.runs()[-1].fork()
        assert fork.resume(code_agent(code("final_answer(token)")), placeholders=True) == f"⟨secret:github:{known}⟩"


def test_a_secret_that_was_only_read_does_not_keep_a_run_from_resuming(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    interrupted(path, code("x = 1\nprint('A page says: gh' + 'p_' + 'aB3' * 12)"))
    with Memory(path, strict=True, embedder="off") as memory:
        assert memory.resume(code_agent(code("final_answer(x)"), tools=[echo])) == 1
    assert "step 1, observations" in caplog.text


def test_secrets_inside_environment_variables_are_put_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"postgresql://ann:{quote(PASSWORD, safe='')}@db/shop"
    interrupted(path, code(f"url = '{url}'\nprint(url)"))
    assert quote(PASSWORD, safe="").encode() not in stored_bytes(path)
    monkeypatch.setenv("DATABASE_URL", url)
    with Memory(path, strict=True, embedder="off") as memory:
        assert memory.resume(code_agent(code("final_answer(url)"), tools=[echo])) == url


def test_calls_recorded_before_a_value_was_known_as_a_secret_are_matched(path: Path) -> None:
    """The file may be older than the redaction, or the secret may have had no name then."""
    made_calls: list[str] = []

    @tool
    def post(text: str) -> str:
        """Posts.

        Args:
            text: what
        """
        made_calls.append(text)
        if len(made_calls) == 2:
            raise KeyboardInterrupt
        return f"posted {text}"

    said = code("print(post(text='an unusual value'))\nprint(post(text='another'))")
    with Memory(path, strict=True, embedder="off", redact=False) as memory:
        agent = memory.attach(code_agent(said, tools=[post]))
        with pytest.raises(KeyboardInterrupt):
            agent.run("Go")
    with Memory(path, strict=True, embedder="off", secrets={"NAME": "an unusual value"}) as memory:
        agent = code_agent(code("final_answer(1)"), tools=[post])
        assert memory.resume(agent, unknown="rerun") == 1
    assert made_calls == ["an unusual value", "another", "another"]


@dataclass
class Login:
    user: str
    password: str
    notes: list[str]


def test_an_exact_value_is_exact_with_its_secrets_beside_the_record_in_instances_and_in_changed_arguments() -> None:
    long, redactor, classes = "x " * 3000 + TOKEN, Redactor(b"key"), {f"{__name__}.Login": Login}
    near = "y " * 2020 + TOKEN  # its placeholder makes it shorter than what is kept in a record, or longer
    login = Login("ann", PASSWORD, [TOKEN, long])
    for value in (long, near, near + "z" * 40, long.encode(), TOKEN.encode(), login, OrderedDict(password=PASSWORD)):
        for given in (value, [value], Outcome(value, [[value], {"password": PASSWORD}])):
            record = codec.encode(given, redactor)
            for secret in (TOKEN, PASSWORD):
                assert secret.encode() not in record.record + b"".join(record.blobs.values())
            back = codec.decode(
                record.record, record.blobs.__getitem__, secrets=redactor.known, classes=classes, exact=True
            )
            assert back == given
            held = codec.decode(record.record, record.blobs.__getitem__, classes=classes, exact=True)
            assert codec.encode(held).key == record.key


def test_results_and_changed_arguments_of_an_interrupted_step_come_back_with_their_secrets(path: Path) -> None:
    made_calls: list[str] = []

    @tool
    def login(user: str, kept: list) -> Any:  # type: ignore[type-arg]
        """Logs in.

        Args:
            user: who
            kept: gets the token
        """
        made_calls.append(user)
        if user == "eve":
            raise KeyboardInterrupt
        kept.append(TOKEN)
        return Login(user, PASSWORD, kept)

    said = code("kept = []\nann = login(user='ann', kept=kept)\nlogin(user='eve', kept=[])")
    secrets = {"TOKEN": TOKEN, "PASSWORD": PASSWORD}
    with Memory(path, strict=True, embedder="off") as memory:
        agent = memory.attach(code_agent(said, tools=[login]))
        with pytest.raises(KeyboardInterrupt):
            agent.run("Go")
        assert TOKEN.encode() not in stored_bytes(path)
        assert PASSWORD.encode() not in stored_bytes(path)
    with Memory(path, strict=True, embedder="off") as memory, pytest.raises(CannotResume, match=r"call of login"):
        memory.resume(code_agent(tools=[login]), unknown="skip")
    with Memory(path, strict=True, embedder="off", secrets=secrets) as memory:
        agent = code_agent(code("final_answer([ann.password, ann.notes is kept, kept])"), tools=[login])
        assert memory.resume(agent, unknown="skip") == [PASSWORD, True, [TOKEN]]
    assert made_calls == ["ann", "eve"]


def test_a_secret_in_a_long_result_is_missed_before_anything_runs(path: Path) -> None:
    @tool
    def page() -> str:
        """Reads a page."""
        return "x " * 3000 + PASSWORD

    @tool
    def stop() -> str:
        """Stops."""
        raise KeyboardInterrupt

    with Memory(path, strict=True, embedder="off", secrets={"KEY": PASSWORD}) as memory:
        agent = memory.attach(code_agent(code("text = page()\nstop()"), tools=[page, stop]))
        with pytest.raises(KeyboardInterrupt):
            agent.run("Go")
    with Memory(path, strict=True, embedder="off") as memory, pytest.raises(CannotResume, match="call of page"):
        memory.resume(code_agent(tools=[page, stop]), unknown="skip")


def test_a_secret_that_was_only_read_is_no_reason_to_refuse_an_interrupted_step(path: Path) -> None:
    stopped = []

    @tool
    def stop() -> str:
        """Stops."""
        stopped.append(1)
        raise KeyboardInterrupt

    script = [code("print('A page says: gh' + 'p_' + 'aB3' * 12)"), code("x = 1\nstop()")]
    with Memory(path, strict=True, embedder="off") as memory:
        agent = memory.attach(code_agent(*script, tools=[stop]))
        with pytest.raises(KeyboardInterrupt):
            agent.run("Go")
    with Memory(path, strict=True, embedder="off") as memory:
        assert memory.resume(code_agent(code("final_answer(x)"), tools=[stop]), unknown="skip") == 1
    assert stopped == [1]


def test_a_managed_agent_with_a_secret_in_its_task_is_continued(path: Path) -> None:
    def manager(*script: Any) -> CodeAgent:
        helper = code_agent(*script, tools=[echo], name="helper", description="helps")
        return code_agent(code(f"final_answer(helper(task='Use {TOKEN}'))"), managed_agents=[helper])

    with Memory(path, strict=True, embedder="off") as memory:
        agent = memory.attach(manager(code("x = 1\nprint(x)"), KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            agent.run("Go")
    with Memory(path, strict=True, embedder="off", secrets={"T": TOKEN}) as memory:
        agent = manager(code("final_answer(x + 1)"))
        assert "2" in str(memory.resume(agent, unknown="rerun"))
        assert len(memory.runs(agent="helper")) == 1


def test_a_restored_and_a_rerun_run_have_their_secrets(path: Path) -> None:
    with Memory(path, strict=True, embedder="off", secrets={"T": TOKEN}) as memory:
        script = [code(f"token = '{TOKEN}'\nprint(echo(text=token))"), code("final_answer(token)")]
        memory.attach(code_agent(*script, tools=[echo])).run(f"Use {TOKEN}")
        (run,) = memory.runs()
        restored = code_agent(code("final_answer(token)"), tools=[echo])
        run.restore(restored)
        assert restored.run("Again", reset=False) == TOKEN
        again = code_agent(*script, tools=[echo])
        assert run.rerun(again), run.rerun(again).reason
        assert TOKEN in str(again.model.prompts[0])


def test_a_secret_in_every_prompt_does_not_make_the_file_grow_faster(tmp_path: Path) -> None:
    def size(steps: int, word: str) -> int:
        with Memory(tmp_path / f"{steps}{word[:3]}.db", embedder="off") as memory:
            script = [code(f"print('{word}', {n}, 'because ' * 50)") for n in range(steps)]
            memory.attach(code_agent(*script, code("final_answer(1)"), max_steps=99)).run(f"Use {word} {'x ' * 999}")
            return memory.stats().content_bytes

    plain, secret = [size(steps, "w" * len(TOKEN)) for steps in (10, 40)], [size(steps, TOKEN) for steps in (10, 40)]
    assert secret[1] - secret[0] < 1.2 * (plain[1] - plain[0])
