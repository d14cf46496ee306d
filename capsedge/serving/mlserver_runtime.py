"""Run a model in your own MLServer: `CapsedgeModel`. `capsedge serve` does not use it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from mlserver import MLModel, ModelSettings
from mlserver.errors import InferenceError, MLServerError
from mlserver.types import InferenceRequest, InferenceResponse, MetadataModelResponse

from capsedge.errors import UsageError
from capsedge.runtime.load import load
from capsedge.runtime.runtime_options import RuntimeOptions
from capsedge.serving.inference import Model, ModelFailed
from capsedge.serving.request_bodies import InferRequest, Input, Output
from capsedge.serving.request_tensors import DATATYPES

_OPTIONS = (
    "threads",
    "ops",
    "device",
    "provider",
    "graphs",
)  # for `capsedge.load`, in ``parameters.extra``


class CapsedgeModel(MLModel):
    """An MLServer model that runs a capsedge file or any other ONNX file.

    In ``model-settings.json`` its name is ``capsedge.serving.mlserver_runtime.CapsedgeModel``;
    ``parameters.uri`` names the file, and ``parameters.extra`` may hold ``threads`` (of one inference; 1 by
    default), ``ops``, ``device``, ``provider`` and ``graphs`` as `capsedge.load` takes them. With a
    ``max_batch_size``, requests that wait for a processor are gathered into batches of up to that many
    images; ``max_batch_time`` is how long a batch waits even if a processor is free.
    """

    def __init__(self, settings: ModelSettings) -> None:
        self._batching = settings.max_batch_size, settings.max_batch_time
        # Otherwise MLServer would gather requests before they are checked, so that one client's bad request
        # would fail the others', and hold back those that could run at once.
        settings.max_batch_size = 0
        super().__init__(settings)
        self._model: Model | None = None

    async def load(self) -> bool:
        """Load the file and run it once."""
        given = self.settings.parameters
        if given is None or not given.uri:
            raise UsageError(f"Model {self.name} does not name a file.", "", "Set parameters.uri.")
        options = {"threads": 1, **(given.extra or {})}
        options = {key: options[key] for key in _OPTIONS if key in options}
        self._model = await asyncio.to_thread(self._loading, given.uri, options)
        return True

    def _loading(self, uri: str, options: dict[str, Any]) -> Model:
        threads = int(options["threads"])
        return Model(
            load(uri, RuntimeOptions(**options)),
            self.name,
            self.version or "",
            threads,
            *self._batching,
        )

    async def unload(self) -> bool:
        """Free the model; requests that still run are not disturbed."""
        self._loaded().session.close()
        return True

    async def metadata(self) -> MetadataModelResponse:
        """The model's inputs and outputs; the parameters hold the file's metadata."""
        return MetadataModelResponse(**self._loaded().metadata)

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Answer a request; predictions are in the parameters of the answer."""
        inputs = [
            Input(t.name, str(t.datatype), t.shape, t.data.root, _extra(t)) for t in payload.inputs
        ]
        wanted = [Output(output.name, _extra(output)) for output in payload.outputs or ()]
        request = InferRequest(inputs, wanted, _extra(payload), payload.id)
        try:
            answer = await self._loaded().infer(request)
        except UsageError as error:
            raise InferenceError(" ".join(str(error).splitlines())) from error
        except ModelFailed as error:
            raise MLServerError(str(error), 500) from error
        outputs = [
            {"name": name, "shape": list(array.shape), "datatype": DATATYPES[str(array.dtype)],
             "data": array.ravel().tolist()} for name, array in answer.outputs.items()
        ]  # fmt: skip
        return InferenceResponse(
            model_name=answer.name, model_version=answer.version or None, id=answer.id,
            outputs=outputs, parameters=answer.parameters or None,
        )  # fmt: skip

    async def predict_stream(
        self, payloads: AsyncIterator[InferenceRequest]
    ) -> AsyncIterator[InferenceResponse]:
        async for payload in payloads:
            yield await self.predict(payload)

    def _loaded(self) -> Model:
        # Not a property, because MLServer reads all attributes before it loads the model.
        if self._model is None:
            raise MLServerError(f"Model {self.name} is not loaded.", 503)
        return self._model


def _extra(owner: Any) -> dict[str, Any]:
    return (owner.parameters.model_extra or {}) if owner.parameters is not None else {}
