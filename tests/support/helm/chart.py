"""Read the rendered chart as Kubernetes does: its objects, and the environment of each pod."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import yaml

from tests.support.compose import image_environment, of_image
from tests.support.helm.render import NAMESPACE, VALUES, golden

Object = dict[str, Any]


@cache
def objects(name: str) -> tuple[Object, ...]:
    """Return the objects of a set of values."""
    return tuple(one for one in yaml.safe_load_all(golden(name).read_text()) if one is not None)


def of_kind(name: str, kind: str) -> list[Object]:
    """Return the objects of a kind."""
    return [one for one in objects(name) if one["kind"] == kind]


def stateful_set(name: str) -> Object:
    """Return the StatefulSet of the brokers."""
    (found,) = of_kind(name, "StatefulSet")
    return found


def job(name: str, component: str) -> Object:
    """Return a job by its component."""
    (found,) = (one for one in of_kind(name, "Job") if labels(one)["app.kubernetes.io/component"] == component)
    return found


def pod_specs(name: str) -> list[Object]:
    """Return the specification of every pod that the chart leads to."""
    controlled = [one["spec"]["template"]["spec"] for one in objects(name) if one["kind"] in ("StatefulSet", "Job")]
    return controlled + [one["spec"] for one in of_kind(name, "Pod")]


def labels(one: Object) -> dict[str, str]:
    """Return the labels of an object or of a pod's template."""
    found: dict[str, str] = one["metadata"]["labels"]
    return found


def selects(selector: Mapping[str, str], one: Object) -> bool:
    """Return whether a selector by labels selects an object."""
    return selector.items() <= labels(one).items()


def container(specification: Object) -> Object:
    """Return the only container of a pod."""
    found: list[Object] = specification["containers"]
    assert "initContainers" not in specification
    assert len(found) == 1
    return found[0]


def broker_numbers(name: str) -> range:
    """Return the ordinals of the pods of the StatefulSet."""
    specification = stateful_set(name)["spec"]
    first = specification["ordinals"]["start"]
    return range(first, first + specification["replicas"])


def pod(name: str, number: int, *, node: str, zone: str = "") -> Object:
    """Return the pod that Kubernetes makes of the StatefulSet: the zone's label is there if its version writes it."""
    made_of = stateful_set(name)
    pod_name = f"{made_of['metadata']['name']}-{number}"
    template = made_of["spec"]["template"]
    own = {"statefulset.kubernetes.io/pod-name": pod_name, "apps.kubernetes.io/pod-index": str(number)}
    zones = {"topology.kubernetes.io/zone": zone} if zone else {}
    return {
        "metadata": {"name": pod_name, "namespace": NAMESPACE, "labels": labels(template) | own | zones},
        "spec": template["spec"] | {"nodeName": node},
    }


def environment(name: str, one: Object) -> dict[str, str]:
    """Return the variables of a pod's container, with those of the image but PATH."""
    found: dict[str, str] = {}
    for variable in container(one["spec"]).get("env", []):
        assert variable["name"] not in found
        if "value" in variable:
            value = re.sub(r"\$\((\w+)\)", lambda match: found[match[1]], variable["value"])
        elif "fieldRef" in variable["valueFrom"]:
            value = _field(one, variable["valueFrom"]["fieldRef"]["fieldPath"])
        else:
            reference = variable["valueFrom"]["configMapKeyRef"]
            (source,) = (each for each in of_kind(name, "ConfigMap") if each["metadata"]["name"] == reference["name"])
            value = source["data"][reference["key"]]
        assert isinstance(value, str), variable
        found[variable["name"]] = value
    return image_environment() | found


def _field(one: Object, path: str) -> str:
    """Return a field as the downward API does: a label that is not there is empty."""
    if label := re.fullmatch(r"metadata\.labels\['(.+)'\]", path):
        return labels(one).get(label[1], "")
    first, second = path.split(".")
    return str(one[first][second])


def words(one: Object) -> list[str]:
    """Return the command line of a container: `command` replaces the entry point of the image, and `args` its command."""
    return [*one.get("command", of_image("ENTRYPOINT")), *one.get("args", [] if "command" in one else of_image("CMD"))]


def port_number(one: Object, port: str | int) -> int:
    """Return the number of a container's port."""
    return int(port) if isinstance(port, int) else {each["name"]: each["containerPort"] for each in one["ports"]}[port]


NAMES = tuple(VALUES)
