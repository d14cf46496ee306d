"""``capsedge deploy triton`` and ``capsedge deploy kserve``: models behind model servers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from capsedge.cli import _options
from capsedge.cli._common import log, print_json
from capsedge.cli._parameters import Argument, Option
from capsedge.cli._places import READS_REPOSITORY, WRITES, Role, check_model, file_or_name
from capsedge.cli._tables import print_table
from capsedge.errors import UsageError


def _file(given: Any) -> Path | None:
    from capsedge.deploy.naming import file_of

    return file_or_name(file_of(given))


Models = Annotated[
    list[Path],
    Argument(
        metavar="MODEL...",
        help="ONNX files, TensorRT engines, or names of the zoo (digits-em); NAME=FILE sets the name that "
        "clients use.",
    ),
    Role(reads=True, check=check_model, named=_file),
]
Ops = Annotated[
    str,
    Option(
        "--ops",
        help="auto (operator library, and a portable twin of each model), fused (no twin) or portable "
        "(no library).",
    ),
]
MaxBatch = Annotated[int, Option("--max-batch", help="Largest batch that requests are joined to.")]
PreferredBatches = Annotated[
    str,
    Option("--preferred-batch", help="Batch sizes that run when reached, for example 8,16."),
]
QueueDelay = Annotated[
    int,
    Option("--queue-delay", help="Microseconds that a request may wait for others."),
]
Instances = Annotated[
    int, Option("--instances", help="Copies of each model that run at the same time.")
]
Mount = Annotated[
    str, Option("--mount", help="Where the server sees the folder; for KServe /mnt/models.")
]
Folder = Annotated[
    Path,
    Argument(metavar="REPOSITORY", help="A folder of `capsedge deploy triton`."),
    READS_REPOSITORY,
]
Manifest = Annotated[Path, Option("-o", "--output", help="The YAML file."), WRITES]
Storage = Annotated[
    str,
    Option(
        "--storage",
        help="Where the cluster finds a copy of the folder: s3://bucket/models, gs://..., pvc://...",
    ),
]
Name = Annotated[
    str | None, Option("--name", help="Of the service; by default that of the first model.")
]
Load = Annotated[
    str,
    Option("--load", help="Models to load, for example a,b; by default all but the twins."),
]
Cores = Annotated[
    int | None,
    Option(
        "--cpus", min=1, help="Processors of a replica; by default those of the Triton runtime."
    ),
]
Memory = Annotated[
    str,
    Option("--memory", help="Of a replica: 4Gi; by default that of the Triton runtime."),
]
Replicas = Annotated[str, Option("--replicas", help="Least and most, for example 1:4.")]
Release = Annotated[
    str | None,
    Option("--release", help="Of Triton's container, 24.08 or later; by default 26.07."),
]


def triton(
    models: Models,
    output: _options.DeployedFolder,
    device: _options.Device = None,
    ops: Ops = "auto",
    max_batch: MaxBatch = 32,
    preferred_batch: PreferredBatches = "",
    queue_delay: QueueDelay = 0,
    instances: Instances = 1,
    threads: _options.Threads = None,
    mount: Mount = "/models",
    as_json: _options.Json = False,
) -> None:
    """Write a model repository for Triton Inference Server."""
    from capsedge.deploy.repository_report import described
    from capsedge.deploy.triton import deploy_triton

    sizes = _options.batch_sizes(preferred_batch, "--preferred-batch") if preferred_batch else ()
    made = deploy_triton(
        models,
        output,
        device=device,
        ops=ops,
        max_batch=max_batch,
        preferred_batches=sizes,
        queue_delay=queue_delay,
        instances=instances,
        threads=threads,
        mount=mount,
        note=lambda text: log(f"note: {text}"),
    )
    if as_json:
        print_json(made.to_dict())
        return
    rows = [("folder", f"{made.output}, seen by the server at {made.mount}")]
    rows += [(model.name, described(model)) for model in made.models]
    print_table("Deployed", ("", ""), rows)


def kserve(
    repository: Folder,
    output: Manifest,
    storage: Storage,
    name: Name = None,
    load: Load = "",
    cpus: Cores = None,
    memory: Memory = "",
    replicas: Replicas = "",
    release: Release = None,
    as_json: _options.Json = False,
) -> None:
    """Write an InferenceService of KServe that runs a folder of `capsedge deploy triton`."""
    from capsedge.deploy.kserve import TRITON, deploy_kserve

    made = deploy_kserve(
        repository,
        output,
        storage=storage,
        name=name,
        models=_options.words(load),
        cpus=cpus,
        memory=memory,
        replicas=_range(replicas),
        release=release or TRITON,
    )
    if as_json:
        print_json(made.to_dict())
        return
    rows = [("file", str(made.output)), ("service", made.name), ("models", ", ".join(made.models))]
    print_table("Deployed", ("", ""), rows)


def _range(text: str) -> tuple[int, int] | None:
    if not text:
        return None
    try:
        least, most = map(int, text.split(":"))
    except ValueError:
        raise UsageError(
            f"'{text}' is no range of replicas.", "", "For example --replicas 1:4."
        ) from None
    return least, most
