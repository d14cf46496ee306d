"""Profiling: latency, memory and time per operator of a loaded model.

`profile` measures a session and returns a `ProfileReport`. Each subject has its own module: timing
and statistics (``timing``), cold starts in another process (``startup``, ``worker``), operators and
their layers (``operator_times``), the machine's limits (``machine_peaks``), comparison with peers
(``compare``, ``compare_models``), and the writers (``report_text``, ``report_html``).
"""
