"""Rebuild the kernels of a copy after a planner has changed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from .running import Tree
from .subjects import CPU, CUDA


def compiles(tree: Tree, file: str) -> bool:
    """Build the library that a file belongs to; Python files need no build."""
    if file == CUDA:
        return _cuda(tree.folder)
    if file == CPU:
        return _cpu(tree.folder)
    return True


def _cuda(folder: Path) -> bool:
    """Build the emulation where its tests look for it; all units but the planner are compiled once."""
    sources, build = folder / Path(CUDA).parent, folder / "build" / "cuda-host"
    build.mkdir(parents=True, exist_ok=True)
    objects = []
    units = (file for file in sources.iterdir() if file.suffix in (".cpp", ".cu"))
    for unit in sorted(units):
        target = build / f"{unit.stem}.o"
        objects.append(str(target))
        if unit.name == Path(CUDA).name or not target.is_file():
            flags = ["-std=c++17", "-O2", "-Wno-unknown-pragmas", "-fPIC", "-fvisibility=hidden"]
            command = [
                "g++",
                *flags,
                "-DCAPSEDGE_EMULATE",
                "-x",
                "c++",
                "-c",
                str(unit),
                "-o",
                str(target),
            ]
            if subprocess.run(command, capture_output=True, check=False).returncode:
                return False
    library = build / "libcapsedge_cuda_host.so"
    subprocess.run(["g++", "-shared", *objects, "-o", str(library)], check=True)
    return True


def _cpu(folder: Path) -> bool:
    """Build the operator library in place of the installed one."""
    build = folder / "build" / "native"
    if not (build / "CMakeCache.txt").is_file():
        command = ["cmake", "-S", str(folder / "capsedge" / "runtime" / "native"), "-B", str(build)]
        subprocess.run([*command, "-DCMAKE_BUILD_TYPE=Release"], check=True, capture_output=True)
    command = ["cmake", "--build", str(build), "--target", "capsedge_ort"]
    if subprocess.run(command, capture_output=True, check=False, env=os.environ).returncode:
        return False
    # Write another file instead of changing one that a process may have open.
    made = folder / "capsedge" / "runtime" / "_native" / "libcapsedge_ort.so"
    made.unlink()
    shutil.copy2(next(build.rglob("libcapsedge_ort.so")), made)
    return True
