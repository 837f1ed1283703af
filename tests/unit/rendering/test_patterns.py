"""Which regular expressions a template may use."""

from __future__ import annotations

import pytest
from dynbranch.rendering.patterns import checked_pattern
from dynbranch.rendering.problems import TemplateInvalid
from dynbranch.rendering.reading import parse_template


@pytest.mark.parametrize(
    "text",
    [
        "(a+)+$",
        "^(?:[a-z]+ ?)*$",
        "(?:a|aa)*b",
        "(?:.|x)*b",
        "(a*)*",
        "(?:(?:ab?)+,)*x",
        "(?=(a+)+$)",
        "(?>(a+)+b)",
        "(?:a{2,}){3,}b",
        "(x+?)+?y",
    ],
)
def test_a_search_that_may_take_years_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="possessive"):
        checked_pattern(text)


@pytest.mark.parametrize(
    "text",
    [
        "^- (.*)$",
        r"^\* (?P<value>.*)$",
        r"^\d+\. (.*)$",
        r"^\{.*\}$",
        r"[A-Z]\w+",
        '"([^"]*)[^"]"',
        "(?:a++,)*",
        "(?>a+,)*",
        "(?:yes|no)*",
        "(?:a{1,3} ){1,4}",
        "(one|only) of (.*)",
    ],
)
def test_what_people_write_is_not(text: str) -> None:
    assert checked_pattern(text).search("nothing of the kind") is None or text


def test_the_file_s_message_names_the_place() -> None:
    text = "workflow_type: t\nversion: 1\ninputs:\n  a: {request: s, regex: '(a+)+$'}\nstages:\n"
    with pytest.raises(TemplateInvalid, match=r"t\.yaml:4: inputs\.a\.regex: .*possessive"):
        parse_template(text + "  s: {kind: chat, request: x}\n", "t.yaml")
