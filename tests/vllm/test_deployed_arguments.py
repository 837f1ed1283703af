"""The arguments that the manifests give to vLLM are arguments that vLLM has."""

from __future__ import annotations

import json
import subprocess

from contract.engine_agent.vllm_server import command
from unit.deploy.manifests import built, environment, expanded, pods

PARSE = """
import json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
parsed = make_arg_parser(FlexibleArgumentParser()).parse_args(sys.argv[1:])
print(json.dumps([parsed.model_tag, parsed.port, parsed.scheduling_policy, parsed.max_model_len]))
"""


def test_vllm_has_the_arguments_of_the_manifests() -> None:
    objects = built("base")
    ((pod, vllm),) = [(pod, one) for pod in pods(objects) for one in pod.containers if one["name"] == "vllm"]
    values = environment(pod, vllm, objects).values
    words = [expanded(word, values)[0] for word in vllm["args"]]
    python = command()[0]
    done = subprocess.run((python, "-c", PARSE, *words), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told == [
        values["MODEL"],
        vllm["ports"][0]["containerPort"],
        "priority",
        int(values["CONTEXT_TOKENS"]),
    ]
