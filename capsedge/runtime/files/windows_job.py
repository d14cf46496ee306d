"""The memory limit of a sandboxed process on Windows: a job object that holds the process itself.

https://learn.microsoft.com/windows/win32/procthread/job-objects
"""

from __future__ import annotations

import sys

if sys.platform == "win32":
    import ctypes

    # JobObjectExtendedLimitInformation, JOB_OBJECT_LIMIT_PROCESS_MEMORY, JOB_OBJECT_LIMIT_ACTIVE_PROCESS
    _EXTENDED_LIMITS, _PROCESS_MEMORY, _ACTIVE_PROCESSES = 9, 0x100, 0x8

    class _Limits(ctypes.Structure):
        """``JOBOBJECT_EXTENDED_LIMIT_INFORMATION``."""

        _fields_ = (
            ("process_time", ctypes.c_int64),
            ("job_time", ctypes.c_int64),
            ("flags", ctypes.c_uint32),
            ("least_working_set", ctypes.c_size_t),
            ("most_working_set", ctypes.c_size_t),
            ("processes", ctypes.c_uint32),
            ("affinity", ctypes.c_size_t),
            ("priority", ctypes.c_uint32),
            ("scheduling", ctypes.c_uint32),
            ("io_counters", ctypes.c_uint64 * 6),
            ("process_memory", ctypes.c_size_t),
            ("job_memory", ctypes.c_size_t),
            ("peak_process_memory", ctypes.c_size_t),
            ("peak_job_memory", ctypes.c_size_t),
        )

    def limit_memory(size: int) -> None:
        """Let this process commit no more memory than this, and start no other.

        Raises:
            OSError: Windows refuses.
        """
        kernel = ctypes.WinDLL("kernel32", use_last_error=True)
        kernel.CreateJobObjectW.restype = ctypes.c_void_p
        kernel.GetCurrentProcess.restype = ctypes.c_void_p
        kernel.SetInformationJobObject.argtypes = (
            ctypes.c_void_p,
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_uint32,
        )
        kernel.AssignProcessToJobObject.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
        limits = _Limits(
            flags=_PROCESS_MEMORY | _ACTIVE_PROCESSES, processes=1, process_memory=size
        )
        job = kernel.CreateJobObjectW(None, None)  # stays open as long as the process
        if (
            not job
            or not kernel.SetInformationJobObject(
                job, _EXTENDED_LIMITS, ctypes.byref(limits), ctypes.sizeof(limits)
            )
            or not kernel.AssignProcessToJobObject(job, kernel.GetCurrentProcess())
        ):
            raise ctypes.WinError(ctypes.get_last_error())
