"""Who finds whom: selectors, ports, addresses, and the policies in between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from unit.deploy import product
from unit.deploy.manifests import (
    Manifest,
    Pod,
    name_of,
    namespace_of,
    of_kind,
    pods,
    selects,
    service_pods,
    title,
)
from unit.deploy.settings_lints import starting


def selectors(objects: Sequence[Manifest]) -> Iterator[str]:
    for pod in pods(objects):
        selector = pod.owner["spec"].get("selector")
        if selector is not None and not selects(selector, pod.labels):
            yield f"{pod.title} does not select the pods that it makes"
        for spread in pod.spec.get("topologySpreadConstraints", []):
            if not selects(spread["labelSelector"], pod.labels):
                yield f"{pod.title} spreads pods that are not its own"
    for service in of_kind(objects, "Service"):
        if not service_pods(service, objects):
            yield f"{title(service)} selects no pods"
    for one in of_kind(objects, "PodDisruptionBudget", "NetworkPolicy"):
        selector = one["spec"].get("selector" if one["kind"] == "PodDisruptionBudget" else "podSelector")
        if not _selected(one, selector, objects):
            yield f"{title(one)} selects no pods"
    for owner in of_kind(objects, "StatefulSet"):
        governing = _service(owner["spec"]["serviceName"], namespace_of(owner), objects)
        own = [pod.title for pod in service_pods(governing, objects)] if governing else []
        if title(owner) not in own or governing is None or governing["spec"].get("clusterIP") != "None":
            yield f"{title(owner)}: {owner['spec']['serviceName']} is no headless service of its pods"


def service_ports(objects: Sequence[Manifest]) -> Iterator[str]:
    for service in of_kind(objects, "Service"):
        for pod in service_pods(service, objects):
            for port in service["spec"]["ports"]:
                target = port.get("targetPort", port["port"])
                number = pod.port_number(target)
                if number is None:
                    yield f"{title(service)} leads to port {target}, which {pod.title} does not have"
                elif service["spec"].get("clusterIP") == "None" and number != port["port"]:
                    yield f"{title(service)} is headless: nothing turns its port {port['port']} into {number}"


def addresses(objects: Sequence[Manifest]) -> Iterator[str]:
    """Every address that a service is given leads to pods that listen there and let it in."""
    for pod, container, service, _, settings in starting(objects):
        where = f"{pod.title}, container {container['name']}:"
        for setting in product.PEERS.get(service, ()):
            value = getattr(settings, setting)
            given = [value] if isinstance(value, str) else list(value)
            if not any(given):
                yield f"{where} no {setting}"
            for address in filter(None, given):
                yield from (
                    f"{where} {setting} {address} {fault}" for fault in _faults(address, pod, objects)
                )
            if setting == "agents":
                yield from (f"{where} {fault}" for fault in _agent_faults(given, pod, objects))


def raw_requests(objects: Sequence[Manifest]) -> Iterator[str]:
    """Where gateways send raw requests past the agents. An engine outside the manifests is not looked at."""
    for pod, container, service, _, settings in starting(objects):
        if service != "gateway" or not settings.engine_url:
            continue
        where = f"{pod.title}, container {container['name']}: its engine {settings.engine_url}"
        url = urlsplit(settings.engine_url)
        found, _ = _resolved(url.hostname or "", pod.namespace, objects)
        if found is None and "." not in (url.hostname or "").removesuffix(f".{pod.namespace}"):
            yield f"{where} names no service"
        for engine in service_pods(found, objects) if found else ():
            if engine.port_number(url.port or 80) is None:
                yield f"{where} is a port that {engine.title} does not have"
            elif not admits(objects, pod, engine, url.port or 80):
                yield f"{where} is closed to it by policy"


def _faults(address: str, caller: Pod, objects: Sequence[Manifest]) -> Iterator[str]:
    host, _, port = address.rpartition(":")
    service, _ = _resolved(host, caller.namespace, objects)
    if service is None:
        yield "names no service"
        return
    if service["spec"].get("clusterIP") != "None":
        yield "is a virtual address: gRPC would stay with one pod"
    if int(port) not in [one["port"] for one in service["spec"]["ports"]]:
        yield f"is a port that {title(service)} does not have"
    for pod in service_pods(service, objects):
        if not admits(objects, caller, pod, int(port)):
            yield f"is closed to it by policy at {pod.title}"


def _agent_faults(given: Sequence[str], caller: Pod, objects: Sequence[Manifest]) -> Iterator[str]:
    """A gateway takes each address for one agent: it does not tell the pods behind one name apart."""
    found = [_resolved(address.rpartition(":")[0], caller.namespace, objects) for address in given]
    for address, (service, pod_name) in zip(given, found, strict=True):
        replicas = (
            sum(pod.owner["spec"].get("replicas", 1) for pod in service_pods(service, objects))
            if service
            else 0
        )
        if service is not None and pod_name is None and replicas > 1:
            yield f"the agent {address} is {replicas} pods under one name; list them one by one"
    for owner in of_kind(objects, "StatefulSet"):
        listed = {
            pod
            for service, pod in found
            if service and pod and name_of(service) == owner["spec"]["serviceName"]
        }
        there = {f"{name_of(owner)}-{number}" for number in range(owner["spec"].get("replicas", 1))}
        if listed:
            yield from (f"the agent {name} is not there" for name in sorted(listed - there))
            yield from (f"the agent {name} is not listed" for name in sorted(there - listed))


def _resolved(host: str, namespace: str, objects: Sequence[Manifest]) -> tuple[Manifest | None, str | None]:
    """The service of a host name, and the pod where the name is one pod's."""
    first, *rest = host.split(".")
    service = _service(first, rest[0] if rest else namespace, objects)
    if service is not None or not rest:
        return service, None
    second, *place = rest
    return _service(second, place[0] if place else namespace, objects), first


def _service(name: str, namespace: str, objects: Sequence[Manifest]) -> Manifest | None:
    for one in of_kind(objects, "Service"):
        if (name_of(one), namespace_of(one)) == (name, namespace):
            return one
    return None


def policies(objects: Sequence[Manifest]) -> Iterator[str]:
    for policy in of_kind(objects, "NetworkPolicy"):
        chosen = _selected(policy, policy["spec"].get("podSelector"), objects)
        for rule in policy["spec"].get("ingress", []):
            for port in rule.get("ports", []):
                without = [pod.title for pod in chosen if pod.port_number(port["port"]) is None]
                yield from (
                    f"{title(policy)} opens port {port['port']}, which {one} does not have" for one in without
                )
            for source in rule.get("from", []):
                near = "namespaceSelector" not in source
                if near and not any(selects(source.get("podSelector"), pod.labels) for pod in pods(objects)):
                    yield f"{title(policy)} lets in pods that are not there"
    for pod in pods(objects):
        own = [
            p
            for p in of_kind(objects, "NetworkPolicy")
            if pod in _selected(p, p["spec"].get("podSelector"), objects)
        ]
        if not own:
            yield f"{pod.title} is open to everybody"


def admits(objects: Sequence[Manifest], caller: Pod, pod: Pod, port: int) -> bool:
    """Whether the network policies let ``caller`` connect to that port. Without a policy everybody may."""
    chosen = [
        p
        for p in of_kind(objects, "NetworkPolicy")
        if pod in _selected(p, p["spec"].get("podSelector"), objects)
    ]
    rules = [rule for policy in chosen for rule in policy["spec"].get("ingress", [])]
    return not chosen or any(_rule_admits(rule, caller, pod, port) for rule in rules)


def _rule_admits(rule: Manifest, caller: Pod, pod: Pod, port: int) -> bool:
    opened = [pod.port_number(one["port"]) for one in rule.get("ports", [])]
    if opened and port not in opened:
        return False
    sources = rule.get("from")
    near = [
        one for one in sources or [] if "namespaceSelector" not in one and caller.namespace == pod.namespace
    ]
    return sources is None or any(selects(one.get("podSelector"), caller.labels) for one in near)


def _selected(one: Manifest, selector: Manifest | None, objects: Sequence[Manifest]) -> list[Pod]:
    near = [pod for pod in pods(objects) if pod.namespace == namespace_of(one)]
    return [pod for pod in near if selects(selector, pod.labels)]
