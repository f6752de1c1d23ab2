"""PostgreSQL passes the suites that every backend passes, and what only a server must."""

from __future__ import annotations

import pytest
from conformance import Conformance
from servers import pg_url, server  # noqa: F401


class TestPostgres(Conformance):
    @pytest.fixture
    def url(self, pg_url: str) -> str:
        return pg_url
