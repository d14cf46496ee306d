"""Two networks of a cascade, and what they answer for images and deformed copies of them."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray

from capsedge.calibration.deformed import STRENGTHS, Deformation
from capsedge.calibration.doubt import Scored, decided
from capsedge.datasets import ImageSet
from capsedge.errors import ArtefactError
from capsedge.graph.random_nodes import refuse_random
from capsedge.pipelines.pairing import Fit, fit
from capsedge.runtime.cascade import Parent
from capsedge.runtime.load import load_bytes
from capsedge.runtime.predictions import DEFAULT_THRESHOLD
from capsedge.runtime.reading.onnx_file import read_bytes
from capsedge.runtime.score_checks import score_warnings
from capsedge.runtime.session import Session

Progress: TypeAlias = "Callable[[str, int, int], None]"
BATCH = 64
_TRIED = 512  # images that the strength of a deformation is tried on
_KEPT = 0.95  # of the large network's decisions, under the deformation


class Network:
    """A file, its graph and a session that runs it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content = read_bytes(path)
        self.session = load_bytes(self.content, path)
        self.model = onnx.load_model_from_string(self.content)
        refuse_random(self.model, str(path))

    def parent(self) -> Parent:
        """What the cascade states of it."""
        metadata = self.session.metadata
        assert metadata is not None  # `fit` refuses others
        digest = hashlib.sha256(self.content).hexdigest()
        return Parent(
            self.path.name, digest, len(self.content), metadata.precision,
            metadata.checkpoint_sha256,
        )  # fmt: skip


@dataclass(frozen=True)
class Answers:
    """Scores ``[N, J]`` of both networks, and the seconds that each took."""

    small: NDArray[np.float32]
    large: NDArray[np.float32]
    seconds: tuple[float, float]


class Networks:
    """Both networks, and how they fit.

    Attributes:
        warnings: why their scores may say nothing.
        threshold: of several labels, the score from which one is given; None where the best class is.
    """

    def __init__(self, small: Network, large: Network) -> None:
        self.small, self.large = small, large
        self.fit: Fit = fit(small.session, large.session)
        self.warnings = [
            f"{network.session.path.name}: {warning}"
            for network in (small, large)
            for warning in score_warnings(network.session)
        ]
        self.threshold: float | None = None
        if large.session.roles.multi_label:  # a logit of 0 is a probability of one half
            logits = large.session.roles.kind == "logits"
            self.threshold = 0.0 if logits else DEFAULT_THRESHOLD

    def deformation(self, images: ImageSet) -> Deformation:
        """The strongest deformation under which the large network keeps 95 % of its decisions.

        The weakest of all where it keeps fewer under each.
        """
        tried = images.draw(_TRIED)
        prep = self.fit.metadata.preprocessing
        last = prep is not None and prep.layout == "NHWC"
        wanted = decided(self._large(tried.batches(BATCH)), self.threshold)
        for strength in STRENGTHS:
            found = Deformation(strength, last)
            scores = self._large(found.copies(tried.batches(BATCH)))
            kept = (decided(scores, self.threshold) == wanted).all(axis=1).mean()
            if kept >= _KEPT:
                break
        return found

    def _large(self, batches: Iterable[NDArray[Any]]) -> NDArray[np.float32]:
        return np.concatenate([_scores(self.large.session, batch) for batch in batches])

    def copies(
        self, images: ImageSet, deformation: Deformation, stage: str, progress: Progress | None
    ) -> Scored:
        """How both networks answer a deformed copy of every image."""
        batches = deformation.copies(images.batches(BATCH))
        found = self.answers(batches, len(images), stage, progress)
        return Scored.of(found.small, found.large, self.threshold)

    def answers(
        self, batches: Iterable[NDArray[Any]], total: int, stage: str, progress: Progress | None
    ) -> Answers:
        """The scores of both networks for prepared batches.

        Raises:
            ArtefactError: some are NaN or infinite.
        """
        pair = self.fit.pair
        small, large = self.small.session, self.large.session
        found: tuple[list[Any], list[Any]] = ([], [])
        seconds, done = [0.0, 0.0], 0
        for batch in batches:
            own = (
                batch
                if pair.scale is None or pair.shift is None
                else batch * pair.scale + pair.shift
            )
            for k, (session, given) in enumerate(((small, own), (large, batch))):
                start = time.perf_counter()
                found[k].append(_scores(session, given))
                seconds[k] += time.perf_counter() - start
            done += len(batch)
            if progress is not None:
                progress(stage, done, total)
        first, second = (np.concatenate(part) for part in found)
        for session, scores in ((small, first), (large, second)):
            if not np.isfinite(scores).all():
                raise ArtefactError(
                    f"{session.path} computes scores that are NaN or infinite.",
                    "No threshold can be chosen by them.",
                    "Run `capsedge verify` on the file.",
                )
        return Answers(first, second, (seconds[0], seconds[1]))


def _scores(session: Session, batch: NDArray[Any]) -> NDArray[np.float32]:
    name = session.roles.scores
    assert name is not None  # of a classification
    runs = session.run_batches(batch, [name], batch_size=BATCH)
    return np.concatenate([outputs[name] for _, outputs in runs]).astype(np.float32)
