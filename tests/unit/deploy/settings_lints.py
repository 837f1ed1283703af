"""What the manifests set, against what the services read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from pydantic_settings import BaseSettings
from unit.deploy import product
from unit.deploy.manifests import Environment, Manifest, Pod, environment, of_kind, pods
from unit.deploy.pod_lints import MARGIN_S, service_of


def services(objects: Sequence[Manifest]) -> Iterator[tuple[Pod, Manifest, str, Environment]]:
    """Every container that runs a service, with its environment."""
    for pod in pods(objects):
        for container in pod.containers:
            service = service_of(container)
            if service is not None and pod.runs_on:
                yield pod, container, service, environment(pod, container, objects)


def starting(objects: Sequence[Manifest]) -> Iterator[tuple[Pod, Manifest, str, Environment, BaseSettings]]:
    """As ``services``, without those that would not start."""
    for pod, container, service, found in services(objects):
        if product.refusal(service, found.values) is None:
            yield pod, container, service, found, product.settings(service, found.values)


def variables(objects: Sequence[Manifest]) -> Iterator[str]:
    for pod in pods(objects):
        for container in pod.containers:
            for problem in environment(pod, container, objects).problems:
                yield f"{pod.title}, container {container['name']}: {problem}"
    for pod, container, service, found in services(objects):
        where = f"{pod.title}, container {container['name']}:"
        refusal = product.refusal(service, found.values)
        if refusal is not None:
            yield f"{where} {refusal}"
        used = {
            name
            for entry in container.get("env", [])
            for name in found.values
            if f"$({name})" in entry.get("value", "")
        }
        for name in sorted(set(found.values) - used):
            if not product.reads(service, name):
                yield f"{where} nothing reads {name}"


def listening(objects: Sequence[Manifest]) -> Iterator[str]:
    for pod, container, _, found, settings in starting(objects):
        where = f"{pod.title}, container {container['name']}:"
        ports = {port["containerPort"] for port in container.get("ports", [])}
        metrics = found.values.get("DYNBRANCH_METRICS_PORT", "0")
        addresses = [("it", str(settings.listen))]
        if metrics != "0":
            addresses.append(
                ("its metrics", f"{found.values.get('DYNBRANCH_METRICS_HOST', '127.0.0.1')}:{metrics}")
            )
        elif any(port.get("name") == "metrics" for port in container.get("ports", [])):
            yield f"{where} its metrics are off"
        for what, address in addresses:
            host, _, port = address.rpartition(":")
            if host in ("127.0.0.1", "localhost", "[::1]"):
                yield f"{where} {what} can not be reached from outside the pod, at {address}"
            if int(port) not in ports:
                yield f"{where} {what} is at port {port}, which the container does not declare"


def termination(objects: Sequence[Manifest]) -> Iterator[str]:
    for pod, container, service, found, _ in starting(objects):
        stop = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        wanted = stop + product.drain_s(service, found.values) + MARGIN_S
        given = pod.spec.get("terminationGracePeriodSeconds", 30)
        if given < wanted:
            yield f"{pod.title}, container {container['name']}: is killed after {given} s, needs {wanted:.0f}"


def storage(objects: Sequence[Manifest]) -> Iterator[str]:
    """Of the store one writer, one volume that outlives the pod, and a directory of its own on it."""
    for pod, container, service, _, settings in starting(objects):
        if service == "controller":
            yield from _keeps_what_it_learned(pod, container, str(settings.learned))
        if service != "csl":
            continue
        spec = pod.owner["spec"]
        if pod.owner["kind"] != "StatefulSet":
            yield f"{pod.title}: two stores may run at once during an update"
        if spec.get("replicas") != 1:
            yield f"{pod.title}: a store has one writer, and this has {spec.get('replicas')} replicas"
        if "Delete" in spec.get("persistentVolumeClaimRetentionPolicy", {}).values():
            yield f"{pod.title}: its volume is deleted with it"
        for claim in _claims(pod).values():
            if claim["accessModes"] != ["ReadWriteOncePod"]:
                yield f"{pod.title}: two pods may mount its volume"
        if pod.spec.get("securityContext", {}).get("fsGroupChangePolicy") != "OnRootMismatch":
            yield f"{pod.title}: its files change owner at each start, as those of a copy do"
        directory = PurePosixPath(str(settings.data_dir))
        if not _is_kept(directory, pod, container):
            yield f"{pod.title}: {directory} is not below a volume that is kept"
    yield from _job_claims(objects)


def _keeps_what_it_learned(pod: Pod, container: Manifest, file: str) -> Iterator[str]:
    if not file:
        yield f"{pod.title}: it begins anew at each start, no file keeps what it has learned"
    elif not _is_kept(PurePosixPath(file), pod, container):
        yield f"{pod.title}: {file} is not below a volume that is kept"


def _claims(pod: Pod) -> dict[str, Manifest]:
    templates = pod.owner["spec"].get("volumeClaimTemplates") or []
    return {one["metadata"]["name"]: one["spec"] for one in templates}


def _is_kept(path: PurePosixPath, pod: Pod, container: Manifest) -> bool:
    kept = _claims(pod)
    mounts = [
        PurePosixPath(mount["mountPath"])
        for mount in container.get("volumeMounts", [])
        if mount["name"] in kept
    ]
    return any(mount in path.parents for mount in mounts)


def _job_claims(objects: Sequence[Manifest]) -> Iterator[str]:
    made = {
        f"{claim['metadata']['name']}-{owner['metadata']['name']}-{number}"
        for owner in of_kind(objects, "StatefulSet")
        for claim in owner["spec"].get("volumeClaimTemplates") or []
        for number in range(owner["spec"]["replicas"])
    }
    for pod in pods(objects):
        for volume in pod.spec.get("volumes", []):
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            if claim is not None and claim not in made:
                yield f"{pod.title}: nothing makes the claim {claim}"
