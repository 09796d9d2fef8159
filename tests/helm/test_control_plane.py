"""A real API server accepts the rendered chart, and the real controllers and scheduler act on it as it means.

The programs are given by environment variables (`docs/internals/testing.md`). There are no nodes with kubelets: no pod runs, and the tests
report their states.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.helm.chart import NAMES, Object, container, environment, job, objects, stateful_set
from tests.support.helm.control_plane import (
    API_SERVER,
    CONTROLLER_MANAGER,
    DEFINITIONS,
    ETCD,
    SCHEDULER,
    ControlPlane,
    missing,
)
from tests.support.helm.render import CHART, VALUES

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(420)]

ZONES = ("east", "west", "north", "east")


def running(directory: Path, *, has_controllers: bool) -> Iterator[ControlPlane]:
    controllers = (CONTROLLER_MANAGER, SCHEDULER) if has_controllers else ()
    if reason := missing(API_SERVER, ETCD, *controllers):
        pytest.skip(reason)
    plane = ControlPlane(directory)
    try:
        plane.start(has_controllers=has_controllers)
        yield plane
    finally:
        plane.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Yield an API server without controllers."""
    for plane in running(tmp_path_factory.mktemp("server"), has_controllers=False):
        if not missing(DEFINITIONS):
            plane.create_definitions(Path(os.environ[DEFINITIONS]))
        yield plane


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Yield a whole control plane with four nodes in three zones."""
    for plane in running(tmp_path_factory.mktemp("plane"), has_controllers=True):
        plane.create_nodes(ZONES)
        plane.create_volumes(20)
        yield plane


def kept(rendered: Any, stored: Any, path: str = "") -> list[str]:
    """Return the paths at which a stored object differs from the rendered one. A server may only add to it."""
    if isinstance(rendered, dict):
        return [
            found
            for key, value in rendered.items()
            for found in kept(value, stored.get(key) if isinstance(stored, dict) else None, f"{path}.{key}")
            if value is not None
        ]
    if isinstance(rendered, list) and isinstance(stored, list) and len(rendered) <= len(stored):
        pairs = zip(rendered, stored, strict=False)
        return [found for number, (one, other) in enumerate(pairs) for found in kept(one, other, f"{path}[{number}]")]
    is_default = stored is None and not rendered
    return [] if rendered == stored or is_default else [f"{path}: {rendered!r} became {stored!r}"]


@pytest.mark.parametrize("name", NAMES)
def test_a_real_api_server_accepts_and_keeps_every_field(server: ControlPlane, name: str) -> None:
    if name == "monitoring" and (reason := missing(DEFINITIONS)):
        pytest.skip(reason)
    namespace = f"set-{name}"
    server.create_namespace(namespace)
    for one in objects(name):
        made = server.apply(one, namespace)
        assert (made.status, made.warnings) == (201, ()), made
        assert kept(one, made.tree) == []
        again = server.apply(one, namespace)
        assert again.status == 200
        assert again.tree["metadata"]["resourceVersion"] == made.tree["metadata"]["resourceVersion"], one["kind"]


def test_the_server_is_strict(server: ControlPlane) -> None:
    """Otherwise the test above would show nothing."""
    server.create_namespace("strict")
    one = stateful_set("defaults")
    wrong = one | {"spec": one["spec"] | {"podManagmentPolicy": "Parallel"}}
    assert server.apply(wrong, "strict").status >= 400
    (pod,) = (each for each in objects("defaults") if each["kind"] == "Pod")
    loose = pod | {"spec": pod["spec"] | {"hostNetwork": True}}
    assert server.apply(loose, "strict").status == 403


def test_a_release_can_be_changed_to_other_values(server: ControlPlane) -> None:
    server.create_namespace("changes")
    for name in ("defaults", "grown", "external", "closed", "defaults"):
        for one in objects(name):
            if one["kind"] != "Pod" and one is not job(name, "scale-down"):  # hooks are deleted before they are created
                changed = server.apply(one, "changes")
                assert changed.status in (200, 201), changed
        assert not changed.warnings


def test_the_controllers_and_the_scheduler_act_as_the_chart_means(plane: ControlPlane) -> None:
    space = "whole"
    plane.create_namespace(space)
    hooks = [one for one in objects("defaults") if "annotations" in one["metadata"]]
    for one in objects("defaults"):
        if one not in hooks:
            assert plane.apply(one, space).status == 201
    brokers = ("raftmq-1", "raftmq-2", "raftmq-3")

    def placed() -> dict[str, str]:
        pods = plane.pods(space, component="broker")
        return {name: one["spec"]["nodeName"] for name, one in pods.items() if "nodeName" in one["spec"]}

    plane.wait(lambda: tuple(sorted(placed())) == brokers, "the pods are on nodes")
    zone_of = {f"node-{number}": zone for number, zone in enumerate(ZONES, 1)}
    assert len(set(placed().values())) == 3, "each on a node of its own"
    assert {zone_of[node] for node in placed().values()} == set(ZONES), "and in each zone"
    for number, (name, one) in enumerate(sorted(plane.pods(space, component="broker").items()), 1):
        variables = environment("defaults", one)
        assert variables["RAFTMQ_BROKER_ID"] == str(number)
        assert variables["RAFTMQ_HOST"] == placed()[name]
        assert variables["RAFTMQ_RACK"] == zone_of[placed()[name]], "Kubernetes writes the zone of the node on the pod"
        claim = plane.get("PersistentVolumeClaim", "v1", space, f"data-{name}")
        assert claim is not None
        assert claim["status"]["phase"] == "Bound"
    plane.wait(lambda: plane.pods(space, component="init"), "the job that forms the cluster has a pod")
    (init,) = plane.pods(space, component="init")
    plane.end(space, init, succeeds=True)
    plane.wait(lambda: condition_of(plane, space, job("defaults", "init")) == "Complete", "the job is complete")

    plane.become_ready(space, *brokers)
    plane.wait(lambda: allowed_disruptions(plane, space) == 1, "one broker may be stopped")
    plane.become_ready(space, "raftmq-1", is_ready=False)
    plane.wait(lambda: allowed_disruptions(plane, space) == 0, "another one may not")
    assert evict(plane, space, "raftmq-2") == 429
    plane.become_ready(space, "raftmq-1")
    plane.wait(lambda: allowed_disruptions(plane, space) == 1, "one broker may be stopped again")
    assert evict(plane, space, "raftmq-2") == 201
    assert evict(plane, space, "raftmq-3") == 429
    plane.stop(space, "raftmq-2")
    plane.wait(lambda: tuple(sorted(placed())) == brokers, "the evicted pod is replaced")
    plane.become_ready(space, *brokers)

    scale(plane, space, 4)
    plane.wait(lambda: "raftmq-4" in placed(), "the fourth pod is on the fourth node")
    assert len(set(placed().values())) == 4
    scale(plane, space, 3)
    plane.wait(lambda: is_leaving(plane, space, "raftmq-4"), "the last pod leaves")
    plane.stop(space, "raftmq-4")
    assert tuple(sorted(placed())) == brokers
    assert plane.get("PersistentVolumeClaim", "v1", space, "data-raftmq-4") is not None, "its data are kept"

    plane.delete("StatefulSet", "apps/v1", space, "raftmq")
    for name in brokers:
        plane.wait(partial(is_leaving, plane, space, name), f"{name} leaves")
        plane.stop(space, name)
    assert plane.get("PersistentVolumeClaim", "v1", space, "data-raftmq-1") is not None


def test_a_new_version_restarts_one_broker_after_the_other(plane: ControlPlane) -> None:
    space = "rolling"
    plane.create_namespace(space)
    old = stateful_set("trial") | {"spec": stateful_set("trial")["spec"] | {"replicas": 3}}
    assert plane.apply(old, space).status == 201
    names = [f"raftmq-{number}" for number in (3, 2, 1)]
    plane.wait(lambda: len(plane.pods(space)) == 3, "the pods exist")
    plane.become_ready(space, *names)
    template = old["spec"]["template"]
    broker = container(template["spec"]) | {"image": "raftmq:later"}
    new = template | {"spec": template["spec"] | {"containers": [broker]}}
    assert plane.apply(old | {"spec": old["spec"] | {"template": new}}, space).status == 200
    for name in names:
        plane.wait(partial(is_leaving_or_new, plane, space, name), f"{name} restarts")
        others = [each for each in names if each != name]
        assert not any(is_leaving(plane, space, each) for each in others), "one at a time"
        if is_leaving(plane, space, name):
            plane.stop(space, name)
        plane.wait(partial(is_new, plane, space, name), f"{name} is new")
        plane.become_ready(space, name)


def test_helm_refuses_fewer_brokers_when_the_hook_fails(plane: ControlPlane, tmp_path: Path) -> None:
    if shutil.which("helm") is None:
        pytest.skip("helm is not installed")
    space = "released"
    plane.create_namespace(space)

    def helm(*words: str) -> subprocess.Popen[str]:
        command = ["helm", *words, "--namespace", space, "--kubeconfig", str(plane.kubeconfig)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def replicas() -> Any:
        found = plane.get("StatefulSet", "apps/v1", space, "raftmq")
        return found and found["spec"]["replicas"]

    def waiting_hook() -> str:
        pods = plane.pods(space, component="scale-down")
        return next((name for name, one in pods.items() if one["status"]["phase"] == "Pending"), "")

    def upgrade(wanted: int, *, hook_succeeds: bool) -> tuple[int, str]:
        """Upgrade the release, and end its hook as given."""
        before = replicas()
        with helm("upgrade", "raftmq", str(CHART), "--set", f"replicas={wanted}", "--timeout", "60s") as process:
            plane.wait(waiting_hook, "the hook has a pod")
            assert replicas() == before, "the hook comes first"
            plane.end(space, waiting_hook(), succeeds=hook_succeeds)
            output, _ = process.communicate(timeout=90)
        return process.returncode, output

    with helm("install", "raftmq", str(CHART), "--values", str(VALUES["defaults"])) as process:
        output, _ = process.communicate(timeout=90)
    assert process.returncode == 0, output
    plane.wait(lambda: len(plane.pods(space, component="broker")) == 3, "the pods exist")
    assert plane.get("Job", "batch/v1", space, "raftmq-scale-down") is None, "an installation has nothing to refuse"

    code, output = upgrade(4, hook_succeeds=True)
    assert code == 0, output
    assert replicas() == 4
    assert plane.get("Job", "batch/v1", space, "raftmq-scale-down") is None, "a hook that succeeded is deleted"
    code, output = upgrade(3, hook_succeeds=False)
    assert code != 0, output
    assert replicas() == 4, "nothing was changed"
    code, output = upgrade(3, hook_succeeds=True)
    assert code == 0, output
    assert replicas() == 3

    with helm("uninstall", "raftmq") as process:
        output, _ = process.communicate(timeout=90)
    assert process.returncode == 0, output
    plane.wait(lambda: replicas() is None, "the brokers are gone")
    assert plane.get("PersistentVolumeClaim", "v1", space, "data-raftmq-1") is not None, "their data are kept"


def condition_of(plane: ControlPlane, namespace: str, one: Object) -> str:
    found = plane.get("Job", "batch/v1", namespace, one["metadata"]["name"])
    conditions = [] if found is None else found["status"].get("conditions", [])
    return next((each["type"] for each in conditions if each["type"] in ("Complete", "Failed")), "")


def allowed_disruptions(plane: ControlPlane, namespace: str) -> int:
    found = plane.get("PodDisruptionBudget", "policy/v1", namespace, "raftmq")
    assert found is not None
    return int(found["status"].get("disruptionsAllowed", -1))


def evict(plane: ControlPlane, namespace: str, pod: str) -> int:
    order = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": namespace}}
    return plane.request("POST", f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction", order).status


def scale(plane: ControlPlane, namespace: str, replicas: int) -> None:
    path = f"/apis/apps/v1/namespaces/{namespace}/statefulsets/raftmq"
    done = plane.request("PATCH", path, {"spec": {"replicas": replicas}}, "application/merge-patch+json")
    assert done.status == 200, done


def is_leaving(plane: ControlPlane, namespace: str, name: str) -> bool:
    found = plane.get("Pod", "v1", namespace, name)
    return found is not None and "deletionTimestamp" in found["metadata"]


def is_new(plane: ControlPlane, namespace: str, name: str) -> bool:
    found = plane.get("Pod", "v1", namespace, name)
    return (
        found is not None
        and container(found["spec"])["image"] == "raftmq:later"
        and not is_leaving(plane, namespace, name)
    )


def is_leaving_or_new(plane: ControlPlane, namespace: str, name: str) -> bool:
    return is_leaving(plane, namespace, name) or is_new(plane, namespace, name)
