"""What must hold within one pod. Each lint yields a line for each fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from unit.deploy import product
from unit.deploy.manifests import Manifest, Pod, environment, expanded, of_kind, pods

MARGIN_S = 5
KINDS_THAT_NEED_PROBES = ("Deployment", "StatefulSet", "DaemonSet")


def _named(pod: Pod, container: Manifest) -> str:
    return f"{pod.title}, container {container['name']}:"


def _each(objects: Sequence[Manifest]) -> Iterator[tuple[Pod, Manifest, str]]:
    for pod in pods(objects):
        for container in pod.containers:
            yield pod, container, _named(pod, container)


def service_of(container: Manifest) -> str | None:
    """The service whose image it runs; None for images of others."""
    return product.IMAGES.get(container["image"].rpartition("/")[2].partition(":")[0])


def resources(objects: Sequence[Manifest]) -> Iterator[str]:
    for _, container, where in _each(objects):
        stated = container.get("resources", {})
        for kind in ("cpu", "memory"):
            if kind not in stated.get("requests", {}):
                yield f"{where} requests no {kind}"
        if "memory" not in stated.get("limits", {}):
            yield f"{where} has no limit of memory"


def hardening(objects: Sequence[Manifest]) -> Iterator[str]:
    for pod in pods(objects):
        context = pod.spec.get("securityContext", {})
        if pod.spec.get("automountServiceAccountToken") is not False:
            yield f"{pod.title} mounts a token that it does not need"
        if pod.spec.get("enableServiceLinks") is not False:
            yield f"{pod.title} gets a variable for every service of the namespace"
        if context.get("seccompProfile", {}).get("type") != "RuntimeDefault":
            yield f"{pod.title} has no seccomp profile"
        for own in ("hostNetwork", "hostPID", "hostIPC"):
            if pod.spec.get(own):
                yield f"{pod.title} has {own}"
        yield from (
            f"{pod.title} mounts a path of the node" for v in pod.spec.get("volumes", []) if "hostPath" in v
        )
    for pod, container, where in _each(objects):
        own = {**pod.spec.get("securityContext", {}), **container.get("securityContext", {})}
        if own.get("runAsNonRoot") is not True or not own.get("runAsUser"):
            yield f"{where} may run as root"
        if own.get("allowPrivilegeEscalation") is not False:
            yield f"{where} may gain privileges"
        if own.get("capabilities", {}).get("drop") != ["ALL"]:
            yield f"{where} keeps capabilities"
        if service_of(container) and own.get("readOnlyRootFilesystem") is not True:
            yield f"{where} can write to its own file system"


def images(objects: Sequence[Manifest]) -> Iterator[str]:
    for _, container, where in _each(objects):
        tag = container["image"].rpartition("/")[2].partition(":")[2]
        if tag in ("", "latest"):
            yield f"{where} its image {container['image']} is not pinned"
        elif service_of(container) and tag != product.VERSION:
            yield f"{where} its image is {tag}, and this is {product.VERSION}"


def commands(objects: Sequence[Manifest]) -> Iterator[str]:
    for pod, container, where in _each(objects):
        values = environment(pod, container, objects).values
        words = [*container.get("command", []), *container.get("args", [])]
        for word in words:
            yield from (
                f"{where} its arguments refer to $({one}), which is not set"
                for one in expanded(word, values)[1]
            )
        if service_of(container) is None or not words:
            continue
        if "command" not in container:
            yield f"{where} a service takes no arguments: {' '.join(words)}"
        elif (why := product.command_refusal([expanded(word, values)[0] for word in words])) is not None:
            yield f"{where} {' '.join(words)}: {why}"


def volumes(objects: Sequence[Manifest]) -> Iterator[str]:
    for pod in pods(objects):
        claims = [one["metadata"]["name"] for one in pod.owner["spec"].get("volumeClaimTemplates") or []]
        declared = [*claims, *(one["name"] for one in pod.spec.get("volumes", []))]
        mounted = [mount["name"] for c in pod.containers for mount in c.get("volumeMounts", [])]
        yield from (
            f"{pod.title} mounts {name}, no volume of it" for name in sorted(set(mounted) - set(declared))
        )
        yield from (
            f"{pod.title} mounts its volume {name} nowhere" for name in sorted(set(declared) - set(mounted))
        )
        maps = {one["metadata"]["name"] for one in of_kind(objects, "ConfigMap")}
        for volume in pod.spec.get("volumes", []):
            if "configMap" in volume and volume["configMap"]["name"] not in maps:
                yield f"{pod.title} mounts the map {volume['configMap']['name']}, which is not there"


def probes(objects: Sequence[Manifest]) -> Iterator[str]:
    for pod, container, where in _each(objects):
        kinds = [kind for kind in ("startupProbe", "readinessProbe", "livenessProbe") if kind in container]
        if pod.owner["kind"] in KINDS_THAT_NEED_PROBES and len(kinds) < 3:
            yield f"{where} has only {', '.join(kinds) or 'no probe'}"
        for kind in kinds:
            yield from (f"{where} its {kind} {fault}" for fault in _probe_faults(container, kind))
    for pod in pods(objects):
        yield from _port_faults(pod)


def _probe_faults(container: Manifest, kind: str) -> Iterator[str]:
    probe = container[kind]
    ports = {key for port in container.get("ports", []) for key in (port["containerPort"], port.get("name"))}
    asked = probe.get("grpc") or probe.get("httpGet") or probe.get("tcpSocket") or {}
    if asked.get("port") not in ports:
        yield f"asks port {asked.get('port')}, which the container does not have"
    service = service_of(container)
    if service is None:
        return
    if ("httpGet" in probe) != (service == "gateway"):
        yield "speaks another protocol than the service"
    elif "httpGet" in probe:
        if asked["path"] not in product.HTTP_PATHS:
            yield f"asks {asked['path']}, which is not served"
        if kind != "readinessProbe" and asked["path"] == "/readyz":
            yield "asks for readiness: the absence of a peer would end the process"
    elif "grpc" in probe:
        name = asked.get("service", "")
        if name not in product.HEALTH_NAMES:
            yield f"asks the health of {name}, which nobody has"
        if (kind == "readinessProbe") == (name == product.LIVENESS):
            yield "takes liveness for readiness, or the other way round"


def _port_faults(pod: Pod) -> Iterator[str]:
    for key in ("containerPort", "name"):
        twice = [
            value for value, n in Counter(port.get(key) for port in pod.ports).items() if n > 1 and value
        ]
        yield from (f"{pod.title} has two ports {value}" for value in twice)
    annotations = pod.template["metadata"].get("annotations", {})
    scraped = annotations.get("prometheus.io/port")
    if scraped is not None and pod.port_number(int(scraped)) is None:
        yield f"{pod.title} is to be scraped at port {scraped}, which it does not have"
