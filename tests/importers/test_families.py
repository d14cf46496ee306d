"""Every family: its weights, imported, compute what its author's code computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import capsedge
from capsedge.errors import ParityError, UsageError
from capsedge.importers.families import FAMILIES
from capsedge.importers.reference_check import batches
from tests.importers.families import networks as n
from tests.importers.importing import import_with
from tests.importers.test_matrix_and_attention import FAMILIES as MATRIX_AND_ATTENTION

FIRST = {"first": True}
CASES: dict[str, tuple[str, Callable[[], nn.Module], dict[str, Any]]] = {
    "xifengguo": ("xifengguo", n.XifengGuo, {"iterations": 3}),
    "xifengguo, 1 iteration": ("xifengguo", lambda: n.XifengGuo(1), {"iterations": 1}),
    "danielhavir": ("danielhavir", n.DanielHavir, {"iterations": 3}),
    "adambielski": ("adambielski", n.AdamBielski, {"iterations": 3}),
    "adambielski, 0 iterations": ("adambielski", lambda: n.AdamBielski(0), {"iterations": 0}),
    "gram-ai": ("gram-ai", n.GramAi, {}),
    "gram-ai with start logits": ("gram-ai", lambda: n.GramAi(True), {}),
    "laubonghaudoi": ("laubonghaudoi", n.Laubonghaudoi, {"iterations": 3}),
    "laubonghaudoi-2017": (
        "laubonghaudoi-2017",
        lambda: n.Laubonghaudoi(first=True),
        {"iterations": 3},
    ),
    "cedrickchee": ("cedrickchee", n.CedricChee, {"iterations": 3}),
    "cedrickchee, squash over classes": (
        "cedrickchee",
        lambda: n.CedricChee(squashed=1),
        {"iterations": 3, "variant": "parents"},
    ),
    "cedrickchee of November 2017": (
        "cedrickchee",
        lambda: n.CedricChee(softmax=1, squashed=1),
        {"iterations": 3, "variant": "children"},
    ),
    "jindongwang": ("jindongwang", n.JindongWang, {}),
    "timomernick": ("timomernick", n.TimoMernick, {}),
}


def saved(module: nn.Module, path: Path, **around: Any) -> Path:
    """A file of torch.save; with ``around``, wrapped."""
    state = module.state_dict()
    torch.save({"state_dict": state, **around} if around else state, path)
    return path


def images(count: int = 6) -> Tensor:
    return torch.rand((count, 1, 28, 28), generator=torch.Generator().manual_seed(3))


def of_author(module: nn.Module, x: Tensor, classes: int) -> Tensor:
    """Lengths or scores of the author's code, image by image."""
    rows = []
    for image in x:
        out = module(image.unsqueeze(0))
        first = out[0] if isinstance(out, tuple) else out
        rows.append(first.squeeze(-1).norm(dim=-1) if first.ndim > 2 else first)
    found = torch.cat(rows)
    assert found.shape == (len(x), classes)
    return found


def test_every_family_has_a_case() -> None:
    elsewhere = {"textbook", "keras-capsule", "xifengguo-keras", *MATRIX_AND_ATTENTION}
    # In files of their own:
    elsewhere |= {f.name for f in FAMILIES if f.name.startswith("fsanet")}
    elsewhere |= {"fixcaps", "hr-semobilecapsnet", "q-capsnets", "pscapsnet", "yuxianmeng"}
    elsewhere |= {"brjathu", "hopefulrational", "ugenteraan"}
    assert {family for family, _, _ in CASES.values()} == {f.name for f in FAMILIES} - elsewhere


@pytest.mark.parametrize("case", CASES)
def test_the_function_of_its_author(case: str, tmp_path: Path) -> None:
    family, make, answers = CASES[case]
    torch.manual_seed(5)
    module = make().eval()
    report = import_with(saved(module, tmp_path / "m.pt"), tmp_path / "c.safetensors", **answers)
    assert report.origin.family == family
    model = capsedge.load_checkpoint(tmp_path / "c.safetensors")
    with torch.no_grad():
        wanted = of_author(module, images(), n.J)
        found = model(images()).scores
    assert torch.isfinite(wanted).all()
    assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max()


@pytest.mark.parametrize("family", ["gram-ai", "xifengguo", "laubonghaudoi"])
def test_the_decoder_of_its_author(family: str, tmp_path: Path) -> None:
    """Whether it takes the poses of all classes or of one."""
    torch.manual_seed(6)
    module = {
        "gram-ai": lambda: n.GramAi(True), "xifengguo": n.XifengGuo, "laubonghaudoi": n.Laubonghaudoi,
    }[family]().eval()  # fmt: skip
    report = capsedge.import_checkpoint(saved(module, tmp_path / "m.pt"), iterations=3)
    with torch.no_grad():
        poses = report.model(images()).poses
        found = report.model.reconstruct(poses)
    for j in range(n.J):
        alone = torch.zeros_like(poses)
        alone[:, j] = poses[:, j]
        with torch.no_grad():
            if family == "xifengguo":
                wanted = module.decoder(alone.flatten(1))  # type: ignore[operator]
            elif family == "gram-ai":
                wanted = module.decoder(poses[:, j])  # type: ignore[operator]
            else:
                d: Any = module.Decoder
                wanted = d.fc3(d.fc2(d.fc1(poses[:, j]).relu()).relu()).sigmoid()
        assert torch.allclose(found[:, j].flatten(1), wanted, atol=1e-6)


# Equal keys and shapes, another function: the wrong one is noticed.
CONFUSED = {
    "xifengguo: channels for pixels": (n.XifengGuo, {"iterations": 3, "variant": "channels"}),
    "xifengguo: iterations": (n.XifengGuo, {"iterations": 2}),
    "adambielski: n for n + 1": (n.AdamBielski, {"iterations": 2}),
    "gram-ai: iterations": (n.GramAi, {"iterations": 2}),
    "laubonghaudoi: iterations": (n.Laubonghaudoi, {"iterations": 4}),
    "cedrickchee: poses for parents": (lambda: n.CedricChee(squashed=1), {"iterations": 3}),
    "cedrickchee: parents for children": (
        lambda: n.CedricChee(softmax=1, squashed=1),
        {"iterations": 3, "variant": "parents"},
    ),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("case", CONFUSED)
def test_the_authors_code_notices_the_wrong_function(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, answers = CONFUSED[case]
    monkeypatch.setattr("capsedge.importers.reference_check.RANDOM", 8)
    monkeypatch.setattr("capsedge.importers.reference_check.STROKES", 8)
    torch.manual_seed(7)
    module = make().eval()
    monkeypatch.setattr(n, "AUTHOR", module, raising=False)
    (tmp_path / "author.py").write_text(
        "from tests.importers.families import networks\ndef build(): return networks.AUTHOR\n"
    )
    target = tmp_path / "c.safetensors"
    with pytest.raises(ParityError, match="different results"):
        import_with(
            saved(module, tmp_path / "m.pt"),
            target,
            reference_code=f"{tmp_path / 'author.py'}:build",
            **answers,
        )
    assert not target.exists()


@pytest.mark.sample(2)
@pytest.mark.parametrize("case", CASES)
def test_the_authors_code_agrees(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, make, answers = CASES[case]
    monkeypatch.setattr("capsedge.importers.reference_check.RANDOM", 8)
    monkeypatch.setattr("capsedge.importers.reference_check.STROKES", 8)
    torch.manual_seed(8)
    module = make().eval()
    monkeypatch.setattr(n, "AUTHOR", module, raising=False)
    (tmp_path / "author.py").write_text(
        "from tests.importers.families import networks\ndef build(): return networks.AUTHOR\n"
    )
    report = import_with(
        saved(module, tmp_path / "m.pt"),
        reference_code=f"{tmp_path / 'author.py'}:build",
        **answers,
    )
    assert report.comparison is not None
    assert report.comparison.passed
    assert report.comparison.largest_difference <= 1e-5
    assert report.comparison.flips == 0
    assert report.origin.compared == report.comparison.to_dict()


@pytest.mark.parametrize("count", [1, 2, 33, 65])
def test_no_image_is_alone_where_the_batch_is_free(count: int) -> None:
    """Public code squeezes the batch away."""
    inputs = torch.arange(float(count)).reshape(-1, 1, 1, 1)
    parts = batches(inputs.numpy(), 32)
    assert min(map(len, parts)) > 1
    assert max(map(len, parts)) <= 32
    assert torch.equal(torch.cat(list(parts))[:count], inputs)
    assert [len(p) for p in batches(inputs.numpy(), 1)] == [1] * count


@pytest.mark.thorough
def test_alternatives_that_are_better_on_data_are_named(tmp_path: Path) -> None:
    """The labels are what the author's network says, so that the right function is always right."""
    torch.manual_seed(9)
    module = n.XifengGuo().eval()
    with torch.no_grad():
        x = images(200)
        labels = of_author(module, x, n.J).argmax(1).numpy()
    np.savez(tmp_path / "data.npz", images=x.numpy(), labels=labels)
    weights = saved(module, tmp_path / "m.pt")
    wrong = capsedge.import_checkpoint(
        weights,
        iterations=3,
        variant="channels",
        data=tmp_path / "data.npz",
    )
    right = capsedge.import_checkpoint(weights, iterations=3, data=tmp_path / "data.npz")
    assert right.measured is not None
    assert wrong.measured is not None
    assert right.measured.accuracy == 1.0
    assert not right.measured.better
    assert list(wrong.measured.better) == ["--variant pixels"]
    assert any("--variant pixels is clearly better" in w for w in wrong.warnings)


def test_a_key_map(tmp_path: Path) -> None:
    torch.manual_seed(10)
    module = n.VoteBias().eval()
    (tmp_path / "keys.toml").write_text(f"""
[tensors]
"first.weight" = "stem.0.weight"
"first.bias" = "stem.0.bias"
"caps1.weight" = "primary.conv.weight"
"caps1.bias" = "primary.conv.bias"
"W" = ["classes.weight", {{reshape = [{n.I}, {n.J}, {n.O}, {n.D}]}}]
"bias" = ["classes.vote_bias", {{reshape = [{n.J}, {n.O}]}}]

[model]
primary_grouping = "pixels"
""")
    report = capsedge.import_checkpoint(
        saved(module, tmp_path / "m.pt"),
        description=capsedge.Description(
            preprocessing={"height": 28, "width": 28, "scale": 1 / 255}
        ),
        key_map=tmp_path / "keys.toml",
        iterations=3,
    )
    with torch.no_grad():
        wanted = module(images())
        found = report.model(images()).poses
    assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max()


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("missing", "says"),
    [("iterations", "--iters"), ("height", "--size"), ("scale", "--range")],
)
def test_what_the_file_cannot_tell_is_asked_for(missing: str, says: str, tmp_path: Path) -> None:
    module = n.VoteBias()
    state = {
        "stem.0.weight": module.first.weight, "stem.0.bias": module.first.bias,
        "primary.conv.weight": module.caps1.weight, "primary.conv.bias": module.caps1.bias,
        "classes.weight": module.W[0],
    }  # fmt: skip
    torch.save({k: v.detach().clone() for k, v in state.items()}, tmp_path / "m.pt")
    known: dict[str, Any] = {"iterations": 3, "height": 28, "width": 28, "scale": 1.0}

    def imported() -> Any:
        prep = {k: v for k, v in known.items() if k != "iterations"}
        if len(prep.keys() & {"height", "width"}) == 1:
            del prep["width"]
        return capsedge.import_checkpoint(
            tmp_path / "m.pt",
            description=capsedge.Description(preprocessing=prep),
            iterations=known.get("iterations"),
        )

    assert imported().origin.family == "textbook"
    assert imported().model.config.preprocessing.scale == 1.0
    del known[missing]
    with pytest.raises(UsageError) as refused:
        imported()
    assert says in refused.value.command


@pytest.mark.parametrize(
    ("stated", "says"),
    [
        ({"preprocessing": {"heigth": 28}}, "Unknown preprocessing setting 'heigth'"),
        ({"preprocessing": {"height": 28}}, "a height and a width"),
        ({"preprocessing": {"scale": "1"}}, "cannot be described"),
        ({"preprocessing": {"mean": (0.1, 0.2)}}, "2 values for 1 channels"),
        ({"preprocessing": capsedge.Preprocessing(28, 28, 3)}, "1 channels"),
        ({"task": "regression"}, "are classifiers"),
        ({"outputs": capsedge.Outputs(names=("yaw",))}, "are classifiers"),
        ({"class_names": ("a", "b")}, "5 classes"),
    ],
)
def test_what_is_stated_and_does_not_fit(stated: dict, says: str, tmp_path: Path) -> None:
    path = saved(n.XifengGuo(), tmp_path / "m.pt")
    with pytest.raises(UsageError, match=says):
        import_with(path, iterations=3, **stated)


def test_the_preprocessing_that_is_stated(tmp_path: Path) -> None:
    """All of it, or some fields over those of the author's code."""
    path = saved(n.XifengGuo(), tmp_path / "m.pt")
    whole = capsedge.Preprocessing(28, 28, 1, mean=(0.5,), std=(0.25,), resize="pad")
    for given, wanted in (
        (whole, whole),
        ({"resize": "pad"}, capsedge.Preprocessing(28, 28, 1, resize="pad")),
        ({"per_image": "min-max"}, capsedge.Preprocessing(28, 28, 1, per_image="min-max")),
    ):
        report = capsedge.import_checkpoint(
            path,
            description=capsedge.Description(preprocessing=given),
            iterations=3,
        )
        assert report.model.config.preprocessing == wanted
