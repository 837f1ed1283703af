"""Where recorded workflows decided: an output that names what comes next, or a person's pick."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from dynbranch.domain.template import Origin, StageKind, Where, Window
from dynbranch.naming.document import Json, Number
from dynbranch.rendering.json_path import Every, Key, spell
from dynbranch.rendering.locating import Locator
from dynbranch.templates.samples import Material, Sample
from dynbranch.templates.shapes import (
    Constant,
    Filled,
    FoundInput,
    Items,
    Members,
    Pieces,
    Rounds,
    Shape,
    Written,
)
from dynbranch.templates.sources import (
    Chosen,
    Expression,
    FromInput,
    FromOutput,
    Lines,
    MemberOfEach,
    Missing,
    Spelled,
    Unused,
    places,
    same,
)

_MENUS: Final = (r"^\d+[.)] (.*)$", r"^- (.*)$", r"^\* (.*)$")
INDEPENDENT_SHARE: Final = 0.5
"""Offers of which more than this share is taken up later do not exclude one another."""


@dataclass(frozen=True, slots=True)
class LearnedPoint:
    """``says`` is how a request's text would name the selection without the point. ``offers`` is where its
    candidates stand; ``menu`` an input to be added for that."""

    name: str
    stage: str
    window: Window
    resolved_by: Where
    says: str
    then: tuple[str, ...]
    seen: int
    distinct: int
    independent: bool
    offers: Where | None = None
    menu: tuple[str, Where] | None = None


def find_points(material: Material, shapes: dict[str, Shape], inputs: list[FoundInput]) -> list[LearnedPoint]:
    points: list[LearnedPoint] = []
    for point in (*_decoded(material, shapes, inputs), *_picked(material, shapes, inputs)):
        same_name = sum(other.name.partition("_no_")[0] == point.name for other in points)
        points.append(replace(point, name=f"{point.name}_no_{same_name + 1}") if same_name else point)
    return points


def expressions_of(shape: Shape) -> Iterator[Expression]:
    """Every expression of a shape, and those that it is made of."""
    if isinstance(shape, Filled):
        yield from _within(shape.expression)
    for inner in _inner(shape):
        yield from expressions_of(inner)


def _inner(shape: Shape) -> tuple[Shape, ...]:
    match shape:
        case Constant() | Filled():
            return ()
        case Written(inner):
            return (inner,)
        case Members(items):
            return tuple(inner for _, inner in items)
        case Items(items):
            return items
        case Rounds(head, body, tail):
            return (*head, *body, *tail)
        case Pieces(parts):
            return tuple(part for part in parts if isinstance(part, Filled))


def _within(expression: Expression) -> Iterator[Expression]:
    yield expression
    match expression:
        case Chosen(items, _, by):
            yield items
            yield by
        case MemberOfEach(items) | Lines(items):
            yield items
        case Unused(each):
            yield from _within(each)
        case Spelled(of):
            yield from _within(of)


def _decoded(
    material: Material, shapes: dict[str, Shape], inputs: list[FoundInput]
) -> Iterator[LearnedPoint]:
    """A chat stage whose output has a member that a later stage asks with."""
    order = [*material.stages]
    for stage in order:
        if material.stages[stage].kind is not StageKind.CHAT:
            continue
        used = Counter(
            e
            for later in order
            for e in set(expressions_of(shapes[later]))
            if isinstance(e, FromOutput) and e.stage == stage and e.steps and not e.looped
        )
        chains = {e: _chain(material, shapes, inputs, stage, e) for e in used}
        deciding = [e for e in used if chains[e]]
        if not deciding:
            continue
        by = max(deciding, key=lambda e: (len(chains[e]), used[e], -e.rank))
        yield _decode_point(material, inputs, by, chains[by])


def _chain(
    material: Material, shapes: dict[str, Shape], inputs: list[FoundInput], stage: str, by: FromOutput
) -> tuple[str, ...]:
    """The stages after the decision that need nothing of its output but the selection."""
    order = [*material.stages]
    chain: list[str] = []
    asks = False
    for later in order[order.index(stage) + 1 :]:
        needed = [*expressions_of(shapes[later])]
        of_decision = [e for e in needed if isinstance(e, FromOutput) and e.stage == stage]
        if any(e != by for e in of_decision) or _reads_itself(later, inputs):
            break
        chain.append(later)
        asks = asks or bool(of_decision)
    return tuple(chain) if asks else ()


def _reads_itself(stage: str, inputs: list[FoundInput]) -> bool:
    return any(found.where.name == stage for found in inputs)


def _decode_point(
    material: Material, inputs: list[FoundInput], by: FromOutput, chain: tuple[str, ...]
) -> LearnedPoint:
    made: list[tuple[Sample, Json]] = [
        (sample, value)
        for sample in material.stages[chain[0]].samples
        if isinstance(value := by.value(sample), str | Number)
    ]
    offers, lists = _offers(made, inputs)
    keys = [step.name for step in by.steps or () if isinstance(step, Key)]
    return LearnedPoint(
        name=keys[-1] if keys else "choice",
        stage=by.stage,
        window=Window.DECODE,
        resolved_by=Where(Origin.OUTPUT, by.stage, spell(by.steps or ())),
        says=by.text,
        then=chain,
        seen=len(made),
        distinct=len({str(value) for _, value in made}),
        independent=_taken_up_later(made, lists),
        offers=offers,
    )


def _offers(
    made: list[tuple[Sample, Json]], inputs: list[FoundInput]
) -> tuple[Where | None, list[list[Json]]]:
    """A list among the inputs that has every selection."""
    for found in inputs:
        for key in (None, *_member_keys(found.expression, made)):
            each: FromInput | MemberOfEach = found.expression
            if key is not None:
                each = MemberOfEach(found.expression, key)
            lists = [each.value(sample) for sample, _ in made]
            if all(isinstance(x, list) and v in x for x, (_, v) in zip(lists, made, strict=True)):
                path = "" if key is None else spell((Every(), Key(key)))
                where = Where(Origin.INPUT, found.expression.name, path)
                return where, [x for x in lists if isinstance(x, list)]
    return None, []


def _member_keys(expression: FromInput, made: list[tuple[Sample, Json]]) -> list[str]:
    value = expression.value(made[0][0]) if made else None
    return [*value[0]] if isinstance(value, list) and value and isinstance(value[0], dict) else []


def _taken_up_later(made: list[tuple[Sample, Json]], lists: list[list[Json]]) -> bool:
    """Of what was offered and not selected, most is selected later in the same workflow."""
    open_offers = taken = 0
    for place, ((sample, value), offered) in enumerate(zip(made, lists, strict=False)):
        later = [v for s, v in made[place + 1 :] if s.workflow_id == sample.workflow_id]
        earlier = [v for s, v in made[:place] if s.workflow_id == sample.workflow_id]
        for item in offered:
            if not same(item, value) and item not in earlier and later:
                open_offers += 1
                taken += item in later
    return open_offers > 0 and taken / open_offers > INDEPENDENT_SHARE


def _picked(material: Material, shapes: dict[str, Shape], inputs: list[FoundInput]) -> Iterator[LearnedPoint]:
    """An input that a later stage's own request brings, and that an earlier one had on a menu."""
    order = [*material.stages]
    for found in inputs:
        stage = found.where.name
        if found.where.every or stage == order[0]:
            continue
        samples = material.stages[stage].samples
        made = [(s, v) for s in samples if isinstance(v := found.expression.value(s), str)]
        menu = _menu(made)
        if menu is None or not made:
            continue
        waited = Counter(sample.previous for sample, _ in made).most_common(1)[0][0]
        chain = [stage]
        for later in order[order.index(stage) + 1 :]:
            if later == waited or _reads_itself(later, inputs):
                break
            chain.append(later)
        name = f"{menu.name}_menu"
        yield LearnedPoint(
            name="pick",
            stage=waited,
            window=Window.WAIT,
            resolved_by=found.where,
            says=found.expression.text,
            then=tuple(chain),
            seen=len(made),
            distinct=found.distinct,
            independent=True,
            offers=Where(Origin.INPUT, re.sub(r"\W", "_", name)),
            menu=(re.sub(r"\W", "_", name), menu),
        )


def _menu(made: list[tuple[Sample, str]]) -> Where | None:
    """Lines of an earlier request, where every pick is one of them."""
    if not made:
        return None
    sample, _ = made[0]
    for stage, body in sample.requests.items():
        for steps, value in places(body):
            if not isinstance(value, str):
                continue
            for regex in _MENUS:
                where = Where(Origin.REQUEST, stage, spell(steps), regex, every=True)
                offered = FromInput("menu", Locator(where))
                if all(_has(offered.value(s), v) for s, v in made):
                    return where
    return None


def _has(offered: Json | Missing, value: str) -> bool:
    return isinstance(offered, list) and value in offered
