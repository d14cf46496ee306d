"""The list of models: their sizes, and where they fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from capsedge.cli import app
from capsedge.models import MODELS


@pytest.mark.thorough
def test_the_list_has_every_model() -> None:
    done = CliRunner().invoke(app, ["train", "--list", "--json"])
    models = {each["name"]: each for each in json.loads(done.stdout)["models"]}
    assert set(models) == set(MODELS)
    digits = models["digits-em"]
    assert (digits["parameters"], digits["trained"], digits["fits_flash"]) == (103_548, True, True)
    capsnet = models["capsnet-mnist"]
    assert (capsnet["parameters"], capsnet["int8_bytes"]) == (8_215_728, 6_804_384)
    assert not capsnet["fits_flash"]
    text = CliRunner().invoke(app, ["train", "--list"]).stdout
    assert "digits-em" in text
    assert "28x28x1" in text


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    for arguments, missing in ([], "--data"), (["--data", str(tmp_path)], "--output"):
        done = CliRunner().invoke(app, ["train", *arguments])
        assert f"{missing} is missing" in str(done.exception)
