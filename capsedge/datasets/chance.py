"""Whether the accuracy of a network can be that of guesses: wrong labels, range, preprocessing or output."""

from __future__ import annotations

import math

from capsedge.errors import UsageError

# So many correct answers are more than guesses give but in one of 20 sets of images; so few are fewer than a
# network gives that is right halfway between guesses and always, but in one of 100.
_LUCK, _MISFORTUNE = 0.05, 0.01


def binomial_at_most(count: int, trials: int, share: float) -> float:
    """The probability of at most ``count`` successes in independent trials (binomial distribution)."""
    if share <= 0.0:
        return float(count >= 0)
    if share >= 1.0 or count < 0:
        return 0.0
    if count >= trials:
        return 1.0
    log_p, log_q, top = math.log(share), math.log1p(-share), math.lgamma(trials + 1)
    terms = (
        top - math.lgamma(k + 1) - math.lgamma(trials - k + 1) + k * log_p + (trials - k) * log_q
        for k in range(count + 1)
    )
    return min(1.0, math.fsum(map(math.exp, terms)))


def check_above_chance(
    accuracy: float, images: int, classes: int, scores: str, data: str, what: str = "FP32"
) -> list[str]:
    """Refuse to judge by a network whose answers are no better than guesses; warnings where that is open.

    It is refused where its correct answers are no more than guesses give (in 19 of 20 such sets), and too
    few for one that is right halfway between guesses and always (in 1 of 100). Of a few images this says
    nothing, and they only warn.

    Args:
        accuracy: share of correct answers.
        images: how many were judged.
        classes: how many there are to guess from.
        scores: the output that was judged by.
        data: where the labels come from.
        what: the network.

    Raises:
        UsageError: its answers are those of chance.
    """
    if classes < 2 or not images:
        return []
    right, chance = round(accuracy * images), 1 / classes
    if 1 - binomial_at_most(right - 1, images, chance) <= _LUCK:
        return []
    artefact = (
        f"{what} is right on {right} of {images} images ({100 * accuracy:.2f} %); guesses among {classes} "
        f"classes are on {100 * chance:.3g} %"
    )
    if binomial_at_most(right, images, (1 + chance) / 2) > _MISFORTUNE:
        return [f"{artefact}: too few images to tell the two apart. Judge by more"]
    raise UsageError(
        f"{what} answers no better than chance, so nothing can be judged by its accuracy.",
        f"{artefact}. Judged by {scores}, labels of {data}.",
        "Correct what is wrong of these, and run it again.",
        details=[
            f"labels: they must number the {classes} classes from 0 in the order of the model's class names "
            "(`capsedge inspect` lists them)",
            "range and preprocessing: `capsedge infer` on an image of known class should name it; if not, "
            "describe it again with the range, mean and std of training (`capsedge optimize`)",
            f"output: {scores} must hold the scores; `capsedge inspect` says why it was taken",
            "weights: a network that was exported untrained guesses",
        ],
    )
