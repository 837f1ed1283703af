"""The coverage-guided fuzzer: ``make fuzz``. Runs under atheris, which is libFuzzer for Python.

A failing input is written to ``var/fuzz``; the same command with its path replays it. Put it into
``tests/fuzz/corpus`` with its fix: the ordinary test suite replays what is there.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[1]))

with atheris.instrument_imports(include=["dynbranch.naming", "dynbranch.bench.engine_view"]):
    from fuzz.oracles import check_input

atheris.Setup(sys.argv, check_input)
atheris.Fuzz()
