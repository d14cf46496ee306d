"""The runtime of capsedge for MLServer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from mlserver import MLModel, ModelSettings
from mlserver.errors import InferenceError, MLServerError
from mlserver.logging import logger
from mlserver.types import InferenceRequest, InferenceResponse, MetadataModelResponse, Parameters

from capsedge.errors import CapsedgeError, UsageError
from capsedge.runtime.backends.cores import usable_cores
from capsedge.runtime.load import load
from capsedge.runtime.session import Session
from capsedge.serving.answering import Answering, images_in
from capsedge.serving.batch_size import can_batch
from capsedge.serving.description import PLATFORM, inputs_of, outputs_of, parameters_of
from capsedge.serving.gathering import Gatherer

if TYPE_CHECKING:
    from capsedge.serving.requests import Payload

_OPTIONS = ("threads", "ops", "device", "provider")  # of `capsedge.load`, in ``parameters.extra``
_FAILED = "The model failed; the log of the server says why."


def at_once(threads: int) -> int:
    """How many inferences of so many threads the cores let run at the same time."""
    return max(1, usable_cores() // threads)


@cache
def runners(threads: int) -> ThreadPoolExecutor:
    """The threads that run all models of this process: as many as the cores let run at the same time.

    Args:
        threads: threads of one inference.

    Returns:
        The executor, the same for the same number.
    """
    return ThreadPoolExecutor(at_once(threads), "capsedge")


class CapsedgeModel(MLModel):
    """A file of capsedge, or any ONNX file, as a model of MLServer.

    In ``model-settings.json`` its name is ``capsedge.integrations.mlserver.CapsedgeModel``;
    ``parameters.uri`` names the file, and ``parameters.extra`` may hold ``threads`` (of one inference; 1 by
    default), ``ops``, ``device`` and ``provider`` as `capsedge.load` takes them. With a ``max_batch_size``,
    requests that wait for a processor are gathered into batches of at most so many images, for a file of
    capsedge whose batch is free; ``max_batch_time`` is how long a batch waits although one is free.

    Args:
        settings: of MLServer.
        session: the loaded model, for `capsedge serve`, whose requests and answers hold arrays; None loads
            ``parameters.uri``.
    """

    def __init__(self, settings: ModelSettings, session: Session | None = None) -> None:
        self._batching = settings.max_batch_size, settings.max_batch_time
        # Otherwise MLServer would gather requests before they are checked, so that one client's bad request
        # would fail the others', and hold back those that could run at once.
        settings.max_batch_size = 0
        super().__init__(settings)
        self._session, self._lists = session, session is None
        self._gatherer: Gatherer[Payload, InferenceResponse] | None = None
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
        self._gatherer = self._gathering(session)
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

    async def predict(self, payload: Payload) -> InferenceResponse:
        """Answer a request.

        Args:
            payload: the request.

        Returns:
            The outputs that it asks for, and predictions in its parameters where it asks for them.

        Raises:
            InferenceError: the request is wrong.
            MLServerError: the model failed.
        """
        if self._gatherer is None:
            raise self._not_loaded()
        try:
            return await self._gatherer.ask(payload)
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
            raise self._not_loaded()
        return self._session

    def _not_loaded(self) -> MLServerError:
        return MLServerError(f"Model {self.name} is not loaded.", 503)

    def _gathering(self, session: Session) -> Gatherer[Payload, InferenceResponse]:
        size, seconds = self._batching if can_batch(session) else (1, 0.0)
        batches = at_once(self._threads)
        if session.backend.gpu is not None and size > 1:
            batches = min(2, batches)  # one is computed, one prepared; all others gather
        answering = Answering(session, self.name, self.version, self._lists)
        return Gatherer(
            answering, runners(self._threads), batches, images_in, max(1, size), seconds
        )

    async def _in_thread(self, function: Any, *arguments: Any, **options: Any) -> Any:
        """Run a function beside the event loop, when a core is free."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            runners(self._threads), lambda: function(*arguments, **options)
        )


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
