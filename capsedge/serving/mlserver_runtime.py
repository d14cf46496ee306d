"""Run a model as a runtime of MLServer: `CapsedgeModel`.

``capsedge serve`` starts an MLServer with it; whoever runs MLServer themselves names
``capsedge.serving.mlserver_runtime.CapsedgeModel`` in ``model-settings.json``.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from mlserver import MLModel, ModelSettings
from mlserver.errors import InferenceError, MLServerError
from mlserver.logging import logger
from mlserver.types import InferenceRequest, InferenceResponse, MetadataModelResponse, Parameters
from numpy.typing import NDArray
from prometheus_client import Histogram

from capsedge.errors import CapsedgeError, UsageError
from capsedge.runtime.backends.backend import usable_cores
from capsedge.runtime.load import load
from capsedge.runtime.session import Session
from capsedge.serving.dynamic_batching import DynamicBatcher
from capsedge.serving.requests import PreparedRequest, read_request
from capsedge.serving.responses import (
    PLATFORM,
    check_images,
    compute,
    inputs_of,
    outputs_of,
    parameters_of,
    respond,
)
from capsedge.serving.served_models import can_batch

if TYPE_CHECKING:
    from capsedge.serving.requests import Payload


# --- Requests that run together: each checked by itself, images run as one batch ---

Result = TypeVar("Result")
_Checked = tuple[PreparedRequest, NDArray[Any]]

_BATCHES = Histogram(
    "capsedge_batch_images", "Images in one inference", ["model"], buckets=(1, 2, 4, 8, 16, 32, 64)
)


class Responder:
    """Answers requests for a model, in any thread.

    Args:
        session: the loaded model.
        name, version: of the model.
        lists: as for `respond`.
    """

    def __init__(self, session: Session, name: str, version: str | None, lists: bool) -> None:
        self._session, self._name, self._version, self._lists = session, name, version, lists
        self._count = _BATCHES.labels(name)

    def __call__(self, payloads: Sequence[Payload]) -> list[InferenceResponse | Exception]:
        """An answer to each request, or what is wrong with it.

        Several requests are for images, and the file takes any number of them.
        """
        if len(payloads) == 1:
            return [_attempt(self._alone, payloads[0])]
        read = [_attempt(self._checked, payload) for payload in payloads]
        good = [one for one in read if not isinstance(one, Exception)]
        found = iter(self._together(good))
        return [one if isinstance(one, Exception) else next(found) for one in read]

    def _alone(self, payload: Payload) -> InferenceResponse:
        request = read_request(payload, self._session)
        found = compute(self._session, request.arrays, request.computed(self._session))
        self._count.observe(images_in(payload))
        return self._respond(request, found)

    def _checked(self, payload: Payload) -> _Checked:
        request = read_request(payload, self._session)
        return request, check_images(self._session, request.arrays)

    def _together(self, good: Sequence[_Checked]) -> list[InferenceResponse | Exception]:
        if not good:
            return []
        names = dict.fromkeys(name for r, _ in good for name in r.computed(self._session))
        images = np.concatenate([images for _, images in good])
        arrays = {self._session.inputs[0].name: images}
        found = _attempt(compute, self._session, arrays, list(names), math.inf)
        if isinstance(found, Exception):
            return [found] * len(good)
        self._count.observe(len(images))
        answers, start = [], 0
        for request, own in good:
            part = {name: array[start : start + len(own)] for name, array in found.items()}
            answers.append(_attempt(self._respond, request, part))
            start += len(own)
        return answers

    def _respond(
        self, request: PreparedRequest, found: dict[str, NDArray[Any]]
    ) -> InferenceResponse:
        return respond(self._session, request, found, self._name, self._version, self._lists)


def images_in(payload: Payload) -> int:
    """The images in a request, as far as it says: the first size of its first input."""
    shape = payload.inputs[0].shape if payload.inputs else []
    return max(1, shape[0]) if shape else 1


def _attempt(function: Callable[..., Result], *arguments: Any) -> Result | Exception:
    try:
        return function(*arguments)
    except Exception as error:  # goes to the client of this request alone
        return error


# --- The runtime ---

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

    In ``model-settings.json`` its name is ``capsedge.serving.mlserver_runtime.CapsedgeModel``;
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
        self._gatherer: DynamicBatcher[Payload, InferenceResponse] | None = None
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
            return await self._gatherer.submit(payload)
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

    def _gathering(self, session: Session) -> DynamicBatcher[Payload, InferenceResponse]:
        size, seconds = self._batching if can_batch(session) else (1, 0.0)
        batches = at_once(self._threads)
        if session.backend.gpu is not None and size > 1:
            batches = min(2, batches)  # one is computed, one prepared; all others gather
        answering = Responder(session, self.name, self.version, self._lists)
        return DynamicBatcher(
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


__all__ = ["CapsedgeModel"]
