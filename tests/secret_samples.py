"""Made-up secrets of many formats, the texts they stand in, and lines that hold none."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
import string
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

ROOT = Path(__file__).parent.parent
_ALPHABETS = {
    "h": "0123456789abcdef",
    "a": string.ascii_letters + string.digits,
    "U": string.ascii_uppercase + "234567",
    "w": string.ascii_letters + string.digits + "-_",
    "d": string.digits,
    "b": string.ascii_letters + string.digits + "+/",
    "l": string.ascii_lowercase + string.digits,
}

FORMATS = {
    "age": "AGE-SECRET-KEY-1{U58}",
    "airtable": "pat{a14}.{h64}",
    "alibaba": "LTAI{a20}",
    "anthropic": "sk-ant-api03-{w93}AA",
    "atlassian": "ATATT3xFfGF0{w180}={h8}",
    "aws": "AKIA{U16}",
    "aws session": "ASIA{U16}",
    "brevo": "xkeysib-{h64}-{a16}",
    "buildkite": "bkua_{h40}",
    "crates": "cio{a32}",
    "databricks": "dapi{h32}",
    "digitalocean": "dop_v1_{h64}",
    "asana": "2/{d16}/{d16}:{h32}",
    "firecrawl": "fc-{h32}",
    "mailchimp": "{h32}-us12",
    "flyio": "fo1_{w43}",
    "jina": "jina_{h32}{w28}",
    "discord": "MT{a24}.{w6}.{w38}",
    "docker": "dckr_pat_{w27}",
    "doppler": "dp.pt.{a43}",
    "dynatrace": "dt0c01.{U24}.{U64}",
    "elevenlabs": "sk_{h48}",
    "facebook": "EAACEdEose0cBA{a120}",
    "figma": "figd_{w40}",
    "fireworks": "fw_{a24}",
    "github": "ghp_{a36}",
    "github app": "ghs_{a36}",
    "github fine-grained": "github_pat_{a22}_{a59}",
    "gitlab": "glpat-{w20}",
    "gitlab runner": "glrt-{w20}",
    "google": "AIza{w35}",
    "google client": "GOCSPX-{w28}",
    "google access": "ya29.{w120}",
    "grafana": "glsa_{a32}_{h8}",
    "groq": "gsk_{a52}",
    "heroku": "HRKU-{w60}",
    "huggingface": "hf_{a34}",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJ{w40}.{w43}",
    "langsmith": "lsv2_pt_{h32}_{h10}",
    "linear": "lin_api_{a40}",
    "mailgun": "key-{h32}",
    "netlify": "nfp_{a36}",
    "newrelic": "NRAK-{U27}",
    "notion": "ntn_{a46}",
    "npm": "npm_{a36}",
    "nuget": "oy2{l43}",
    "nvidia": "nvapi-{w64}",
    "openai": "sk-{a20}T3BlbkFJ{a20}",
    "openai project": "sk-proj-{w80}",
    "openrouter": "sk-or-v1-{h64}",
    "perplexity": "pplx-{a48}",
    "pinecone": "pcsk_{a6}_{a63}",
    "planetscale": "pscale_tkn_{w43}",
    "posthog": "phx_{a43}",
    "postman": "PMAK-{h24}-{h34}",
    "pulumi": "pul-{h40}",
    "pypi": "pypi-AgEIcHlwaS5vcmc{w70}",
    "replicate": "r8_{a37}",
    "rubygems": "rubygems_{h48}",
    "sendgrid": "SG.{w22}.{w43}",
    "sentry": "sntryu_{h64}",
    "shopify": "shpat_{h32}",
    "slack": "xoxb-{d12}-{d13}-{a24}",
    "slack app": "xapp-1-A{U10}-{d13}-{h64}",
    "square": "sq0csp-{w43}",
    "stripe": "sk_live_{a24}",
    "stripe webhook": "whsec_{a32}",
    "supabase": "sbp_{h40}",
    "tavily": "tvly-{a32}",
    "telegram": "{d9}:AA{w33}",
    "terraform": "{a14}.atlasv1.{w67}",
    "together": "tgp_v1_{w43}",
    "twilio": "SK{h32}",
    "vault": "hvs.{w90}",
    "xai": "xai-{a80}",
}
"""Tokens that are recognised by themselves, as templates: `{a36}` stands for 36 letters and digits."""

NAMED = {
    "password": "{a9}!{d3}x",
    "api_key": "{h32}",
    "client_secret": "{w30}A1a",
    "aws_secret_access_key": "{b38}a1",
    "access_token": "{a40}",
    "AccountKey": "{b84}A1==",
}
"""Values that are recognised by their name."""


def made(template: str, rng: random.Random) -> str:
    """A secret of a format."""

    def fill(found: re.Match[str]) -> str:
        return "".join(rng.choices(_ALPHABETS[found[1]], k=int(found[2])))

    return re.sub(r"\{(\w)(\d+)\}", fill, template)


def texts(secret: str, name: str = "") -> dict[str, str]:
    """The texts in which a secret stands: plain, JSON, URL, code, error; with its name, if it needs one."""
    called, said = name or "value", f"{name}: " if name else "it is "
    return {
        "plain": f"Use this, {said}{secret} and go on.\nThen stop.",
        "json": json.dumps({"user": "ann", called: secret, "n": 1}),
        "nested json": json.dumps({"body": json.dumps({called: secret})}),
        "url": f"GET https://api.example.com/v1/items?limit=3&{called}={quote(secret, safe='')}&page=2",
        "code": f"client = Client({called}='{secret}', retries=3)\nclient.go()",
        "error": f"HTTPError: 401 Unauthorized\n  request({called}={secret!r})\nValueError: bad {said}{secret}",
    }


def placed(rng: random.Random) -> dict[str, tuple[str, str]]:
    """Secrets that are recognised by their place: the secret, and the text."""
    password, token = made("{a8}_{d3}", rng), made("{a20}.{w30}", rng)
    basic = base64.b64encode(f"ann:{password}".encode()).decode()
    body = "\n".join("".join(rng.choices(_ALPHABETS["b"], k=64)) for _ in range(12))
    return {
        "url password": (password, f"psql postgresql://ann:{password}@db.example.com:5432/shop"),
        "bearer": (token, f'curl -H "Authorization: Bearer {token}" https://api.example.com'),
        "basic": (basic, f"Authorization: Basic {basic}\r\nHost: example.com"),
        "flag": (password, f"mysql --user ann --password {password}x! shop"),
        "private key": (body[200:260], f"-----BEGIN RSA PRIVATE KEY-----\n{body}\n-----END RSA PRIVATE KEY-----"),
        "slack webhook": (token[:20], f"https://hooks.slack.com/services/T024BE7LD/B024BE7LH/{token[:20]}aB12"),
        "signed URL": (token, f"https://files.example.com/a.png?se=2030&sig={token}&sp=r"),
    }


def benign(rng: random.Random, count: int) -> list[str]:
    """Lines that hold no secret: sources, hashes, ids, logs, tracebacks, encoded pictures."""
    sources = [line for line in _sources() if len(line.strip()) > 3]
    lines = rng.sample(sources, min(len(sources), count // 2))
    while len(lines) < count:
        lines += _made_up(rng)
    return lines[:count]


def _sources() -> Iterator[str]:
    for folder, ending in (("src", "py"), ("tests", "py"), ("docs", "md"), ("bench", "py"), ("examples", "py")):
        for file in sorted((ROOT / folder).rglob(f"*.{ending}")):
            if "secret" not in file.name and "redaction" not in file.name:
                yield from file.read_text(encoding="utf-8").splitlines()


def _made_up(rng: random.Random) -> list[str]:
    data = rng.randbytes(60)
    sha, short = hashlib.sha1(data).hexdigest(), hashlib.sha256(data).hexdigest()
    known = uuid.UUID(bytes=data[:16], version=4)
    number = rng.randrange(10**6)
    return [
        f"commit {sha}",
        f"{sha[:8]} fix the parser ({sha[8:16]})",
        f"sha256:{short}",
        f'{{"id": "{known}", "run": "{sha[:16]}", "etag": "{short[:32]}"}}',
        f"request_id={known} status=200 took={number}ms",
        f'  File "/usr/lib/python3.11/site-packages/{sha[:6]}/module_{number}.py", line {number % 900}, in call',
        f"ValueError: invalid literal for int() with base 10: 'x{number}'",
        f"2026-03-0{number % 9 + 1} 12:{number % 60:02d}:09,123 INFO worker-{number % 8} did {number} of {sha[:12]}",
        f'<img src="data:image/png;base64,{base64.b64encode(data * 3).decode()}">',
        f"https://example.com/items/{known}?page={number}&sort=name#{sha[:10]}",
        f"primary key: {number}, foreign key: {number + 1}, cache key = item:{number}:{sha[:10]}",
        f"The token count is {number}; max_tokens={number % 4096}, next_page_token={base64.b64encode(data).decode()}",
        f"password = getpass.getpass('Password for user {number}: ')",
        f"api_key = os.environ['SERVICE_{number}_API_KEY']",
        f"export API_TOKEN=$TOKEN_{number}",
        f"    token_{number} = tokenizer.encode(text_{number}, add_special_tokens=False)",
        f"Enter your password (at least {number % 9 + 8} characters) and press return",
        f"pip install package-{number % 100}=={number % 10}.{number % 7}.1 --hash=sha256:{short}",
        f"docker run registry.example.com/team/app@sha256:{short}",
        f"integrity sha512-{base64.b64encode(hashlib.sha512(data).digest()).decode()}",
        f"{known} | {number / 7:.6f} | {sha[:7]} | customer-{number}-{sha[:5]}",
        f"secret santa list number {number}: everybody brings a present",
    ]
