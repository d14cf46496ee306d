"""Put trained runs into the package: checkpoints, model cards, ONNX files.

    python -m tools.zoo DATA [RUNS]

DATA is a folder with `mnist/`, `cifar10/` and `clutter/` (`tools.zoo.clutter_images` draws it). RUNS holds
the output of `capsedge train`, `capsedge prune` and `tools.zoo.train_photos`, by the name of the model; the
runs that a run was continued from (--init) are beside it as NAME-1, NAME-2 and so on. Models missing from
RUNS keep their weights; their typical input is measured again on DATA.
"""
