"""Answer requests for a model: gathered into batches, each checked by itself, counted."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import CapsedgeError, UsageError
from capsedge.runtime.backends.backend import usable_cores
from capsedge.runtime.session.session import Session
from capsedge.runtime.session.tensors import check_rows
from capsedge.serving.dynamic_batching import DynamicBatcher
from capsedge.serving.monitoring import BATCHES, FAILURES, SECONDS, logger
from capsedge.serving.request_bodies import InferRequest
from capsedge.serving.requests import PreparedRequest, read_request
from capsedge.serving.responses import (
    InferResponse,
    check_inputs,
    compute_outputs,
    model_metadata,
    respond,
)
from capsedge.serving.served_models import can_batch

Result = TypeVar("Result")
_Checked = tuple[PreparedRequest, Mapping[str, NDArray[Any]]]


class ModelFailed(Exception):
    """The model failed on a valid request; the log says why."""


class Model:
    """A loaded model that answers requests. Belongs to one event loop.

    Args:
        session: session of the file.
        name, version: as clients use them; the version may be empty.
        threads: number of threads for one inference.
        images: most images in a batch; requests that cannot be gathered run one by one.
        wait: how many seconds a batch waits for more requests although a thread is free.

    Attributes:
        session: the loaded model.
        metadata: the model's inputs and outputs, in the protocol's form.
    """

    def __init__(
        self, session: Session, name: str, version: str, threads: int, images: int, wait: float
    ) -> None:
        self.session, self.name, self.version = session, name, version
        self.metadata = model_metadata(session, name, version)
        size, wait = (max(1, images), wait) if can_batch(session) else (1, 0.0)
        batches = concurrent_inferences(threads)
        if session.backend.gpu is not None and size > 1:
            batches = min(2, batches)  # one is computed and one prepared; the rest gather
        self._batcher = DynamicBatcher(
            Responder(session, name, version), inference_threads(threads), batches, images_in, size, wait,
            sizes_in if session.metadata is None else lambda _: None,
        )  # fmt: skip
        self._seconds = SECONDS.labels(name, version)
        self._failures = FAILURES.labels(name, version)
        _warm_up(session)

    async def infer(self, request: InferRequest) -> InferResponse:
        """Answer a request; it gets an id if it has none."""
        request.id = request.id or uuid4().hex
        start = time.perf_counter()
        try:
            response = await self._batcher.submit(request)
        except UsageError:
            self._failures.inc()
            raise
        except CapsedgeError as error:
            self._failures.inc()
            logger.error("model %s: %s", self.name, " ".join(str(error).splitlines()))
            raise ModelFailed("The model failed; the log of the server says why.") from error
        self._seconds.observe(time.perf_counter() - start)
        response.id = request.id
        return response

    def abandon(self) -> None:
        """Compute no more answers; nobody waits for them."""
        self._batcher.abandon()


class Responder:
    """Answers requests for a model, in any thread.

    Args:
        name, version: name and version of the model.
    """

    def __init__(self, session: Session, name: str, version: str) -> None:
        self._session, self._name, self._version = session, name, version
        self._count = BATCHES.labels(name, version)

    def __call__(self, requests: Sequence[InferRequest]) -> list[InferResponse | Exception]:
        """Answer each request, or return its error.

        If there are several requests, they are for images or for rows of equal sizes, and the file takes any
        number of them.
        """
        if len(requests) == 1:
            return [_attempt(self._alone, requests[0])]
        read = [_attempt(self._checked, request) for request in requests]
        good = [one for one in read if not isinstance(one, Exception)]
        responses = iter(self._together(good))
        return [one if isinstance(one, Exception) else next(responses) for one in read]

    def _alone(self, request: InferRequest) -> InferResponse:
        prepared = read_request(request, self._session)
        outputs = compute_outputs(self._session, prepared.arrays, prepared.computed(self._session))
        self._count.observe(images_in(request))
        return self._respond(prepared, outputs)

    def _checked(self, request: InferRequest) -> _Checked:
        prepared = read_request(request, self._session)
        return prepared, check_inputs(self._session, prepared.arrays)

    def _together(self, good: Sequence[_Checked]) -> list[InferResponse | Exception]:
        if not good:
            return []
        names = dict.fromkeys(name for r, _ in good for name in r.computed(self._session))
        first = self._session.inputs[0].name
        arrays = {name: np.concatenate([own[name] for _, own in good]) for name in good[0][1]}
        outputs = _attempt(self._computed, arrays, list(names))
        if isinstance(outputs, Exception):
            if len(good) == 1:
                return [outputs]
            # The error is that of one request, whose values are nobody else's business.
            return [answer for each in good for answer in self._together([each])]
        self._count.observe(len(arrays[first]))
        answers, start = [], 0
        for prepared, own in good:
            end = start + len(own[first])
            part = {name: array[start:end] for name, array in outputs.items()}
            answers.append(_attempt(self._respond, prepared, part))
            start = end
        return answers

    def _computed(
        self, arrays: Mapping[str, NDArray[Any]], names: Sequence[str]
    ) -> dict[str, NDArray[Any]]:
        outputs = compute_outputs(self._session, arrays, names, math.inf)
        check_rows(self._session.path, outputs, len(arrays[self._session.inputs[0].name]))
        return outputs

    def _respond(self, request: PreparedRequest, outputs: dict[str, NDArray[Any]]) -> InferResponse:
        return respond(self._session, request, outputs, self._name, self._version)


def images_in(request: InferRequest) -> int:
    """The number of images that a request states: the first size of its first input."""
    shape = request.inputs[0].shape if request.inputs else []
    return max(1, shape[0]) if shape else 1


def sizes_in(request: InferRequest) -> Hashable:
    """The row sizes of each input that a request states; requests with equal sizes run together."""
    return tuple(sorted((tensor.name, tuple(tensor.shape[1:])) for tensor in request.inputs))


def _attempt(function: Callable[..., Result], *arguments: Any) -> Result | Exception:
    try:
        return function(*arguments)
    except Exception as error:  # goes only to the client of this request
        return error


# --- Threads ---


def concurrent_inferences(threads: int) -> int:
    """How many inferences with this number of threads can run on the cores at the same time."""
    return max(1, usable_cores() // threads)


@cache
def inference_threads(threads: int) -> ThreadPoolExecutor:
    """The threads that run all models, as many as the cores hold at ``threads`` each; one pool each."""
    return ThreadPoolExecutor(concurrent_inferences(threads), "capsedge")


def _warm_up(session: Session) -> None:
    """Run a model on a black image, since the first inference allocates the memory.

    A model from another tool, or with free sizes, is not run.
    """
    shape = session.inputs[0].shape[1:] if session.inputs else ()
    if session.metadata is None or not all(isinstance(size, int) for size in shape):
        return
    black = np.zeros((1, *(size for size in shape if isinstance(size, int))), np.float32)
    for _ in session.run_batches(black):
        pass
