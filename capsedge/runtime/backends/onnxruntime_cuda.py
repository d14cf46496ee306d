"""ONNX Runtime sessions on a GPU: with CUDA graphs, and on arrays that are there already."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from capsedge.errors import EnvironmentProblem, ShapeError, UnsupportedModelError
from capsedge.runtime.backends.backend import NOT_REQUESTED, Feeds, Port, ProfiledRuns, closed_error
from capsedge.runtime.backends.cuda import LEGACY_STREAM, Cuda, load_cuda
from capsedge.runtime.backends.device_array import (
    DeviceArray,
    check_array,
    check_writable,
    device_array,
)
from capsedge.runtime.backends.onnxruntime_backend import (
    OnnxRuntimeBackend,
    ProfiledSession,
    import_onnxruntime,
)
from capsedge.runtime.backends.onnxruntime_graphs import CAPTURES, Graphs
from capsedge.runtime.backends.onnxruntime_session import CUDA, onnxruntime_run_error
from capsedge.runtime.onnx_file.summary import read_model_bytes

_OTHER_PROVIDER = "only the CUDA provider captures them here"


class OnnxRuntimeCudaBackend(OnnxRuntimeBackend):
    """A model loaded into ONNX Runtime on a GPU.

    Raises:
        UnsupportedModelError: graphs are required, and the file cannot be captured.
        EnvironmentProblem, ArtefactError: as `OnnxRuntimeBackend`.
    """

    def __init__(self, *arguments: Any) -> None:
        with CAPTURES.absent():
            super().__init__(*arguments)
        graphs, load = self._settings.graphs, self._load
        assert load is not None
        assert self.gpu is not None
        self._number: int = self.gpu
        off = NOT_REQUESTED if graphs is False else ""
        if self._settings.provider != CUDA:
            off = _OTHER_PROVIDER
        ort = import_onnxruntime()
        self._graphs = Graphs(ort, lambda: load(True), self._number, self.inputs, self.outputs, off)
        self._load = None
        self._stream_lock = threading.Lock()
        self._stream: int | None = None
        self._cuda: Cuda | None = None
        if graphs:
            self._graphs.open()
            if why := self.no_graph_reason:
                raise UnsupportedModelError(
                    f"{self._path} cannot run as a CUDA graph.",
                    f"{why}.",
                    "Leave out `--graphs` (graphs=True): it then runs without.",
                )

    @property
    def no_graph_reason(self) -> str:
        """Why calls do not use graphs; empty while they do."""
        return self._graphs.no_graph_reason

    @property
    def captured(self) -> int:
        """The number of shapes that have a graph."""
        return self._graphs.captured

    def run(self, feeds: Feeds, outputs: Sequence[str]) -> dict[str, NDArray[Any]]:
        """The named outputs for checked inputs; from the second call of a shape on, by its graph."""
        if self.closed:
            raise closed_error(self._path)
        results = self._graphs.run(feeds, outputs)
        if results is None:
            results = self._plain(feeds, outputs)
            self._graphs.saw(_shapes(feeds), _shapes(results))
        return results

    def _plain(self, feeds: Feeds, outputs: Sequence[str]) -> dict[str, NDArray[Any]]:
        with CAPTURES.absent():
            return super().run(feeds, outputs)

    def open_part(self, content: bytes) -> OnnxRuntimeBackend:
        """A part of the file, opened with the same options, but without graphs."""
        return type(self)(content, self._path, replace(self._settings, graphs=False))

    def profiled_runs(self, feeds: Feeds) -> AbstractContextManager[ProfiledRuns]:
        """This model without graphs, in which single operators take no time, and a profiled copy of it."""
        if self.closed:
            raise closed_error(self._path)
        names = [port.name for port in self.outputs]
        content = read_model_bytes(self._path)
        return ProfiledSession(content, self._settings, feeds, lambda: self._plain(feeds, names))

    def close(self) -> None:
        """Free the model; calls in progress are not affected. A second call does nothing."""
        super().close()
        self._graphs.close()
        with self._stream_lock:
            stream, self._stream = self._stream, None
        if stream is not None and self._cuda is not None:
            with suppress(EnvironmentProblem), self._cuda.on(self._number):
                self._cuda.destroy_stream(stream)

    # --- Arrays on the GPU ---

    def run_on_device(
        self,
        feeds: Mapping[str, object],
        out: Mapping[str, object] | None = None,
        stream: int | None = None,
    ) -> dict[str, DeviceArray]:
        """All outputs on the GPU, for inputs that are there, as `DeviceBackend.run_on_device`.

        ONNX Runtime waits for its results, and so does this call, with a stream as well.
        """
        session = self.session
        cuda, names = load_cuda(), tuple(port.name for port in self.outputs)
        with cuda.on(self._number):
            with CAPTURES.absent():
                copies = self._copy_stream(cuda)
                arrays = self._shared(cuda, self.inputs, feeds, copies)
                results = self._shared(cuda, self.outputs, out or {}, copies)
                self._check(arrays, results)
                if stream is not None:
                    cuda.wait(copies, stream or LEGACY_STREAM)
            shapes = {name: array.shape for name, array in arrays.items()}
            with self._graphs.ready(shapes, names) as bound:
                if bound is not None:
                    with CAPTURES.absent():
                        for port in self.inputs:
                            target = bound.inputs[port.name].data_ptr()
                            _copy(cuda, target, arrays[port.name], copies)
                        cuda.synchronize(copies)  # ONNX Runtime's stream is another one
                    if self._graphs.launch(bound):
                        self._give(cuda, bound.outputs, results, copies, keep=False)
                        return {name: results[name] for name in names}
            values = self._plain_on_device(cuda, session, arrays, copies)
            self._graphs.saw(shapes, {name: tuple(v.shape()) for name, v in values.items()})
            self._give(cuda, values, results, copies, keep=True)
        return {name: results[name] for name in names}

    def _check(self, arrays: Mapping[str, DeviceArray], results: Mapping[str, DeviceArray]) -> None:
        """Refuse arrays that do not fit the model, or may not be written."""
        sizes: dict[str, int] = {}
        for port in (*self.inputs, *self.outputs):
            array = arrays.get(port.name) or results.get(port.name)
            if array is not None:
                check_array(port, _wanted(port, array.shape, sizes), array)
        for name, array in results.items():
            check_writable(name, array)

    def _plain_on_device(
        self, cuda: Cuda, session: Any, arrays: Mapping[str, DeviceArray], copies: int
    ) -> dict[str, Any]:
        """The outputs in memory of ONNX Runtime; the inputs are read where they are."""
        binding, kept = session.io_binding(), []
        with CAPTURES.absent():
            for port in self.inputs:
                array = arrays[port.name]
                address = array.address
                if array.on_host:
                    kept.append(self._new(port, array.shape))
                    address = kept[-1].data_ptr()
                    _copy(cuda, address, array, copies)
                binding.bind_input(
                    port.name, "cuda", self._number, port.numpy_dtype, list(array.shape), address
                )
            for port in self.outputs:
                binding.bind_output(port.name, "cuda", self._number)
            cuda.synchronize(copies)  # ONNX Runtime runs on a stream of its own
            try:
                session.run_with_iobinding(binding, self._run_options)
            except Exception as error:
                raise onnxruntime_run_error(self._path, arrays, error) from error
            return dict(
                zip([port.name for port in self.outputs], binding.get_outputs(), strict=True)
            )

    def _give(
        self, cuda: Cuda, values: Mapping[str, Any], results: dict[str, DeviceArray], copies: int, keep: bool
    ) -> None:  # fmt: skip
        """Outputs of ONNX Runtime in the caller's arrays, and in new ones where it allocated none."""
        with CAPTURES.absent():
            for port in self.outputs:
                value, shape = values[port.name], tuple(values[port.name].shape())
                target = results.get(port.name)
                if target is None and not keep:
                    target = results[port.name] = self._result(port, self._new(port, shape))
                if target is None:
                    results[port.name] = self._result(port, value)
                    continue
                check_array(port, shape, target)
                copy = cuda.to_host if target.on_host else cuda.on_device
                copy(target.address, value.data_ptr(), target.size, copies)
            cuda.synchronize(copies)

    def _result(self, port: Port, value: Any) -> DeviceArray:
        """A value of ONNX Runtime as an output that owns it."""
        shape = tuple(value.shape())
        return DeviceArray(value.data_ptr(), shape, port.dtype, self._number, keep=value)

    def _new(self, port: Port, shape: Sequence[int]) -> Any:
        """A value of ONNX Runtime on the GPU."""
        make = import_onnxruntime().OrtValue.ortvalue_from_shape_and_type
        return make(list(shape), port.numpy_dtype, "cuda", self._number)

    def _copy_stream(self, cuda: Cuda) -> int:
        """The stream of copies; calls of several threads share it."""
        with self._stream_lock:
            if self._stream is None:
                self._cuda, self._stream = cuda, cuda.create_stream()
            return self._stream

    def _shared(
        self, cuda: Cuda, ports: Sequence[Port], arrays: Mapping[str, object], stream: int
    ) -> dict[str, DeviceArray]:
        """Arrays of the caller, ready for work on the stream."""
        return {
            port.name: device_array(arrays[port.name], port.name, cuda, self._number, stream)
            for port in ports
            if port.name in arrays
        }


def _shapes(arrays: Mapping[str, NDArray[Any]]) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in arrays.items()}


def _copy(cuda: Cuda, target: int, array: DeviceArray, stream: int) -> None:
    copy = cuda.to_device if array.on_host else cuda.on_device
    copy(target, array.address, array.size, stream)


def _wanted(port: Port, shape: tuple[int, ...], sizes: dict[str, int]) -> tuple[int, ...]:
    """The shape that an array must have: fixed sizes, and equal ones where the file has one name for them.

    Args:
        shape: that it has.
        sizes: what the names stand for; completed.
    """
    if len(shape) != len(port.shape):
        raise ShapeError(
            f"'{port.name}' is {port.dtype} {list(shape)}.",
            f"Expected: {len(port.shape)} axes, {list(port.shape)}.",
            "Convert it before inference.",
        )
    return tuple(
        size if isinstance(size, int) else sizes.setdefault(size, actual) if size else actual
        for size, actual in zip(port.shape, shape, strict=True)
    )
