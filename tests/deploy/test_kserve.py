"""`deploy_kserve`: the manifest for a repository, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import capsedge
from capsedge.deploy.kserve import block_style
from capsedge.errors import ArtefactError, UsageError
from tests.deploy.kserve_schema import faults
from tests.paths.table import repository, run

STORAGE = "s3://models/digits"


def folder(path: Path, *models: dict[str, str], **changes: object) -> Path:
    """A repository, as far as its manifest tells of it."""
    repository(path)
    document = json.loads((path / "capsedge.json").read_text()) | changes
    if models:
        whole = {"device": "cpu", "ops": "portable", "twin_of": ""}
        document["models"] = [{**whole, **model} for model in models]
    (path / "capsedge.json").write_text(json.dumps(document))
    return path


def test_the_manifest(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    given = folder(
        tmp_path / "r",
        {"name": "Net_1", "ops": "fused"},
        {"name": "Net_1-portable", "twin_of": "Net_1"},
        mount="/mnt/models",
        architecture="aarch64",
    )
    made = capsedge.deploy_kserve(
        given,
        tmp_path / "s.yaml",
        cpus=4,
        memory="4Gi",
        replicas=(1, 3),
        storage=STORAGE,
    )
    assert (made.name, made.models) == ("net-1", ("Net_1",))
    amounts = {"cpu": "4", "memory": "4Gi"}
    assert yaml.safe_load((tmp_path / "s.yaml").read_text()) == made.manifest
    assert made.manifest == {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": "net-1"},
        "spec": {
            "predictor": {
                "minReplicas": 1,
                "maxReplicas": 3,
                "nodeSelector": {"kubernetes.io/arch": "arm64"},
                "model": {
                    "modelFormat": {"name": "triton", "version": "2"},
                    "runtime": "kserve-tritonserver",
                    "runtimeVersion": "26.07-py3",
                    "protocolVersion": "v2",
                    "storageUri": STORAGE,
                    "args": ["--model-control-mode=explicit", "--load-model=Net_1"],
                    "resources": {"requests": amounts, "limits": amounts},
                },
            }
        },
    }


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_schema_of_kserve(device: str, tmp_path: Path) -> None:
    given = folder(tmp_path / "r", {"name": "a", "device": device})
    made = capsedge.deploy_kserve(
        given,
        tmp_path / "s.yaml",
        cpus=4,
        memory="4Gi",
        replicas=(0, 3),
        storage=STORAGE,
    )
    assert faults(made.manifest) == []
    model = made.manifest["spec"]["predictor"]["model"]
    model["storage-uri"], model["args"] = model.pop("storageUri"), "--load-model=a"
    assert faults(made.manifest) == [
        ".spec.predictor.model.args: str is no array",
        ".spec.predictor.model.storage-uri: unknown",
    ]


def test_a_repository_of_deploy_triton(tmp_path: Path) -> None:
    capsedge.deploy_triton("digits-em", tmp_path / "r", mount="/mnt/models")
    made = capsedge.deploy_kserve(tmp_path / "r", tmp_path / "s.yaml", storage=STORAGE)
    assert made.models == ("digits-em",)


def test_portable_models_run_on_any_node(tmp_path: Path) -> None:
    given = folder(tmp_path / "r", {"name": "a"}, {"name": "b", "twin_of": "a"})
    made = capsedge.deploy_kserve(given, tmp_path / "s.yaml", models=["b"], storage=STORAGE)
    predictor = made.manifest["spec"]["predictor"]
    assert set(predictor) == {"model"}
    assert "resources" not in predictor["model"]
    assert predictor["model"]["args"][1:] == ["--load-model=b"]


def test_a_gpu_is_asked_for(tmp_path: Path) -> None:
    given = folder(tmp_path / "r", {"name": "a", "device": "cuda"})
    made = capsedge.deploy_kserve(given, tmp_path / "s.yaml", storage=STORAGE)
    predictor = made.manifest["spec"]["predictor"]
    assert predictor["model"]["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    assert "nodeSelector" not in predictor


def test_scalars_that_yaml_would_read_otherwise() -> None:
    yaml = pytest.importorskip("yaml")
    odd = {"a": "on", "b": "1.0", "c": ["- x: y", "#", "é\u2028'\"\\"], "d": {"e": "null", "f": 3}}
    assert yaml.safe_load(block_style(odd)) == odd


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"storage": "/models"}, "cannot read from"),
        ({"storage": "ftp://x"}, "cannot read from"),
        ({"storage": "s3://a b"}, "cannot read from"),
        ({"storage": "s3://a\nb: c"}, "cannot read from"),
        ({"name": "Net"}, "cannot be called"),
        ({"name": "a" * 64}, "cannot be called"),
        ({"models": ["other"]}, "has no model 'other'"),
        ({"cpus": 0}, "Invalid cpus 0"),
        ({"memory": "4"}, "not an amount of memory"),
        ({"replicas": (2, 1)}, "cannot be 2 to 1"),
        ({"release": "23.05"}, "24.08"),
        ({"release": "latest"}, "24.08"),
    ],
)
def test_refused(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    given = repository(tmp_path / "r")
    storage = options.pop("storage", STORAGE)
    with pytest.raises(UsageError, match=said):
        capsedge.deploy_kserve(given, tmp_path / "s.yaml", **options, storage=storage)
    assert not (tmp_path / "s.yaml").exists()


def test_the_library_would_not_be_found(tmp_path: Path) -> None:
    given = folder(tmp_path / "r", {"name": "a", "ops": "fused"}, architecture="x86_64")
    with pytest.raises(UsageError, match="for the mount point /models"):
        capsedge.deploy_kserve(given, tmp_path / "s.yaml", storage=STORAGE)


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"kind": "triton"}', '{"kind": "triton", "mount": 1}']
)
def test_no_repository(content: str, tmp_path: Path) -> None:
    given = repository(tmp_path / "r")
    (given / "capsedge.json").write_text(content)
    with pytest.raises(ArtefactError, match="not a model repository"):
        capsedge.deploy_kserve(given, tmp_path / "s.yaml", storage=STORAGE)
    with pytest.raises(UsageError, match="There is no folder"):
        capsedge.deploy_kserve(tmp_path / "none", tmp_path / "s.yaml", storage=STORAGE)


@pytest.mark.parametrize(
    "models",
    [
        [{"name": "a b"}],
        [{"name": "a\x1b"}],
        [{"name": ""}],
        [{"name": "a", "device": "tpu"}],
        [{"name": "a", "ops": "fast"}],
        [{"name": "a", "twin_of": "b"}],
        [{"name": "a", "twin_of": "a"}],
        [{"name": "a"}, {"name": "a"}],
    ],
)
def test_models_of_no_repository(models: list[dict[str, str]], tmp_path: Path) -> None:
    given = folder(tmp_path / "r", *models)
    with pytest.raises(ArtefactError, match="not a model repository"):
        capsedge.deploy_kserve(given, tmp_path / "s.yaml", storage=STORAGE)


def test_a_folder_without_a_manifest(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match=r"Cannot read .* There is no such file") as caught:
        capsedge.deploy_kserve(tmp_path, tmp_path / "s.yaml", storage=STORAGE)
    assert "\n" not in caught.value.why
    assert "\\n" not in caught.value.why


def test_an_empty_repository(tmp_path: Path) -> None:
    given = folder(tmp_path / "r", models=[])
    with pytest.raises(ArtefactError, match="not a model repository"):
        capsedge.deploy_kserve(given, tmp_path / "s.yaml", storage=STORAGE)


def test_a_repository_that_is_called_as_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    repository(Path("digits-em"))
    assert capsedge.deploy_kserve("digits-em", "s.yaml", storage=STORAGE).models == ("model",)


def test_a_model_in_place_of_a_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    net = tmp_path / "net.onnx"
    net.write_bytes(b"model")
    for model in ("digits-em", str(net)):
        with pytest.raises(UsageError, match="is not a model repository"):
            capsedge.deploy_kserve(model, tmp_path / "s.yaml", storage=STORAGE)
        words = ["deploy", "kserve", model, "-o", str(tmp_path / "s.yaml"), "--storage", STORAGE]
        assert run(words, monkeypatch) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert f"deploy triton {model} -o repository --mount /mnt/models" in said


def test_an_engine_with_plugins(tmp_path: Path) -> None:
    given = folder(tmp_path / "r", {"name": "a", "device": "cuda", "ops": "fused"}, {"name": "b"})
    with pytest.raises(UsageError, match="cannot run a"):
        capsedge.deploy_kserve(given, tmp_path / "s.yaml", storage=STORAGE)
    made = capsedge.deploy_kserve(given, tmp_path / "s.yaml", models=["b"], storage=STORAGE)
    assert made.models == ("b",)


def test_names_of_models_become_names_of_services(tmp_path: Path) -> None:
    for model, wanted in (("1-Net.v2", "model-1-net-v2"), ("-", "model"), ("x" * 80, "x" * 63)):
        given = folder(tmp_path / "r", {"name": model})
        made = capsedge.deploy_kserve(given, tmp_path / "s.yaml", storage=STORAGE)
        assert made.name == wanted


def test_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    given = repository(tmp_path / "r")
    words = ["deploy", "kserve", str(given), "-o", str(tmp_path / "s.yaml"), "--storage", STORAGE]
    assert run([*words, "--name", "digits", "--json"], monkeypatch) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["manifest"]["metadata"]["name"] == "digits"
    assert run(words, monkeypatch) == 0
    assert "service  model" in capsys.readouterr().out
    assert run([*words, "--name", "A_b"], monkeypatch) == 2
