"""The published comparison with other runtimes, as the service hands it on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.peers import __main__ as command
from benchmarks.report import circumstances
from service import published
from tests.service.helpers import Harness


async def test_what_the_benchmark_has_published_is_what_the_service_shows(
    api: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published, "RESULTS", tmp_path)
    missing = await api.client.get("/api/v1/peers")
    assert missing.status_code == 404
    assert "make bench-peers" in missing.json()["detail"]
    assert (await api.client.get("/api/v1/peers/plot")).status_code == 404
    command.write({}, circumstances(), "make bench-peers", tmp_path)
    found = (await api.client.get("/api/v1/peers")).json()
    assert [section["title"] for section in found["sections"]][:2] == ["Recovery", "Times as long as PHOENIX"]
    page = (tmp_path / "peers.md").read_text()
    for section in found["sections"]:
        assert section["text"] in page
        assert all(len(row) == len(section["header"]) for row in section["rows"])
        assert all(f"| {' | '.join(row)} |" in page for row in section["rows"])
    picture = await api.client.get("/api/v1/peers/plot")
    assert picture.headers["content-type"] == "image/svg+xml"
    assert picture.content == (tmp_path / "peers.svg").read_bytes()
    document = json.loads((tmp_path / "peers.json").read_text())
    (tmp_path / "peers.json").write_text(json.dumps({**document, "sections": [{}]}))
    broken = await api.client.get("/api/v1/peers")
    assert (broken.status_code, "of another version" in broken.json()["detail"]) == (404, True)
