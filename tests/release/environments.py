"""A distribution installed in an environment of its own, and what its command answers there."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.conftest import ROOT

SAMPLE = ROOT / "capsedge" / "zoo" / "samples" / "digit-7.png"


def environment(python: str | Path, wheel: Path, folder: Path) -> Path:
    """A new environment of an interpreter with the wheel and what ``[cpu]`` adds; its programs."""
    subprocess.run([python, "-m", "venv", folder], check=True)
    pip = [folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install"]
    options = ["--quiet", "-c", ROOT / "constraints.txt"]
    subprocess.run([*pip, *options, f"{wheel}[cpu]"], check=True)
    return folder / "bin"


def without_variables(**added: str | Path) -> dict[str, str]:
    """The variables of this process without those that point to libraries of the checkout."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("CAPSEDGE_")}
    return {**kept, **{k: str(v) for k, v in added.items()}, "OMP_NUM_THREADS": "1"}


def answers(
    command: list[str | Path],
    folder: Path,
    *options: str | Path,
    variables: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """What ``infer`` prints as JSON for the sample, run in a folder; by default `without_variables`."""
    said = subprocess.run(
        [*command, "infer", SAMPLE, "--json", *options],
        cwd=folder, check=True, capture_output=True, text=True,
        env=without_variables() if variables is None else variables,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(said.stdout)
    return found


def label(said: dict[str, Any]) -> str:
    found: str = said["images"][0]["labels"][0]["label"]
    return found


def compare(there: dict[str, Any], here: dict[str, Any], tolerance: float) -> None:
    """Two answers for the sample: class and scores, or the mask of a segmentation, which has no scores."""
    (of_there,), (of_here,) = there["images"], here["images"]
    assert there["ops"] == "fused"
    if "mask" in of_here:
        assert of_there["mask"] == of_here["mask"]
        return
    assert label(there) == label(here)
    np.testing.assert_allclose(of_there["scores"], of_here["scores"], rtol=0, atol=tolerance)
