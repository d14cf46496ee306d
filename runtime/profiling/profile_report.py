"""The result of `capsedge.profile`, and the choice of its renderers."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from capsedge.runtime.files.writing import write_text
from capsedge.runtime.profiling.report_data import ReportData


@dataclass
class ProfileReport(ReportData):
    """The results of profiling, and the ways to write them. Renderers are imported when they are used."""

    def to_markdown(self) -> str:
        """Tables in Markdown."""
        from capsedge.runtime.profiling.markdown import markdown

        return markdown(self)

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Write one HTML file that contains its charts.

        Raises:
            UsageError: the path cannot be written.
        """
        from capsedge.runtime.profiling.html import html

        write_text(Path(path), html(self))

    def save_png(self, path: str | os.PathLike[str]) -> None:
        """Draw the charts with matplotlib.

        Raises:
            EnvironmentProblem: matplotlib is not installed.
            UsageError: the path cannot be written.
        """
        from capsedge.runtime.profiling.png import save_png

        save_png(self, Path(path))

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Write a trace for Perfetto or chrome://tracing.

        Raises:
            UsageError: the path cannot be written, or no operator was timed.
        """
        from capsedge.runtime.profiling.perfetto import trace

        write_text(Path(path), json.dumps(trace(self), indent=1))
