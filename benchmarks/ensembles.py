"""Two ways to run an ensemble on the same threads: ``python -m benchmarks.ensembles [MODEL ...]``.

Members run one after another, each with all threads, or all at the same time, with the threads divided among
them. The two ways are interleaved; the ratio is between the minimum times.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import capsedge
from capsedge.runtime.backends.backend import usable_cores

ROUNDS = 200


def main() -> None:
    """Print both times and their ratio for every batch size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["digits-dynamic", "digits-em"])
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4, 16])
    options = parser.parse_args()
    share = max(1, options.threads // len(options.models))
    ways = {
        together: capsedge.Ensemble(
            [
                capsedge.load(m, threads=share if together else options.threads)
                for m in options.models
            ],
            together=together,
        )
        for together in (False, True)
    }
    shape = [d for d in ways[False].members[0].inputs[0].shape[1:] if isinstance(d, int)]
    for batch in options.batch:
        images = np.random.default_rng(0).random((batch, *shape), np.float32)
        least = dict.fromkeys(ways, np.inf)
        for _ in range(ROUNDS):
            for together, ensemble in ways.items():
                start = time.perf_counter()
                ensemble.predict(images, prepared=True)
                least[together] = min(least[together], time.perf_counter() - start)
        print(
            f"batch {batch}, {options.threads} threads: one after another {1e3 * least[False]:.2f} ms, "
            f"at the same time {1e3 * least[True]:.2f} ms, ratio {least[True] / least[False]:.2f}"
        )


if __name__ == "__main__":
    main()
