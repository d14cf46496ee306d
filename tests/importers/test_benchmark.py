"""The benchmark of imported networks: it measures any network, and its tables say what failed."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="pip install 'capsedge[export]'")

from benchmarks import imported, imported_networks  # noqa: E402
from tests.conftest import ROOT  # noqa: E402
from tests.importers.families import networks  # noqa: E402


def test_its_networks_have_answers_each(tmp_path: Path) -> None:
    made = {
        name
        for name, value in inspect.getmembers(imported_networks, inspect.isfunction)
        if value.__module__ == imported_networks.__name__
    }
    assert made == set(imported.NETWORKS)
    (network,) = imported.built_in(["yl_1993_small"], tmp_path)
    report = imported.converted(network)
    assert report.origin.family == "yl-1993"


def test_a_peer_that_differs_has_no_time() -> None:
    def entry(name: str, times: float | None) -> dict[str, object]:
        return {"name": name, "times_capsedge": times, "least_ms": 2.0, "difference": 1e-7}

    row = {
        "network": "net",
        "batch": 1,
        "plain_export_differs": 0.25,
        "entries": [entry("capsedge", 1.0), entry("plain export", None), entry("author", 3.5)],
    }
    assert imported.markdown({"results": [row]}).splitlines()[-1] == (
        "| net | 1 | 2.00 | differs | 3.5x | 1e-07 | 0.2 |"
    )


@pytest.mark.slow
def test_a_network_of_an_author(tmp_path: Path) -> None:
    torch.manual_seed(0)
    torch.save(networks.XifengGuo().state_dict(), tmp_path / "net.pt")
    code = f"{ROOT}/tests/importers/families/networks.py:XifengGuo"
    network = {"name": "net", "code": code, "weights": "net.pt", "answers": {"iterations": 3}}
    (tmp_path / "networks.json").write_text(json.dumps([network]))
    words = {
        "--list": str(tmp_path / "networks.json"),
        "--batch": "1",
        "--threads": "1",
        "--seconds": "0.1",
        "-o": str(tmp_path),
    }
    program = [sys.executable, "-m", "benchmarks.imported", *(w for p in words.items() for w in p)]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "imported.json").read_text())
    (result,) = document["results"]
    assert [e["name"] for e in result["entries"]] == [
        "capsedge",
        "plain export",
        "author's PyTorch",
    ]
    for one in result["entries"]:
        assert not one["problem"]
        assert one["least_ms"] > 0
        assert one["difference"] <= 1e-4
    assert result["plain_export_differs"] <= 1e-4
    table = (tmp_path / "imported.md").read_text()
    assert document["command"] in table
    assert "| net | 1 |" in table
