"""A template proposed from recorded requests of one workflow type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from dynbranch.domain.template import StageKind
from dynbranch.templates.decisions import find_points
from dynbranch.templates.samples import Material, Sample, gather
from dynbranch.templates.shapes import Generaliser, Shape
from dynbranch.templates.traffic import Exchange
from dynbranch.templates.writing import Learned, write_template

MIN_WORKFLOWS: Final = 2
"""Of one workflow nothing tells what is constant."""


MAX_SAMPLES: Final = 200
"""Requests of a stage that are looked at, spread over the traffic: more say nothing new."""


class NotLearnable(Exception):
    """The traffic does not show enough. The message says what is missing."""


def workflow_types(exchanges: Iterable[Exchange]) -> list[str]:
    """The most frequent first."""
    return [name for name, _ in Counter(exchange.workflow_type for exchange in exchanges).most_common()]


def learn(exchanges: list[Exchange], workflow_type: str, version: int = 1) -> str:
    """The text of a template's file. Raises NotLearnable."""
    material = gather(exchanges, workflow_type)
    if material.workflows < MIN_WORKFLOWS or not material.stages:
        raise NotLearnable(
            f"there are {material.workflows} workflows of type {workflow_type!r}; record at least "
            f"{MIN_WORKFLOWS} with different inputs, better a dozen"
        )
    if strange := [stage.name for stage in material.stages.values() if not stage.spelling]:
        raise NotLearnable(
            f"the requests of {', '.join(strange)} are not spelled as json.dumps or a compact client would; "
            "write that stage by hand and leave its requests out of the traffic"
        )
    generaliser = Generaliser()
    shapes = {
        stage.name: generaliser.shape(stage.name, [(s, s.body) for s in _spread(stage.samples)])
        for stage in material.stages.values()
    }
    points = find_points(material, shapes, generaliser.inputs)
    reads = _reads(material, generaliser)
    return write_template(Learned(material, shapes, reads, generaliser.inputs, points), version)


def _spread(samples: list[Sample]) -> list[Sample]:
    every = -(-len(samples) // MAX_SAMPLES)
    return samples[::every]


def _reads(material: Material, generaliser: Generaliser) -> dict[str, list[Shape]]:
    """The records that chat requests declared, as far as all of a stage's are of one shape."""
    found: dict[str, list[Shape]] = {}
    for stage in material.stages.values():
        samples = _spread(stage.samples)
        told = [(sample, sample.reads) for sample in samples if sample.reads]
        if stage.kind is not StageKind.CHAT or len(told) < len(samples) or not told:
            continue
        if len({len(reads) for _, reads in told}) != 1:
            continue
        shapes = [_record_shape(generaliser, stage.name, told, place) for place in range(len(told[0][1]))]
        if all(shape is not None for shape in shapes):
            found[stage.name] = [shape for shape in shapes if shape is not None]
    return found


def _record_shape(
    generaliser: Generaliser, stage: str, told: list[tuple[Sample, tuple[str, ...]]], place: int
) -> Shape | None:
    return generaliser.text(stage, [(sample, reads[place]) for sample, reads in told])
