"""PostgreSQL passes the suites that every backend passes, and what only a server must."""

from __future__ import annotations

import pytest
from conformance import Conformance


class TestPostgres(Conformance):
    @pytest.fixture
    def url(self, pg_url: str) -> str:
        return pg_url
