"""Put trained runs into the package: checkpoints, model cards, ONNX files.

    python -m tools.zoo DATA [RUNS]

DATA is a folder with `mnist/` and `cifar10/`. RUNS holds what `capsedge train`, `capsedge prune` and
`tools.zoo.train_photos` made, by the name of the model; runs that a run continued from (--init) are beside
it as NAME-1, NAME-2 and so on. Models that RUNS does not hold keep their weights; their typical input is
measured on DATA again.
"""
