"""The runtime of capsedge for MLServer."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
from mlserver import MLModel, ModelSettings
from mlserver.batching import AdaptiveBatcher
from mlserver.errors import InferenceError, MLServerError
from mlserver.logging import logger
from mlserver.types import (
    InferenceRequest,
    InferenceResponse,
    MetadataModelResponse,
    Parameters,
    RequestInput,
    RequestOutput,
    ResponseOutput,
    TensorData,
)

from capsedge.errors import CapsedgeError, UsageError
from capsedge.runtime.backends.cores import usable_cores
from capsedge.runtime.loading import load
from capsedge.runtime.session import Session
from capsedge.serving.description import PLATFORM, inputs_of, outputs_of, parameters_of
from capsedge.serving.requests import Request, read_request
from capsedge.serving.responses import check_images, compute, respond
from capsedge.serving.tensors import DATATYPES

_OPTIONS = ("threads", "ops", "device", "provider")  # of `capsedge.load`, in ``parameters.extra``
_FAILED = "The model failed; the log of the server says why."


@cache
def runners(threads: int) -> ThreadPoolExecutor:
    """The threads that run all models of this process: as many as the cores let run at the same time.

    Args:
        threads: threads of one inference.

    Returns:
        The executor, the same for the same number.
    """
    return ThreadPoolExecutor(max(1, usable_cores() // threads), "capsedge")


class CapsedgeModel(MLModel):
    """A file of capsedge, or any ONNX file, as a model of MLServer.

    In ``model-settings.json`` its name is ``capsedge.integrations.mlserver.CapsedgeModel``;
    ``parameters.uri`` names the file, and ``parameters.extra`` may hold ``threads`` (of one inference; 1 by
    default), ``ops``, ``device`` and ``provider`` as `capsedge.load` takes them. With ``max_batch_size`` and
    ``max_batch_time``, MLServer's adaptive batching gathers requests for a file of capsedge whose batch is
    free.

    Args:
        settings: of MLServer.
        session: the loaded model; None loads ``parameters.uri``.
    """

    def __init__(self, settings: ModelSettings, session: Session | None = None) -> None:
        self._batching = settings.max_batch_size, settings.max_batch_time
        # Otherwise MLServer would gather requests before they are checked, and one client's bad request
        # would fail the others'.
        settings.max_batch_size = 0
        super().__init__(settings)
        self._session = session
        self._batcher: AdaptiveBatcher | None = None
        extra = (settings.parameters.extra if settings.parameters else None) or {}
        self._options = {key: extra[key] for key in _OPTIONS if key in extra}
        self._threads = int(self._options.setdefault("threads", 1))

    async def load(self) -> bool:
        """Load the file, and run it once.

        Returns:
            True.

        Raises:
            CapsedgeError: as `capsedge.load`.
        """
        if self._session is None:
            uri = self.settings.parameters.uri if self.settings.parameters else None
            if not uri:
                raise UsageError(f"Model {self.name} names no file.", "", "Set parameters.uri.")
            self._session = await self._in_thread(load, uri, **self._options)
        session = self._session
        self.inputs, self.outputs = inputs_of(session), outputs_of(session)
        size, seconds = self._batching
        if size > 1 and seconds > 0 and can_batch(session):
            limits = SimpleNamespace(max_batch_size=size, max_batch_time=seconds)
            self._batcher = AdaptiveBatcher(
                SimpleNamespace(settings=limits, predict=self._predict_batch)
            )
        await self._in_thread(warm_up, session)
        return True

    async def unload(self) -> bool:
        """Free the model; requests that still run are not disturbed.

        Returns:
            True.
        """
        if self._session is not None:
            self._session.close()
        return True

    async def metadata(self) -> MetadataModelResponse:
        """What the model takes and gives.

        Returns:
            Names, shapes and types, and in parameters what the file's metadata says.
        """
        found = await super().metadata()
        found.platform = PLATFORM
        found.versions = [self.version] if self.version else []
        found.parameters = Parameters(**parameters_of(self._loaded()))
        return found

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Answer a request.

        Args:
            payload: the request.

        Returns:
            The outputs that it asks for, and predictions in its parameters where it asks for them.

        Raises:
            InferenceError: the request is wrong.
            MLServerError: the model failed.
        """
        try:
            if self._batcher is None:
                return await self._in_thread(self._answer, payload)
            return await self._answer_batched(self._batcher, payload)
        except UsageError as error:
            raise InferenceError(" ".join(str(error).splitlines())) from error
        except CapsedgeError as error:
            logger.error("model %s: %s", self.name, " ".join(str(error).splitlines()))
            raise MLServerError(_FAILED, 500) from error

    async def predict_stream(
        self, payloads: AsyncIterator[InferenceRequest]
    ) -> AsyncIterator[InferenceResponse]:
        """Answer the requests of a stream one after another.

        Args:
            payloads: the requests.

        Yields:
            One answer for each.
        """
        async for payload in payloads:
            yield await self.predict(payload)

    def _loaded(self) -> Session:
        # No property: MLServer reads all attributes before it loads the model.
        if self._session is None:
            raise MLServerError(f"Model {self.name} is not loaded.", 503)
        return self._session

    async def _in_thread(self, function: Any, *arguments: Any, **options: Any) -> Any:
        """Run a function beside the event loop, when a core is free."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            runners(self._threads), lambda: function(*arguments, **options)
        )

    def _answer(self, payload: InferenceRequest) -> InferenceResponse:
        return self._run(read_request(payload, self._loaded()))

    def _run(self, request: Request) -> InferenceResponse:
        session = self._loaded()
        found = compute(session, request.arrays, request.computed(session))
        return respond(session, request, found, self.name, self.version)

    async def _answer_batched(
        self, batcher: AdaptiveBatcher, payload: InferenceRequest
    ) -> InferenceResponse:
        """Answer a request as part of a batch, which only small requests without errors reach."""
        session = self._loaded()
        request: Request = await self._in_thread(read_request, payload, session)
        images = check_images(session, request.arrays)
        if len(images) > self._batching[0]:
            return await self._in_thread(self._run, request)
        tensor = RequestInput.model_construct(
            name=session.inputs[0].name,
            shape=list(images.shape),
            datatype=DATATYPES[str(images.dtype)],
            data=TensorData.model_construct(root=images),
        )
        names = [RequestOutput(name=name) for name in request.computed(session)]
        asked = InferenceRequest.model_construct(inputs=[tensor], outputs=names)
        # A client that goes away must not take the answers of others with it.
        answer = await asyncio.shield(batcher.predict(asked))
        found = {
            output.name: np.asarray(output.data.root).reshape(output.shape)
            for output in answer.outputs
        }
        return respond(session, request, found, self.name, self.version)

    async def _predict_batch(self, payload: InferenceRequest) -> InferenceResponse:
        """Run a batch that MLServer gathered: a list of arrays, and every output that one of them needs."""
        found = await self._in_thread(self._compute_batch, payload)
        outputs = [
            ResponseOutput.model_construct(
                name=name,
                shape=list(array.shape),
                datatype=DATATYPES[str(array.dtype)],
                data=TensorData.model_construct(root=array.ravel()),
            )
            for name, array in found.items()
        ]
        return InferenceResponse.model_construct(model_name=self.name, outputs=outputs)

    def _compute_batch(self, payload: InferenceRequest) -> dict[str, Any]:
        images = np.concatenate(payload.inputs[0].data.root)
        names = [output.name for output in payload.outputs or []]
        return compute(self._loaded(), {payload.inputs[0].name: images}, names, math.inf)


def can_batch(session: Session) -> bool:
    """Whether requests may be run together: images of one size in a file of
    capsedge, whose batch is free.

    Args:
        session: the loaded model.

    Returns:
        True if they may.
    """
    ports = (*session.inputs, *session.outputs)
    free = all(port.shape and not isinstance(port.shape[0], int) for port in ports)
    alike = all(isinstance(size, int) for port in session.inputs for size in port.shape[1:])
    return session.metadata is not None and free and alike


def warm_up(session: Session) -> None:
    """Run a model on a black image, since the first inference allocates the memory.

    Args:
        session: the loaded model; one of another tool, or with free sizes, is left alone.
    """
    shape = session.inputs[0].shape[1:] if session.inputs else ()
    if session.metadata is None or not all(isinstance(size, int) for size in shape):
        return
    black = np.zeros((1, *(size for size in shape if isinstance(size, int))), np.float32)
    for _ in session.run_batches(black):
        pass
