"""`capsedge config`: programs build with what it prints, through a compiler, CMake and pkg-config."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import capsedge
from capsedge.cli import app
from capsedge.errors import EnvironmentProblem
from capsedge.runtime.backends import native_library
from capsedge.runtime.images.decoding import read_image
from capsedge.runtime.load import load
from capsedge.runtime.zoo import default_model
from tests.cli.examples import SAMPLES, config, infer, needs_library, programs, run, tool

__all__ = ["programs"]  # fixtures

pytestmark = needs_library


def test_json_and_table() -> None:
    found = json.loads(config("--json"))
    assert Path(found["library"]).is_file()
    assert (Path(found["includedir"]) / "capsedge.h").is_file()
    assert (Path(found["libdir"]) / "libcapsedge.so").samefile(found["library"])
    assert (Path(found["cmakedir"]) / "capsedgeConfig.cmake").is_file()
    assert (Path(found["pkgconfigdir"]) / "capsedge.pc").is_file()
    assert (Path(found["examples"]) / "classify.cpp").is_file()
    assert (Path(found["models"]) / default_model().name).samefile(default_model())
    assert (Path(found["samples"]) / SAMPLES[0].name).samefile(SAMPLES[0])
    assert found["version"] == capsedge.__version__
    for name in (
        "includedir",
        "libdir",
        "cmakedir",
        "pkgconfigdir",
        "examples",
        "models",
        "samples",
        "version",
    ):
        assert config(name) == found[name]
        assert found[name] in config()
    assert shlex.split(config("cflags", "libs")) == found["cflags"] + found["libs"]
    assert shlex.split(config("rpath")) == found["rpath"]
    assert shlex.split(config("libs", "rpath")) == found["libs"]  # which has it already


def test_models_and_samples_need_no_compiled_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_library, "LIBRARY", "libnothing.so")
    assert config("models", "samples").split() == [
        str(default_model().parent), str(SAMPLES[0].parent),
    ]  # fmt: skip
    assert CliRunner().invoke(app, ["config", "libdir"]).exit_code != 0


def test_the_file_of_the_cuda_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its path where it is; where it is not, only who asks for it is told."""
    monkeypatch.delenv("CAPSEDGE_CUDA_KERNELS", raising=False)
    monkeypatch.setattr("capsedge.runtime.backends.native_library._MODULE", "no_such_module")
    missing = CliRunner().invoke(app, ["config", "kernels"])
    assert isinstance(missing.exception, EnvironmentProblem)
    assert "make cuda-wheel" in str(missing.exception)
    assert config("samples") == str(SAMPLES[0].parent)
    file = tmp_path / "kernels.fatbin"
    file.write_bytes(b"")
    monkeypatch.setenv("CAPSEDGE_CUDA_KERNELS", str(file))
    assert config("kernels") == str(file)
    assert json.loads(config("--json"))["kernels"] == str(file)


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_library, "LIBRARY", "libnothing.so")
    with pytest.raises(EnvironmentProblem, match=r"apt-get install g\+\+"):
        native_library.find_embedding()


def through_ctypes(model: Path, *images: Path) -> str:
    """What the example in Python prints, without the packages of this environment."""
    library = json.loads(config("--json"))["library"]
    program = Path(config("examples")) / "classify.py"
    return run(sys.executable, "-S", program, library, model, *images)


@pytest.mark.sample(1)
@pytest.mark.parametrize("options", [[], ["--top", "3"], ["--threshold", "0.35"], ["--invert"]])
def test_classify_prints_what_infer_prints(programs: Path, options: list[str]) -> None:
    assert run(programs / "classify", *options, default_model(), *SAMPLES) == infer(
        *options, *SAMPLES
    )


@pytest.mark.sample(1)
@pytest.mark.parametrize("options", [[], ["--top", "2"], ["--threshold", "0.3"]])
def test_nothing_to_see(programs: Path, tmp_path: Path, options: list[str]) -> None:
    from PIL import Image

    blank = tmp_path / "blank.png"
    Image.new("L", (28, 28)).save(blank)
    files = [blank, SAMPLES[0]]
    printed = run(programs / "classify", *options, default_model(), *files)
    assert printed == infer(*options, *files)
    assert "nothing to see" in printed
    if not options:
        # The class with the word beside it, as above; the reason goes to standard error.
        said = run(programs / "classify_c", default_model(), blank)
        assert re.match(rf"{re.escape(str(blank))}: \d \(nothing to see\), length 0\.", said)
        said = through_ctypes(default_model(), blank)
        assert re.match(rf"{re.escape(str(blank))}: \d \(nothing to see\), 0\.", said)


@pytest.mark.thorough
def test_examples_print_the_values_of_a_regression(programs: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    from capsedge.runtime.metadata.metadata import Outputs, Preprocessing
    from capsedge.runtime.user_metadata import Description, describe_model
    from tests.runtime.models import foreign_model

    outputs = Outputs(names=("yaw", "depth", "age"), units=("degrees", "mm", ""))
    declared = Description(None, Preprocessing(8, 8, 1), "regression", outputs)
    path = tmp_path / "pose.onnx"
    path.write_bytes(describe_model(foreign_model({"o": [3]}).SerializeToString(), declared).data)
    words = ("--model", path, *SAMPLES)
    wanted = run(sys.executable, "-m", "capsedge", "infer", *words)
    assert run(programs / "classify", path, *SAMPLES) == wanted
    assert wanted.count("°, depth ") == len(SAMPLES)
    in_c = run(programs / "classify_c", path, SAMPLES[0])
    values = load(path).predict(SAMPLES[0])[0].values
    texts = [f"{v.name} {v.value:.4g} {v.unit}".rstrip() for v in values]
    assert in_c == f"{SAMPLES[0]}: {', '.join(texts)}\n" == through_ctypes(path, SAMPLES[0])


def test_examples_print_the_shares_of_a_mask(programs: Path) -> None:
    model = default_model().with_name("digits-clutter.onnx")
    image = default_model().with_name("clutter") / "digit-8.png"
    wanted = run(sys.executable, "-m", "capsedge", "infer", "--model", model, image)
    assert run(programs / "classify", model, image) == wanted
    in_c = run(programs / "classify_c", model, image)
    assert in_c == f"{image}: background 0.8623, digit 0.1377\n" == through_ctypes(model, image)


def test_onnxruntime_reports_nothing(programs: Path, tmp_path: Path) -> None:
    """From 1.29 it leaves an identifier in the home folder of who does not say no."""
    done = subprocess.run(
        [programs / "classify", default_model(), SAMPLES[0]],
        check=True, capture_output=True, env={"HOME": str(tmp_path)},
    )  # fmt: skip
    assert b"length" in done.stdout
    assert list(tmp_path.rglob("*")) == []


def test_classify_in_c_and_through_ctypes(programs: Path) -> None:
    found = run(programs / "classify_c", default_model(), SAMPLES[0])
    assert f"{SAMPLES[0]}: 3, length 0.9" in found
    found = through_ctypes(default_model(), *SAMPLES)
    assert found.splitlines()[0].startswith(f"{SAMPLES[0]}: 3, 0.9")
    assert len(found.splitlines()) == 2


def test_errors_of_an_example_are_those_of_the_library(programs: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.onnx"
    cut.write_bytes(default_model().read_bytes()[:-100])
    for arguments, code, message in (
        ([cut, SAMPLES[0]], 6, "not a complete ONNX file"),
        ([tmp_path / "none.onnx", SAMPLES[0]], 2, "No such file"),
        ([default_model(), cut], 2, "no PNG, PGM or PPM file"),
    ):
        for program in ("classify", "classify_c"):
            done = subprocess.run(
                [str(programs / program), *map(str, arguments)],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == code
            assert message in done.stderr


def test_tensors(programs: Path) -> None:
    found = run(programs / "tensors_c", default_model())
    assert "output reconstruction: type 1, shape N 10 1 28 28" in found
    assert "the bar is a 1" in found
    assert "a frame with levels 255 and 0" in found
    assert "3 runs of 3 images" in found


def test_server(programs: Path) -> None:
    """Several connections at once, each with several requests, and a bad one."""
    pixels = [read_image(path) for path in SAMPLES]
    with subprocess.Popen(
        [str(programs / "server"), str(default_model()), "3"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        assert server.stdout is not None
        port = int(server.stdout.readline().split()[1])
        clients = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(3)]
        for _ in range(2):
            for client in clients:
                height, width, channels = pixels[0].shape
                client.sendall(f"{height} {width} {channels}\n".encode() + pixels[0].tobytes())
            for client in clients:
                assert client.recv(100).decode().startswith("3 0.9")
        clients[0].sendall(b"hello\n")
        assert clients[0].recv(100).startswith(b"error: wanted HEIGHT WIDTH CHANNELS")
        for client in clients[:2]:  # the third stays: the server ends all the same
            client.close()
        _, errors = server.communicate(timeout=60)
        clients[2].close()
    assert server.returncode == 0
    assert errors.startswith("7 images, ")


@pytest.mark.thorough
def test_cmake_and_pkg_config(tmp_path: Path) -> None:
    cmake, examples = tool("cmake", "cmake"), config("examples")
    run(cmake, "-S", examples, "-B", tmp_path / "build", f"-Dcapsedge_DIR={config('cmakedir')}")
    run(cmake, "--build", tmp_path / "build", "--target", "tensors")
    assert "the bar is a 1" in run(tmp_path / "build" / "tensors", default_model())
    pkg_config = tool("pkg-config", "pkg-config")
    done = subprocess.run(
        [pkg_config, "--cflags", "--libs", "capsedge"],
        env={**os.environ, "PKG_CONFIG_PATH": json.loads(config("--json"))["pkgconfigdir"]},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "-lcapsedge" in done.stdout


@pytest.mark.thorough
def test_the_header_needs_no_exceptions(tmp_path: Path) -> None:
    source = tmp_path / "program.cpp"
    source.write_text(
        "#include <capsedge.hpp>\n"
        'int main() { return capsedge::Session::open("x").error().code == CAPSEDGE_USAGE ? 0 : 1; }\n'
    )
    flags = shlex.split(config("cflags", "libs"))
    program = tmp_path / "program"
    run(tool("c++", "g++"), "-std=c++17", "-fno-exceptions", "-fno-rtti", "-Wall", "-Wextra",
        "-Werror", source, "-o", program, *flags)  # fmt: skip
    run(program)


@pytest.mark.thorough
def test_exceptions_and_moves_on_request(tmp_path: Path) -> None:
    source = tmp_path / "program.cpp"
    source.write_text(
        """
#include <capsedge.hpp>
#include <type_traits>
using capsedge::Prediction, capsedge::Session;
static_assert(!std::is_copy_constructible_v<Session> && std::is_nothrow_move_constructible_v<Session>);
static_assert(!std::is_copy_constructible_v<Prediction> && std::is_nothrow_move_assignable_v<Prediction>);
int main(int, char** words) {
  try {
    (void)Session::open("/nonexistent").value();
    return 1;
  } catch (const capsedge::Exception& e) {
    if (e.code() != CAPSEDGE_USAGE) return 2;
  }
  Session first = Session::open(words[1]).value();
  Session session = std::move(first);
  if (first.describe()) return 3;
  first = std::move(session);
  const auto about = first.describe().value();
  const unsigned char pixels[64 * 64] = {};
  const capsedge_image image = capsedge::image(pixels, 60, 60, 1, 64);
  const Prediction p = first.predict(image, capsedge::PredictOptions().top(4)).value();
  if (p.size() != 1 || p[0].labels.size() != 4 || !p[1].labels.empty()) return 4;
  if (first.prepare(image).value().size() != 28 * 28 || about.class_count != 10) return 5;
  if (first.class_name(3).value() != "3" || first.property("none").value() != nullptr) return 6;
  if (first.input(0).value().rank != 4 || first.output(9)) return 7;
  return first.counters().value().runs == 1 ? 0 : 8;
}
"""
    )
    flags = shlex.split(config("cflags", "libs"))
    run(tool("c++", "g++"), "-std=c++17", "-Wall", "-Wextra", "-Werror", source, "-o",
        tmp_path / "program", *flags)  # fmt: skip
    run(tmp_path / "program", default_model())
