"""CapsBench: latency, throughput and accuracy of capsule networks, driven by MLPerf's LoadGen.

    python -m benchmarks.capsbench run --name my-machine --data mnist=DIR -o results
    python -m benchmarks.capsbench check results/my-machine.json
    python -m benchmarks.capsbench page docs/benchmarks/capsbench.md docs/benchmarks/capsbench

The rules are in ``rules.py`` and on the results page. These are not MLPerf results: LoadGen is MLCommons'
load generator, but the models and rules are ours.
"""
