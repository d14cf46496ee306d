"""Profiling: latency, memory and time per operator of a loaded model.

`profile` measures a session and returns a `ProfileReport`. Each subject has its own file: measuring
(``worker``, ``startup``), statistics, operators and their layers, costs and the machine's peaks,
comparison with peers, and the writers (markdown, HTML and PNG, trace).
"""
