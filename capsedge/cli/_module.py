"""The options that name a network of the user's own, shared by the verbs that run PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from capsedge.cli._parameters import Option
from capsedge.cli._places import READS, READS_CODE
from capsedge.errors import UsageError

if TYPE_CHECKING:
    from capsedge.pipelines.own_module import ModuleSource

_PANEL = "A network of your own"


@dataclass(frozen=True)
class OwnModule:
    """``--module`` and what goes with it."""

    module: Annotated[
        str | None,
        Option(
            "--module",
            help="Your own PyTorch code, which is run: capsnet.py:CapsNet or package.module:CapsNet, a "
            "class or a function that returns a module.",
            panel=_PANEL,
        ),
        READS_CODE,
    ] = None
    weights: Annotated[
        Path | None,
        Option(
            "--weights",
            help="Weights for --module: .pt, .pth, .tar, .chkpt, .ckpt, .bin or .safetensors.",
            panel=_PANEL,
        ),
        READS,
    ] = None
    args: Annotated[
        str,
        Option(
            "--args",
            help="Arguments of --module as JSON: an object of named ones, or an array.",
            panel=_PANEL,
        ),
    ] = ""

    def source(self, **others: object) -> ModuleSource | None:
        """What was named; None without ``--module``.

        Args:
            others: options that name a model too, and so exclude ``--module``.

        Raises:
            UsageError: options contradict each other.
        """
        if self.module is None:
            for name, value in (("--weights", self.weights), ("--args", self.args)):
                if value:
                    raise UsageError(
                        f"{name} needs --module.",
                        "It belongs to a network of your own.",
                        "Name its code: --module capsnet.py:CapsNet. (--checkpoint takes the package's own "
                        "checkpoints.)",
                    )
            return None
        for name, other in others.items():
            if other not in (None, False, ""):
                raise UsageError(
                    f"--module and --{name} exclude each other.",
                    "Both name the network.",
                    f"Leave --{name} out; the weights of --module are named with --weights.",
                )
        from capsedge.pipelines.own_module import ModuleSource

        return ModuleSource(self.module, str(self.weights or ""), self.args)
