"""Run a real control plane of Kubernetes on loopback, without any node, and act as its kubelets where a test needs one.

Its programs are named by environment variables, because no package has them: `docs/internals/testing.md` says how to build them. Every
certificate, key and token is made for one run. Stopping it ends its processes and forgets its data.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import yaml

from tests.support.helm.chart import Object

API_SERVER, ETCD = "KUBE_APISERVER", "ETCD"
CONTROLLER_MANAGER, SCHEDULER = "KUBE_CONTROLLER_MANAGER", "KUBE_SCHEDULER"
DEFINITIONS = "KUBE_CRDS"
"""A directory with the definitions of the Prometheus operator's objects."""
START_SECONDS = 90.0
WAIT_SECONDS = 60.0
_TOKEN = "of-one-run"


class Answer(NamedTuple):
    """An answer of the API server."""

    status: int
    tree: Any
    warnings: tuple[str, ...]


def missing(*variables: str) -> str:
    """Return why a control plane cannot run here. Empty: it can."""
    absent = [name for name in variables if not os.environ.get(name)]
    return f"not given: {', '.join(absent)} (docs/internals/testing.md)" if absent else ""


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def collection(kind: str, api_version: str, namespace: str) -> str:
    """Return the path of all objects of a kind. An empty namespace: those without one."""
    root = f"/api/{api_version}" if "/" not in api_version else f"/apis/{api_version}"
    plural = f"{kind.lower()[:-1]}ies" if kind.endswith("y") else f"{kind.lower()}s"
    return f"{root}/namespaces/{namespace}/{plural}" if namespace else f"{root}/{plural}"


class ControlPlane:
    """An API server with its etcd, and the controllers and the scheduler on request."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []
        self._port = _free_port()
        self._certificate = directory / "certificates" / "apiserver.crt"
        self.kubeconfig = directory / "kubeconfig"

    def start(self, *, has_controllers: bool) -> None:
        """Start it. Without controllers no object leads to others, and pods need no service account."""
        directory, etcd, peers = self._directory, f"http://127.0.0.1:{_free_port()}", f"http://127.0.0.1:{_free_port()}"
        key, tokens = directory / "key.pem", directory / "tokens.csv"
        subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
        tokens.write_text(f'{_TOKEN},admin,admin,"system:masters"\n')
        self._write_kubeconfig()
        self._run(
            *(os.environ[ETCD], "--data-dir", str(directory / "etcd")),
            *("--listen-client-urls", etcd, "--advertise-client-urls", etcd),
            *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers),
            *("--initial-cluster", f"default={peers}"),
        )
        self._run(
            os.environ[API_SERVER],
            *(f"--etcd-servers={etcd}", "--bind-address=127.0.0.1", f"--secure-port={self._port}"),
            *(
                f"--cert-dir={self._certificate.parent}",
                "--endpoint-reconciler-type=none",
                "--service-cluster-ip-range=10.0.0.0/24",
            ),
            *("--service-account-issuer=https://127.0.0.1", f"--service-account-key-file={key}"),
            *(f"--service-account-signing-key-file={key}", f"--token-auth-file={tokens}", "--authorization-mode=RBAC"),
            *([] if has_controllers else ["--disable-admission-plugins=ServiceAccount"]),
        )
        self.wait(self._is_ready, "the API server is ready", START_SECONDS)
        if has_controllers:
            common = (f"--kubeconfig={self.kubeconfig}", "--leader-elect=false", "--secure-port=0")
            # Nodes without kubelets send no heartbeats, and would be tainted for it.
            own = (f"--service-account-private-key-file={key}", "--controllers=*,-node-lifecycle-controller")
            self._run(os.environ[CONTROLLER_MANAGER], *common, *own)
            self._run(os.environ[SCHEDULER], *common)

    def _run(self, *command: str) -> None:
        log = self._directory / f"{Path(command[0]).name}.log"
        with log.open("wb") as file:
            self._processes.append(subprocess.Popen(command, stdout=file, stderr=file))

    def _write_kubeconfig(self) -> None:
        cluster = {"server": f"https://127.0.0.1:{self._port}", "certificate-authority": str(self._certificate)}
        tree = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "own", "cluster": cluster}],
            "users": [{"name": "admin", "user": {"token": _TOKEN}}],
            "contexts": [{"name": "own", "context": {"cluster": "own", "user": "admin"}}],
            "current-context": "own",
        }
        self.kubeconfig.write_text(json.dumps(tree))

    def close(self) -> None:
        """End all processes and remove the data."""
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        shutil.rmtree(self._directory / "etcd", ignore_errors=True)

    def _is_ready(self) -> bool:
        with contextlib.suppress(OSError):
            return self.request("GET", "/readyz").status == 200
        return False

    def request(
        self, method: str, path: str, tree: object = None, content: str = "application/json", **options: str
    ) -> Answer:
        """Send a request and return the answer, refusals too. Raises OSError while there is no server."""
        context = ssl.create_default_context(cafile=self._certificate)  # the server makes it when it starts
        request = urllib.request.Request(
            f"https://127.0.0.1:{self._port}{path}{'?' if options else ''}{urlencode(options)}",
            method=method,
            data=None if tree is None else json.dumps(tree).encode(),
            headers={"Authorization": f"Bearer {_TOKEN}", "Content-Type": content},
        )
        try:
            with urllib.request.urlopen(request, timeout=30, context=context) as answer:
                body, status, headers = answer.read(), answer.status, answer.headers
        except urllib.error.HTTPError as error:
            with error:
                body, status, headers = error.read(), error.code, error.headers
        is_json = (headers.get("Content-Type") or "").startswith("application/json")
        return Answer(status, json.loads(body) if is_json else body.decode(), tuple(headers.get_all("Warning") or ()))

    # -------------------------------------------------------------------------------------------------------- objects

    def apply(self, one: Object, namespace: str = "", **options: str) -> Answer:
        """Apply an object as `kubectl apply --server-side` does. Unknown and repeated fields are refused."""
        path = f"{collection(one['kind'], one['apiVersion'], namespace)}/{one['metadata']['name']}"
        options = {"fieldManager": "test", "fieldValidation": "Strict", "force": "true"} | options
        return self.request("PATCH", path, one, "application/apply-patch+yaml", **options)

    def create_namespace(self, name: str) -> None:
        """Create a namespace that permits only pods of the restricted security standard, and warns of others."""
        standard = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
        made = self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": standard}})
        assert made.status == 201, made

    def create_definitions(self, directory: Path) -> None:
        """Create the kinds of objects that a directory defines, and wait until they can be used."""
        for path in sorted(directory.glob("*.yaml")):
            for one in filter(None, yaml.safe_load_all(path.read_text())):
                made = self.apply(one)
                assert made.status == 201, made
                group, names = one["spec"]["group"], one["spec"]["names"]
                path_of_kind = f"/apis/{group}/v1/{names['plural']}"
                self.wait(partial(self._serves, path_of_kind), path_of_kind)

    def _serves(self, path: str) -> bool:
        return self.request("GET", path).status == 200

    def create_volumes(self, count: int) -> None:
        """Create volumes for any claim."""
        for number in range(1, count + 1):
            specification = {
                "capacity": {"storage": "1Ti"},
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain",
                "hostPath": {"path": f"/nowhere/{number}"},
            }
            metadata = {"name": f"volume-{number}"}
            volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": specification}
            assert self.apply(volume).status == 201

    def create_nodes(self, zones: Sequence[str]) -> None:
        """Create nodes without a kubelet, one in each of these zones."""
        for number, zone in enumerate(zones, 1):
            name = f"node-{number}"
            capacity = {"cpu": "8", "memory": "32Gi", "pods": "50"}
            node: Object = {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {
                    "name": name,
                    "labels": {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone},
                },
            }
            assert self.apply(node).status == 201
            self._set_status("Node", "", name, {"capacity": capacity, "allocatable": capacity, **_ready()})
            self.request("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": []}}, "application/merge-patch+json")

    def get(self, kind: str, api_version: str, namespace: str, name: str) -> Object | None:
        """Return an object, or None."""
        answer = self.request("GET", f"{collection(kind, api_version, namespace)}/{name}")
        return answer.tree if answer.status == 200 else None

    def pods(self, namespace: str, **labels: str) -> dict[str, Object]:
        """Return the pods with these values of the labels `app.kubernetes.io/…`, by name."""
        chosen = ",".join(f"app.kubernetes.io/{key}={value}" for key, value in labels.items())
        answer = self.request("GET", collection("Pod", "v1", namespace), labelSelector=chosen)
        return {one["metadata"]["name"]: one for one in answer.tree["items"]}

    def delete(self, kind: str, api_version: str, namespace: str, name: str, **options: str) -> None:
        """Delete an object."""
        answer = self.request("DELETE", f"{collection(kind, api_version, namespace)}/{name}", **options)
        assert answer.status in (200, 202), answer

    # ------------------------------------------------------------------------------------------------------- kubelets

    def become_ready(self, namespace: str, *names: str, is_ready: bool = True) -> None:
        """Report pods as ready or not, as their kubelets would."""
        for name in names:
            self._set_status("Pod", namespace, name, {"phase": "Running", **_ready(is_ready)})

    def end(self, namespace: str, name: str, *, succeeds: bool) -> None:
        """Report the end of a pod of a job."""
        self._set_status("Pod", namespace, name, {"phase": "Succeeded" if succeeds else "Failed"})

    def stop(self, namespace: str, name: str) -> None:
        """Report that the processes of a pod, which is being deleted, have ended."""
        self.delete("Pod", "v1", namespace, name, gracePeriodSeconds="0")

    def _set_status(self, kind: str, namespace: str, name: str, status: Mapping[str, object]) -> None:
        path = f"{collection(kind, 'v1', namespace)}/{name}/status"
        answer = self.request("PATCH", path, {"status": status}, "application/merge-patch+json")
        assert answer.status == 200, answer

    def wait(self, condition: Callable[[], object], meaning: str, seconds: float = WAIT_SECONDS) -> None:
        """Poll until the condition holds."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"not in time: {meaning}"
            ended = [process.args for process in self._processes if process.poll() is not None]
            assert not ended, f"ended: {ended}; see the logs in {self._directory}"
            time.sleep(0.1)


def _ready(is_ready: bool = True) -> dict[str, object]:
    return {"conditions": [{"type": "Ready", "status": str(is_ready)}]}
