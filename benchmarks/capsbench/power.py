"""Energy, if the machine reports it: RAPL's counters, or a Jetson's power monitors."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

RAPL = Path("/sys/class/powercap")
MONITORS = Path("/sys/class/hwmon")
PERIOD = 0.1  # seconds between power readings


@dataclass
class Energy:
    """The energy that a run took.

    Attributes:
        source: names of the counters; empty if the machine reports nothing.
        joules: the energy; None if the machine reports nothing.
    """

    source: str = ""
    joules: float | None = None


@contextmanager
def measured() -> Iterator[Energy]:
    """The energy that the whole package or board uses during the block; complete when the block ends."""
    energy = Energy()
    if counters := rapl_counters():
        before = {c: _read(c / "energy_uj") for c in counters}
        yield energy
        energy.source = "RAPL " + ", ".join(_text(c / "name") for c in counters)
        energy.joules = 1e-6 * sum(_since(c, before[c]) for c in counters)
    elif monitors := board_monitors():
        energy.source = "INA3221 " + ", ".join(_text(label) for label, _, _ in monitors)
        with _sampled([(volts, amperes) for _, volts, amperes in monitors]) as joules:
            yield energy
        energy.joules = sum(joules)
    else:
        yield energy


def rapl_counters() -> list[Path]:
    """RAPL's counters for whole processor packages, if this user may read them."""
    found = sorted(RAPL.glob("intel-rapl:?"))
    return [
        c for c in found if _readable(c / "energy_uj") and _text(c / "name").startswith("package")
    ]


def board_monitors() -> list[tuple[Path, Path, Path]]:
    """The rail that powers the board: files with its label, millivolts and milliamperes.

    Jetsons name it ``VDD_IN`` (Orin Nano, Orin NX) or ``VIN_SYS_5V0`` and others (AGX), on an INA3221.
    """
    found = []
    for label in sorted(MONITORS.glob("*/in?_label")):
        if _text(label) in ("VDD_IN", "VIN_SYS_5V0", "VDD_GPU_SOC", "VDD_CPU_CV"):
            number = label.name[2]
            volts, amperes = (
                label.with_name(f"in{number}_input"),
                label.with_name(f"curr{number}_input"),
            )
            if _readable(volts) and _readable(amperes):
                found.append((label, volts, amperes))
    total = [m for m in found if _text(m[0]) == "VDD_IN"]
    return total or found


@contextmanager
def _sampled(rails: list[tuple[Path, Path]]) -> Iterator[list[float]]:
    """The joules between power readings, appended until the block ends."""
    joules: list[float] = []
    stop = threading.Event()

    def watch() -> None:
        last = time.perf_counter()
        stopped = False
        while not stopped:
            stopped = stop.wait(PERIOD)
            watts = 1e-6 * sum(_read(volts) * _read(amperes) for volts, amperes in rails)
            now = time.perf_counter()
            joules.append(watts * (now - last))
            last = now

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield joules
    finally:
        stop.set()
        thread.join()


def _since(counter: Path, before: int) -> int:
    """The microjoules since a reading; the counter wraps around at its limit."""
    now = _read(counter / "energy_uj")
    return now - before if now >= before else now - before + _read(counter / "max_energy_range_uj")


def _read(path: Path) -> int:
    return int(path.read_text())


def _text(path: Path) -> str:
    return path.read_text().strip()


def _readable(path: Path) -> bool:
    try:
        path.read_text()
    except OSError:
        return False
    return True
