"""Names of function bodies, and the kernels that the operator library registers for them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsedge.runtime.backends.native_library import find_library
from capsedge.spec.operators import (
    CUDA_KERNELS_KEY,
    CUDA_OPERATORS_KEY,
    INSTANCES_KEY,
    MAX_INSTANCES,
    OPERATORS,
    instance_counts,
    instance_name,
    operator_of,
    split_instance_name,
)


@given(st.sampled_from(list(OPERATORS)), st.integers(1, 999_999))
def test_a_name_says_operator_and_number(operator: str, number: int) -> None:
    assert split_instance_name(instance_name(operator, number)) == (operator, number)


@pytest.mark.parametrize(
    "name",
    [
        *("", "_2", "Conv_2", "Squash_", "Squash_0", "Squash_1", "Squash_02", "Squash_2_3"),
        *("Squash_²", "Squash_1234567", "squash_2", "Squash_2 ", "Squash_2\n", "SquashProbe_2"),
    ],
)
def test_other_names_are_no_body_of_an_operator(name: str) -> None:
    assert split_instance_name(name) == (name, 1)
    assert operator_of(name) == name


def test_families_count_the_names_of_a_file() -> None:
    assert instance_counts([]) == ""
    names = ["Squash", "DynamicRouting_3", "DynamicRouting", "Unknown", "Squash_9", "EMRouting_x"]
    assert instance_counts(names) == "DynamicRouting:3,Squash:9"
    assert instance_counts(["Squash_999999"]) == f"Squash:{MAX_INSTANCES}"


def _register(value: str | None) -> None:
    _register_with({} if value is None else {INSTANCES_KEY: value})


def _register_with(entries: Mapping[str, str]) -> object:
    """The options, which keep the library in memory."""
    onnxruntime = pytest.importorskip("onnxruntime")
    library = find_library()
    if library is None:
        pytest.skip("the native library is not built: pip install -e . with a C++ compiler")
    options = onnxruntime.SessionOptions()
    for key, entry in entries.items():
        options.add_session_config_entry(key, entry)
    options.register_custom_ops_library(str(library))
    return options


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        "Squash:1",
        instance_counts(OPERATORS),
        instance_counts([f"{n}_256" for n in OPERATORS]),
    ],
)
def test_the_library_takes_families(value: str | None) -> None:
    _register(value)


@pytest.mark.parametrize(
    "value", ["Squash", "Squash:0", "Squash:257", "Squash:-1", "Conv:2", ":", ",", "Squas:2"]
)
def test_the_library_refuses_other_words(value: str) -> None:
    with pytest.raises(Exception, match=r"in capsedge\.instances is not an operator"):
        _register(value)


def test_many_different_files_share_what_is_registered() -> None:
    for number in range(1, 200):
        _register(f"Squash:{number}")


KERNELS = "/kernels.fatbin"  # read when a session is made, not when operators are registered


@pytest.mark.parametrize("names", ["Squash", "Squash,Squash_256,QuantizedEMRouting_2"])
def test_the_library_takes_names_for_cuda(names: str) -> None:
    _register_with({CUDA_OPERATORS_KEY: names, CUDA_KERNELS_KEY: KERNELS})


@pytest.mark.parametrize(
    "name",
    ["Conv", "UniformRouting", "QuantizedConv", "Squash_257", "Squash_1", " Squash", "Squash:2"],
)
def test_names_without_a_cuda_kernel_are_refused(name: str) -> None:
    with pytest.raises(Exception, match="is not the name of an operator with a CUDA kernel"):
        _register_with({CUDA_OPERATORS_KEY: name, CUDA_KERNELS_KEY: KERNELS})


def test_cuda_kernels_are_one_file() -> None:
    with pytest.raises(
        Exception, match=r"capsedge\.cuda\.operators without capsedge\.cuda\.kernels"
    ):
        _register_with({CUDA_OPERATORS_KEY: "Squash"})
    kept = _register_with({CUDA_OPERATORS_KEY: "Squash", CUDA_KERNELS_KEY: KERNELS})
    with pytest.raises(
        Exception, match="and cannot use those in /nowhere as well: start a new one"
    ):
        _register_with({CUDA_OPERATORS_KEY: "Squash", CUDA_KERNELS_KEY: "/nowhere"})
    del kept
