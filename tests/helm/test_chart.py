"""The rendered chart keeps its promises with every set of values: tests read the golden files as Kubernetes reads them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from raftmq.broker.base.config import BrokerConfig, load_config
from raftmq.cli.main import app
from typer.main import get_command

from scripts.dashboards import dashboards
from tests.support.helm.chart import (
    NAMES,
    Object,
    broker_numbers,
    container,
    environment,
    job,
    labels,
    objects,
    of_kind,
    pod,
    pod_specs,
    port_number,
    selects,
    stateful_set,
    words,
)
from tests.support.helm.render import CHART, NAMESPACE, VALUES, golden

every_set = pytest.mark.parametrize("name", NAMES)
COMMAND = get_command(app)
DEFAULTS: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())


def configured(name: str, number: int, zone: str = "") -> BrokerConfig:
    return load_config(env=environment(name, pod(name, number, node=f"node-{number}", zone=zone))).config


def given(name: str) -> dict[str, Any]:
    own: dict[str, Any] = yaml.safe_load(VALUES[name].read_text())
    return DEFAULTS | own


def probe_port(name: str, probe: str) -> tuple[str, int]:
    broker = container(stateful_set(name)["spec"]["template"]["spec"])
    get = broker[probe]["httpGet"]
    return get["path"], port_number(broker, get["port"])


def test_there_are_at_least_six_sets_each_with_its_golden_file() -> None:
    assert len(NAMES) >= 6
    assert {path.stem for path in golden("any").parent.iterdir()} == set(NAMES)


@every_set
def test_no_two_objects_have_the_same_name(name: str) -> None:
    found = [(one["kind"], one["metadata"]["name"]) for one in objects(name)]
    assert len(set(found)) == len(found)
    assert all(re.fullmatch(r"[a-z][a-z0-9-]{0,62}", each) for _, each in found)


@every_set
def test_every_pod_has_another_broker_id_and_the_settings_are_those_of_the_product(name: str) -> None:
    configs = {number: configured(name, number) for number in broker_numbers(name)}
    assert [config.broker_id for config in configs.values()] == list(range(1, given(name)["replicas"] + 1))
    for config in configs.values():
        assert not config.bootstrap, "no start forms a cluster (ADR 0021)"
        assert config.brokers_expected == given(name)["replicas"]
        assert config.shutdown_seconds == given(name)["shutdownSeconds"]


@every_set
def test_every_broker_joins_all_others_under_the_names_that_dns_gives_them(name: str) -> None:
    service = stateful_set(name)["spec"]["serviceName"]
    domain = f"{service}.{NAMESPACE}.svc.{given(name)['clusterDomain']}"
    names = [f"{stateful_set(name)['metadata']['name']}-{number}.{domain}" for number in broker_numbers(name)]
    for number, own in zip(broker_numbers(name), names, strict=True):
        config = configured(name, number)
        assert config.join == tuple(f"{each}:9401" for each in names)
        assert config.peer_advertise == own


@every_set
def test_clients_are_told_the_name_of_each_pod_inside_or_outside(name: str) -> None:
    for number in broker_numbers(name):
        config = configured(name, number)
        external = given(name)["external"]
        pod_name = f"{stateful_set(name)['metadata']['name']}-{number}"
        wanted = f"{pod_name}.{external['domain']}" if external["enabled"] else config.peer_advertise
        assert config.advertise == wanted


@every_set
def test_hosts_are_nodes_unless_brokers_may_share_one(name: str) -> None:
    hosts = [configured(name, number).host for number in broker_numbers(name)]
    shares = given(name)["antiAffinity"] == "none"
    first = stateful_set(name)["metadata"]["name"] if shares else "node"
    assert hosts == [f"{first}-{number}" for number in broker_numbers(name)]


@every_set
def test_the_rack_is_the_given_one_or_the_zone_that_kubernetes_writes_on_the_pod(name: str) -> None:
    assert configured(name, 1, zone="east").rack == (given(name)["rack"] or "east")
    assert configured(name, 1).rack == given(name)["rack"], "an older Kubernetes writes no zone"


def test_settings_of_the_values_reach_the_brokers() -> None:
    config = configured("tuned", 2)
    assert (config.log_level, config.partitions_max, config.stable_seconds) == ("warning", 2000, 20.5)
    assert (config.recent_entries_bytes_max, config.uncommitted_bytes_max) == (64 << 20, 128 << 20)
    assert configured("zones", 1).cluster_id == given("zones")["clusterId"]


@every_set
def test_the_number_of_brokers_is_not_in_the_template_of_the_pods(name: str) -> None:
    """Otherwise a broker more would restart all others."""
    assert "join" in of_kind(name, "ConfigMap")[0]["data"]
    template = json.dumps(stateful_set(name)["spec"]["template"])
    assert not re.search(r"-\d+\.[\w.-]*:940\d", template)


@every_set
def test_pods_start_together_and_find_each_other_before_they_are_ready(name: str) -> None:
    specification = stateful_set(name)["spec"]
    assert specification["podManagementPolicy"] == "Parallel"
    (headless,) = (one for one in of_kind(name, "Service") if one["metadata"]["name"] == specification["serviceName"])
    assert headless["spec"]["clusterIP"] == "None"
    assert headless["spec"]["publishNotReadyAddresses"] is True


@every_set
def test_every_selector_selects_the_brokers_and_nothing_else(name: str) -> None:
    broker, others = pod(name, 1, node="a"), [one["spec"]["template"] for one in of_kind(name, "Job")]
    others += of_kind(name, "Pod")
    specification = stateful_set(name)["spec"]["template"]["spec"]
    chosen = [one["spec"]["selector"] for one in of_kind(name, "Service")]
    chosen += [
        one["spec"]["selector"]["matchLabels"]
        for kind in ("StatefulSet", "PodDisruptionBudget")
        for one in of_kind(name, kind)
    ]
    chosen += [one["spec"]["podSelector"]["matchLabels"] for one in of_kind(name, "NetworkPolicy")]
    chosen += [one["labelSelector"]["matchLabels"] for one in specification["topologySpreadConstraints"]]
    for terms in specification.get("affinity", {}).get("podAntiAffinity", {}).values():
        chosen += [term.get("podAffinityTerm", term)["labelSelector"]["matchLabels"] for term in terms]
    assert len(chosen) >= 5
    assert not any(selects(selector, other) for selector in chosen for other in others)
    for selector in chosen:
        numbered = selector.get("statefulset.kubernetes.io/pod-name", f"{broker['metadata']['name']}")
        assert selects(selector, pod(name, int(numbered.rpartition("-")[2]), node="a"))


@every_set
def test_every_port_is_one_that_the_broker_listens_on(name: str) -> None:
    broker = container(stateful_set(name)["spec"]["template"]["spec"])
    config = configured(name, 1)
    listens = {
        kind: int(address.rpartition(":")[2])
        for kind, address in (
            ("client", config.listen),
            ("peer", config.peer_listen),
            ("http", config.http_listen),
            ("data", config.data_listen or ""),
        )
    }
    assert {one["name"]: one["containerPort"] for one in broker["ports"]} == listens
    for service in of_kind(name, "Service"):
        for one in service["spec"]["ports"]:
            assert listens[one["targetPort"]] == one["port"], "brokers tell clients the port on which they listen"
    for monitor in of_kind(name, "ServiceMonitor"):
        (endpoint,) = monitor["spec"]["endpoints"]
        assert (endpoint["port"], endpoint["path"]) == ("http", "/metrics")
        matching = [one for one in of_kind(name, "Service") if selects(monitor["spec"]["selector"]["matchLabels"], one)]
        assert [one["metadata"]["name"] for one in matching] == [stateful_set(name)["spec"]["serviceName"]]


@every_set
def test_only_a_hanging_process_is_restarted_and_never_one_that_opens_its_files(name: str) -> None:
    broker = container(stateful_set(name)["spec"]["template"]["spec"])
    assert probe_port(name, "readinessProbe") == ("/readyz", 9402)
    assert probe_port(name, "livenessProbe") == probe_port(name, "startupProbe") == ("/healthz", 9402)
    starting = broker["startupProbe"]
    assert starting["periodSeconds"] * starting["failureThreshold"] >= given(name)["startupSeconds"]
    assert broker["livenessProbe"]["periodSeconds"] * broker["livenessProbe"]["failureThreshold"] >= 60
    assert "initialDelaySeconds" not in json.dumps(broker)


@every_set
def test_a_broker_has_time_to_hand_its_leaderships_over(name: str) -> None:
    specification = stateful_set(name)["spec"]["template"]["spec"]
    assert specification["terminationGracePeriodSeconds"] >= configured(name, 1).shutdown_seconds + 10


@every_set
def test_one_broker_at_a_time_is_stopped(name: str) -> None:
    (budget,) = of_kind(name, "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == 1
    specification = stateful_set(name)["spec"]
    assert specification["updateStrategy"] == {"type": "RollingUpdate"}
    assert specification["minReadySeconds"] == given(name)["minReadySeconds"]


@every_set
def test_brokers_keep_apart_on_nodes_and_in_zones(name: str) -> None:
    specification = stateful_set(name)["spec"]["template"]["spec"]
    rules = specification.get("affinity", {}).get("podAntiAffinity", {})
    kinds = {"required": "requiredDuringSchedulingIgnoredDuringExecution", "none": None}
    kind = kinds.get(given(name)["antiAffinity"], "preferredDuringSchedulingIgnoredDuringExecution")
    assert list(rules) == ([kind] if kind else [])
    (spread,) = specification["topologySpreadConstraints"]
    assert (spread["maxSkew"], spread["topologyKey"]) == (1, "topology.kubernetes.io/zone")


@every_set
def test_every_pod_fulfils_the_restricted_security_standard(name: str) -> None:
    for specification in pod_specs(name):
        context = specification["securityContext"]
        assert (context["runAsNonRoot"], context["runAsUser"], context["fsGroup"]) == (True, 10001, 10001)
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert specification["automountServiceAccountToken"] is False
        assert specification["enableServiceLinks"] is False, "variables of services look like settings of a broker"
        own = container(specification)["securityContext"]
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert (own["allowPrivilegeEscalation"], own["readOnlyRootFilesystem"]) == (False, True)
        assert {"emptyDir"} == {kind for one in specification["volumes"] for kind in one if kind != "name"}


@every_set
def test_every_pod_runs_the_same_image_with_requests_and_a_limit_of_memory(name: str) -> None:
    image = given(name)["image"]
    tag = image.get("tag") or yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    for specification in pod_specs(name):
        one = container(specification)
        assert one["image"] == f"{image['repository']}:{tag}"
        assert set(one["resources"]["requests"]) == {"cpu", "memory"}
        assert set(one["resources"]["limits"]) == {"memory"}
        secrets = [each["name"] for each in specification.get("imagePullSecrets", [])]
        assert secrets == image.get("pullSecrets", [])


@every_set
def test_the_volume_is_where_the_broker_keeps_its_data_and_outlives_fewer_replicas(name: str) -> None:
    specification = stateful_set(name)["spec"]
    (claim,) = specification["volumeClaimTemplates"]
    mounts = {one["name"]: one["mountPath"] for one in container(specification["template"]["spec"])["volumeMounts"]}
    assert mounts == {claim["metadata"]["name"]: str(configured(name, 1).data_dir), "tmp": "/tmp"}
    assert specification["persistentVolumeClaimRetentionPolicy"]["whenScaled"] == "Retain"
    storage = DEFAULTS["storage"] | given(name)["storage"]
    assert claim["spec"]["resources"]["requests"]["storage"] == storage["size"]
    assert claim["spec"].get("storageClassName", "") == storage["className"]


@every_set
def test_commands_are_those_of_the_real_command_and_ask_every_broker(name: str) -> None:
    addresses = [each.replace(":9401", ":9400") for each in configured(name, 1).join]
    for specification in pod_specs(name):
        line = words(container(specification))
        assert line[:2] == ["tini", "--"]
        if line[2] == "raftmq":
            group, command, *options = line[3:]
            known = COMMAND.commands[group].commands[command]  # type: ignore[attr-defined]  # typer's own copy of click
            known.make_context(command, options, resilient_parsing=False)
        if specification is not stateful_set(name)["spec"]["template"]["spec"]:
            variables = {one["name"]: one["value"] for one in container(specification)["env"]}
            assert variables == {"RAFTMQ_BOOTSTRAP_SERVERS": ",".join(addresses)}


@every_set
def test_the_job_that_forms_the_cluster_is_no_hook_and_its_name_follows_its_contents(name: str) -> None:
    init = job(name, "init")
    assert "annotations" not in init["metadata"], "a hook waits for ready pods with --wait, and these wait for the job"
    assert words(container(init["spec"]["template"]["spec"]))[2:5] == ["raftmq", "cluster", "init"]
    assert init["spec"]["template"]["spec"]["restartPolicy"] == "OnFailure"
    same = [
        one for other in NAMES for one in of_kind(other, "Job") if one["metadata"]["name"] == init["metadata"]["name"]
    ]
    assert all(one["spec"] == init["spec"] for one in same)


@every_set
def test_fewer_brokers_are_judged_before_an_upgrade_and_a_rollback(name: str) -> None:
    guard = job(name, "scale-down")
    assert set(guard["metadata"]["annotations"]["helm.sh/hook"].split(",")) == {"pre-upgrade", "pre-rollback"}
    assert guard["spec"]["backoffLimit"] == 0
    *_, program, replicas, next_pod = words(container(guard["spec"]["template"]["spec"]))
    assert program == (CHART / "files/scale_down.py").read_text()
    assert int(replicas) == given(name)["replicas"]
    assert f"{next_pod}:9401" == configured(name, 1).join[-1].replace(f"-{replicas}.", f"-{int(replicas) + 1}.", 1)


def rules_of(name: str) -> dict[str, list[Object]]:
    (policy,) = of_kind(name, "NetworkPolicy")
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    return {port["port"]: rule["from"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}


@pytest.mark.parametrize("name", [name for name in NAMES if name != "tuned"])
def test_only_brokers_reach_the_port_of_brokers_and_nobody_reaches_a_port_without_a_rule(name: str) -> None:
    rules = rules_of(name)
    assert set(rules) == {"peer", "client", "data", "http"}
    assert all(rules.values()), "an empty list permits everybody"
    (peers,) = rules["peer"]
    assert selects(peers["podSelector"]["matchLabels"], pod(name, 1, node="a"))
    jobs = [one["spec"]["template"] for one in of_kind(name, "Job")] + of_kind(name, "Pod")
    for one in jobs:
        assert not selects(peers["podSelector"]["matchLabels"], one)
        assert any(
            selects(each.get("podSelector", {}).get("matchLabels", {"no": "label"}), one) for each in rules["client"]
        )


def test_the_network_policy_permits_the_given_clients() -> None:
    policy = given("closed")["networkPolicy"]
    assert rules_of("closed")["client"][1:] == rules_of("closed")["data"][1:] == policy["clients"]
    assert rules_of("closed")["http"] == policy["metrics"]
    blocks = [each["ipBlock"]["cidr"] for each in rules_of("external")["client"] if "ipBlock" in each]
    assert blocks == given("external")["external"]["sourceRanges"]
    assert of_kind("tuned", "NetworkPolicy") == []


def test_every_broker_has_a_load_balancer_for_clients_and_none_for_brokers() -> None:
    balancers = [one for one in of_kind("external", "Service") if one["spec"].get("type") == "LoadBalancer"]
    names = [one["spec"]["selector"]["statefulset.kubernetes.io/pod-name"] for one in balancers]
    assert names == [f"raftmq-{number}" for number in broker_numbers("external")]
    for one, pod_name, number in zip(balancers, names, broker_numbers("external"), strict=True):
        assert {port["name"] for port in one["spec"]["ports"]} == {"client", "data"}
        assert one["spec"]["loadBalancerSourceRanges"] == given("external")["external"]["sourceRanges"]
        advertised = one["metadata"]["annotations"]["external-dns.alpha.kubernetes.io/hostname"]
        assert advertised == configured("external", number).advertise == f"{pod_name}.queues.example.com"
    assert not any(one["spec"].get("type") for one in of_kind("defaults", "Service"))


def test_the_alert_rules_and_the_dashboards_are_those_of_the_project() -> None:
    (rules,) = of_kind("monitoring", "PrometheusRule")
    alerts = yaml.safe_load((CHART.parents[1] / "examples/monitoring/alerts.yml").read_text())
    for rule in alerts["groups"][0]["rules"]:
        rule["annotations"]["runbook_url"] = f"https://wiki.example.com/raftmq/{rule['annotations']['runbook_url']}"
    assert rules["spec"] == alerts
    (shown,) = (one for one in of_kind("monitoring", "ConfigMap") if labels(one).get("grafana_dashboard") == "1")
    assert shown["data"] == {f"raftmq-{name}": text for name, text in dashboards().items()}
    assert of_kind("defaults", "PrometheusRule") == of_kind("defaults", "ServiceMonitor") == []


def test_prometheus_calls_the_job_as_the_alert_rules_do() -> None:
    (monitor,) = of_kind("monitoring", "ServiceMonitor")
    (endpoint,) = monitor["spec"]["endpoints"]
    assert {"targetLabel": "job", "replacement": "raftmq"} in endpoint["relabelings"]
    assert labels(monitor)["release"] == "prometheus"
