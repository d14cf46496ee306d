"""TensorRT's Python package, its logger, and the plugin library of capsedge."""

from __future__ import annotations

import platform
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from capsedge.errors import ArtefactError, EnvironmentProblem
from capsedge.runtime.backends.cuda import Cuda, device_name, driver_version
from capsedge.runtime.backends.engine_layers import HEADS as LAYER_LISTS
from capsedge.runtime.backends.native_library import HOW_TO_GET_KERNELS, find_package, named_library
from capsedge.runtime.metadata.engine_metadata import BuildMachine, EngineMetadata, check
from capsedge.spec.operators import DOMAIN, OPERATORS, PLUGIN_VERSION

OLDEST = (10, 3)
NAMESPACES = (DOMAIN, "")  # namespaces in which a registry may keep our creators
PLUGINS = tuple(o.name for o in OPERATORS.values() if o.plugin)
RTX_INTERFACE = 11  # TensorRT-RTX 1 has the interface of TensorRT 11
VARIABLE = "CAPSEDGE_TENSORRT_PLUGIN"
TRANSLATED_MESSAGES = "capsedge: "  # begins what the plugins log
_KEPT = 20  # messages of TensorRT of a kind


def import_tensorrt() -> Any:
    """The package ``tensorrt``."""
    try:
        import tensorrt as trt
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "tensorrt"
        raise EnvironmentProblem(
            "TensorRT is not installed." if missing else "TensorRT cannot be imported.",
            "The Python package 'tensorrt' was not found." if missing else f"{error}.",
            how_to_get(),
        ) from error
    version = tuple(int(part) for part in trt.__version__.split(".")[:2])
    if version < OLDEST:
        raise EnvironmentProblem(
            f"TensorRT {trt.__version__} is too old.",
            "capsedge builds and runs engines with TensorRT 10.3 (JetPack 6) to 11.",
            how_to_get(),
        )
    return trt


def how_to_get() -> str:
    """How to install TensorRT on this kind of machine."""
    if platform.machine() == "aarch64":
        return (
            "On a Jetson, it comes with JetPack 6 or 7: `sudo apt-get install nvidia-jetpack "
            "python3-libnvinfer`, then create the environment with `python3 -m venv "
            f"--system-site-packages`; on other ARM machines: {_wheel()}."
        )
    return f"On a machine with an NVIDIA GPU: {_wheel()}."


def _wheel() -> str:
    driver = driver_version()
    if not driver:
        return (
            "`pip install 'capsedge[tensorrt-cu13]'` (with a driver before 580: `[tensorrt-cu12]`)"
        )
    return f"`pip install 'capsedge[tensorrt-cu{13 if int(driver.split('.')[0]) >= 13 else 12}]'`"


def product_version(trt: Any) -> str:
    """The name of a package, TensorRT or TensorRT-RTX, with its version."""
    return f"{'TensorRT-RTX' if _is_rtx(trt) else 'TensorRT'} {trt.__version__}"


def _is_rtx(trt: Any) -> bool:
    return bool(trt.__name__.startswith("tensorrt_rtx"))


def interface(trt: Any) -> int:
    """The major version of TensorRT whose C++ interface a package has."""
    return RTX_INTERFACE if _is_rtx(trt) else int(trt.__version__.split(".")[0])


@cache
def tensorrt_logger(trt: Any) -> Any:
    """A logger that keeps TensorRT's warnings and errors for our errors instead of printing them.

    Of the verbose messages, it keeps those that list an engine's layers. One exists per process and package:
    TensorRT uses the first logger that it receives for all builders and runtimes, so it must outlive them.
    """

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: deque[str] = deque(maxlen=_KEPT)
            self.warnings: deque[str] = deque(maxlen=_KEPT)
            self.layers: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
                self.errors.append(message)
            elif severity == trt.ILogger.WARNING:
                self.warnings.append(message)
            elif message.startswith(LAYER_LISTS):
                self.layers.append(message)

        def clear(self) -> None:
            """Forget messages about something else."""
            self.errors.clear()
            self.warnings.clear()
            self.layers.clear()

        @contextmanager
        def apart(self) -> Iterator[None]:
            """Keep messages inside the block apart from earlier ones, and forget them afterwards."""
            before = self.errors, self.warnings
            self.errors, self.warnings = deque(maxlen=_KEPT), deque(maxlen=_KEPT)
            try:
                yield
            finally:
                self.errors, self.warnings = before

        def words(self) -> str:
            """TensorRT's last messages, after those of our plugins, as the reason of an error."""
            messages = list(self.errors or self.warnings)
            own = [message for message in messages if message.startswith(TRANSLATED_MESSAGES)]
            rest = [message for message in messages[-2:] if message not in own]
            return " ".join([*own[-2:], *rest])[:600] or "TensorRT gave no reason."

        def of_plugins(self) -> list[str]:
            """The messages of our plugins, which the parser's own errors do not repeat."""
            return [message for message in self.errors if message.startswith(TRANSLATED_MESSAGES)]

    return Logger()


def start(trt: Any, kind: Any, logger: Any) -> Any:
    """A ``trt.Runtime`` or ``trt.Builder``."""
    try:
        return kind(logger)
    except TypeError as error:  # the bindings' form of a null pointer
        raise EnvironmentProblem(
            f"{product_version(trt)} does not start.",
            logger.words(),
            "Check `nvidia-smi` (on a Jetson: `tegrastats`) and `capsedge doctor`.",
        ) from error


def find_plugin(major: int) -> Path | None:
    """The library that CAPSEDGE_TENSORRT_PLUGIN names, else that of capsedge-cuda for ``major``, or None."""
    named = named_library(VARIABLE, "TensorRT plugin library")
    if named is not None:
        return named
    folder = find_package()
    library = folder and folder / platform.machine() / f"libcapsedge_tensorrt{major}.so"
    return library if library and library.is_file() else None


def no_plugin(major: int) -> EnvironmentProblem:
    """The error where the plugin library is required and missing."""
    what = "The TensorRT plugin library of capsedge is not installed."
    if find_package() is None:
        return EnvironmentProblem(
            what, "It comes in the package capsedge-cuda.",
            f"{HOW_TO_GET_KERNELS} `--plugin native` does without.",
        )  # fmt: skip
    return EnvironmentProblem(
        what,
        f"The installed capsedge-cuda has none for TensorRT {major} on {platform.machine()}.",
        "Build it with TensorRT's headers (docs/how-to/tensorrt.md), or use `--plugin native`.",
    )


def plugin_namespace(registry: Any) -> str | None:
    """The namespace under which a registry has our plugins; None if it does not have them all."""
    for namespace in NAMESPACES:
        creators = [registry.get_creator(name, PLUGIN_VERSION, namespace) for name in PLUGINS]
        if all(creator is not None for creator in creators):
            return namespace
    return None


def load_plugin(registry: Any, library: Path, logger: Any) -> str:
    """Load the plugins into a registry; returns their namespace."""
    # Asking TensorRT for plugins that are not there logs an error, too.
    with logger.apart():
        namespace = plugin_namespace(registry)
    if namespace is not None:  # loading twice would be an error
        return namespace
    with logger.apart():
        try:
            registry.load_library(str(library))
        except Exception as error:  # the bindings raise what their version raises
            raise _refused(library, f"{error} {logger.words()}") from error
        why = logger.words()
        namespace = plugin_namespace(registry)
    if namespace is None:
        raise _refused(library, why)
    return namespace


def _refused(library: Path, why: str) -> ArtefactError:
    return ArtefactError(
        f"TensorRT rejects the plugin library {library}.",
        why,
        "Install capsedge-cuda of this version, which has one for each TensorRT, or build without it: "
        "`--plugin native`.",
    )


def check_engine_machine(
    engine: Path, metadata: EngineMetadata, trt: Any, cuda: Cuda, device: int
) -> Path | None:
    """The plugin library that an engine needs, or None, once its metadata file fits this machine."""
    plugin = find_plugin(interface(trt)) if metadata.plugin_sha256 else None
    check(engine, metadata, this_build_machine(trt, cuda, device), plugin)
    return plugin


def this_build_machine(trt: Any, cuda: Cuda, device: int) -> BuildMachine:
    """This machine's properties that engines depend on; ``cuda`` is the newest that the driver supports."""
    cuda.check_device(device)
    return BuildMachine(
        tensorrt=trt.__version__,
        cuda=cuda.driver_version(),
        gpu=device_name(device),
        compute_capability=cuda.compute_capability(device),
        architecture=platform.machine(),
        multiprocessors=cuda.multiprocessors(device),
    )
