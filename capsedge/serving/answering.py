"""Answers to requests that run together: each is checked by itself, and images are run as one batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from mlserver.types import InferenceResponse
from numpy.typing import NDArray
from prometheus_client import Histogram

from capsedge.runtime.session import Session
from capsedge.serving.requests import Request, read_request
from capsedge.serving.responses import check_images, compute, respond

if TYPE_CHECKING:
    from capsedge.serving.requests import Payload

Result = TypeVar("Result")
_Checked = tuple[Request, NDArray[Any]]

_BATCHES = Histogram(
    "capsedge_batch_images", "Images in one inference", ["model"], buckets=(1, 2, 4, 8, 16, 32, 64)
)


class Answering:
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
        return self._answer(request, found)

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
            answers.append(_attempt(self._answer, request, part))
            start += len(own)
        return answers

    def _answer(self, request: Request, found: dict[str, NDArray[Any]]) -> InferenceResponse:
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
