"""The parts that are of the records, of one engine, or of what other benchmarks measure: Figures 5 and 13 and
Table B.1."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from dynbranch.bench import admission, two_level
from dynbranch.bench.paper.parts import Found, Line, Made, Panel, Rows, Table
from dynbranch.bench.paper.runs import QUICK, Size, Spec
from dynbranch.bench.sim_fidelity_stretch import POINTS, stretched
from dynbranch.enginemodel.parameters import H200_QWEN3_32B
from dynbranch.records.loading import load

LENGTHS: Final = (100, 300, 1000, 5000)
PROBES: Final = 12


class Interference:
    """Figure 5: how often sub-topics recur as the stream of questions grows, and what fills do to a canonical
    request beside them."""

    name = "figure 5"

    def wants(self, size: Size, found: Found) -> Sequence[Spec]:
        return ()

    def make(self, size: Size, found: Found) -> Made:
        topics = [[sub["sub"] for sub in one["subs"]] for one in load(size.data, ("subagent",)).subagents]
        lengths = [length for length in LENGTHS if length < len(topics)] + [len(topics)]
        shares = [recurrence(topics[:length]) for length in lengths]
        rows: Rows = [("questions", "with a repeat %", "repeated sub-questions %", "paper: sub-topics %")]
        paper = {100: "19", 5000: "61"}
        for length, (questions, mentions) in zip(lengths, shares, strict=True):
            cells = (f"{100 * questions:.0f}", f"{100 * mentions:.0f}", paper.get(length, ""))
            rows.append((f"{length:,}", *cells))
        stretches = [
            stretched(H200_QWEN3_32B, point, seed=size.seeds[0], probes=PROBES).stretch for point in POINTS
        ]
        beside: Rows = [("fills", "canonical latency", "paper")]
        for point, stretch in zip(POINTS, stretches, strict=True):
            beside.append((point.name, f"{stretch:.2f}", f"{point.stretch:.2f}"))
        return Made(
            data={
                "recurrence": dict(zip(map(str, lengths), shares, strict=True)),
                "stretch": {
                    point.name: round(stretch, 4) for point, stretch in zip(POINTS, stretches, strict=True)
                },
            },
            tables=(
                Table("Figure 5a: recurrence", tuple(rows)),
                Table("Figure 5b: a canonical request beside fills, 32B", tuple(beside)),
            ),
            panels=(
                Panel(
                    "recurrence",
                    "questions",
                    "share",
                    (
                        Line("questions with a repeat", tuple(lengths), tuple(one for one, _ in shares)),
                        Line("repeated sub-questions", tuple(lengths), tuple(one for _, one in shares)),
                    ),
                ),
                Panel(
                    "interference",
                    "",
                    "latency over that alone",
                    (
                        Line("model", tuple(p.name for p in POINTS), tuple(stretches)),
                        Line("paper", tuple(p.name for p in POINTS), tuple(p.stretch for p in POINTS)),
                    ),
                    bars=True,
                ),
            ),
        )


def recurrence(questions: Iterable[Sequence[str]]) -> tuple[float, float]:
    """Of a stream of questions: the share that has a sub-question of an earlier one, and the share of
    sub-questions that came before."""
    seen: set[str] = set()
    count = repeated = mentions = again = 0
    for topics in questions:
        known = sum(topic in seen for topic in topics)
        count, repeated = count + 1, repeated + bool(known)
        mentions, again = mentions + len(topics), again + known
        seen.update(topics)
    return (repeated / count, again / mentions) if count else (0.0, 0.0)


class Gates:
    """Figure 13, shortened: ``bench two_level`` has the figures, and its intervals."""

    name = "figure 13"

    def wants(self, size: Size, found: Found) -> Sequence[Spec]:
        return ()

    def make(self, size: Size, found: Found) -> Made:
        short = two_level.Size((2.0, 2.4, 2.8), seeds=(1,), more_seeds=(), count=600, unseen=150)
        measured = two_level.measure(_unheard, size=two_level.QUICK if size == QUICK else short)
        data = {key: figure.as_json() for key, figure in measured.figures.items()}
        title = "Figure 13: both gates (paper: 0.35 fills priced, 2.91 with A0 off and A1 fixed)"
        return Made(data=data, tables=(Table(title, measured.table),))


class Admission:
    """Table B.1: ``bench admission`` has the figures."""

    name = "table B.1"

    def wants(self, size: Size, found: Found) -> Sequence[Spec]:
        return ()

    def make(self, size: Size, found: Found) -> Made:
        quick = size == QUICK
        measured = admission.measure(
            _unheard,
            seeds=size.seeds,
            rounds=20 if quick else 200,
            drives=1 if quick else 5,
            questions=20 if quick else 100,
        )
        rows: dict[str, Any] = measured.raw["table_b1"]
        title = "Table B.1 (paper: 98.0 % same set, 99.36 %, median 99.86, 5th 97.35, least 94.32)"
        return Made(data=rows, tables=(Table(title, measured.table),))


def _unheard(what: str, done: int, total: int) -> None:
    """Their own progress is not shown within another's."""
