"""The result of `capsedge.profile`, and the choice of its renderers."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from capsedge.runtime.files.writing import write_text
from capsedge.runtime.profiling.report_data import ReportData
from capsedge.runtime.quantities import milliseconds
from capsedge.runtime.summary import LINES, Row, Summarized, Summary, short


@dataclass(repr=False)
class ProfileReport(Summarized, ReportData):
    """The results of profiling, and the ways to write them. Renderers are imported when they are used."""

    def _summary(self) -> Summary:
        rows = [Row(f"{short(run.model)}, batch {run.batch}", str(run)) for run in self.runs]
        lines = [f"{row.name}: {row.value}" for row in rows]
        if len(lines) > LINES:
            lines = [*lines[: LINES - 1], f"and {len(lines) - LINES + 1} more runs"]
        for comparison in self.comparisons:
            for entry in comparison.entries:
                time = f"median {milliseconds(entry.latency.median)} ms" if entry.latency else ""
                rows.append(
                    Row(f"{short(entry.name)}, batch {comparison.batch}", time or entry.problem)
                )
        rows.append(Row("machine", ", ".join(self.machine.values())))
        return Summary("ProfileReport", lines or ["of nothing"], rows)

    def to_markdown(self) -> str:
        """Tables in Markdown."""
        from capsedge.runtime.profiling.markdown import markdown

        return markdown(self)

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Write one HTML file that contains its charts.

        Raises:
            EnvironmentProblem: matplotlib is not installed.
            UsageError: the path cannot be written.
        """
        from capsedge.runtime.profiling.report_html import save_html

        save_html(self, Path(path))

    def save_png(self, path: str | os.PathLike[str]) -> None:
        """Draw the charts with matplotlib.

        Raises:
            EnvironmentProblem: matplotlib is not installed.
            UsageError: the path cannot be written.
        """
        from capsedge.runtime.profiling.report_html import save_png

        save_png(self, Path(path))

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Write a trace for Perfetto or chrome://tracing.

        Raises:
            UsageError: the path cannot be written, or no operator was timed.
        """
        from capsedge.runtime.profiling.perfetto import trace

        write_text(Path(path), json.dumps(trace(self), indent=1))
