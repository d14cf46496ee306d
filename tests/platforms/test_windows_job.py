"""The memory limit of a sandboxed process on Windows: what it asks of the system. No test has run on one."""

from __future__ import annotations

import struct
from pathlib import Path

from tests.platforms.systems import run

_LIMIT = """
import sys
from capsedge.runtime.files.sandbox import limit_memory
limit_memory(7 << 30)
"""


def test_the_process_puts_itself_into_a_job_with_its_limit(tmp_path: Path) -> None:
    done = run("win32", "-c", _LIMIT, cwd=tmp_path, CAPSEDGE_CALLS="1")
    assert done.returncode == 0, done.stderr
    created, limited, here, assigned = (line.split() for line in done.stderr.splitlines())
    assert created == ["CreateJobObjectW", "None", "None"]
    name, job, kind, content, size = limited
    assert (name, job, kind) == ("SetInformationJobObject", "1", "9")
    data = bytes.fromhex(content)
    # JOBOBJECT_EXTENDED_LIMIT_INFORMATION: LimitFlags, ActiveProcessLimit, ProcessMemoryLimit.
    assert len(data) == int(size) == 144
    assert struct.unpack_from("<I", data, 16)[0] == 0x100 | 0x8
    assert struct.unpack_from("<I", data, 40)[0] == 1
    assert struct.unpack_from("<Q", data, 112)[0] == 7 << 30
    assert here == ["GetCurrentProcess"]
    assert assigned == ["AssignProcessToJobObject", "1", "1"]


def test_what_windows_refuses_ends_the_process(tmp_path: Path) -> None:
    """An untrusted file is not read without the limit."""
    for call in ("CreateJobObjectW", "SetInformationJobObject", "AssignProcessToJobObject"):
        done = run("win32", "-c", _LIMIT, cwd=tmp_path, CAPSEDGE_FAILING_CALL=call)
        assert done.returncode == 1
        assert "Access is denied" in done.stderr
