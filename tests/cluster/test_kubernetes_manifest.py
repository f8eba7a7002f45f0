"""The manifest is one that the operator knows, and its pods do what they should."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import jsonschema
import pytest
import yaml
from distributed import Client

from tests.cluster.conftest import environment

SCRIPT = "kubernetes_manifest"


@pytest.fixture(scope="module")
def schema():
    return json.loads((Path(__file__).parent / "dask_cluster_schema.json").read_text())


def rendered(certificates="certs", **more):
    """The DaskCluster, as it is printed and read again."""
    from kubernetes_manifest import Wanted, as_yaml, manifests

    from slrt_dask.certificates import CertificateDirectory

    wanted = Wanted(
        name="slrt",
        namespace="default",
        image="registry/slrt-dask",
        workers=3,
        threads=2,
        memory=4_000_000_000,
        scheduler_memory=2_000_000_000,
        data="/data",
        certificates=certificates and CertificateDirectory(Path(certificates)),
        **{"claim": None, **more},
    )
    policy, cluster = yaml.safe_load_all(as_yaml(manifests(wanted)))
    assert policy["kind"] == "NetworkPolicy"
    return cluster


def container(cluster, role):
    (found,) = cluster["spec"][role]["spec"]["containers"]
    return found


def variables(found):
    return {entry["name"]: entry.get("value") for entry in found["env"]}


@pytest.mark.parametrize("claim", [None, "data"])
@pytest.mark.parametrize("certificates", [None, "certs"])
def test_the_operator_s_schema_allows_the_manifest(schema, claim, certificates):
    jsonschema.validate(rendered(certificates, claim=claim), schema)


def test_the_schema_refuses_what_the_operator_does_not_know(schema):
    cluster = rendered()
    container(cluster, "worker")["volumeMount"] = []
    with pytest.raises(jsonschema.ValidationError, match="volumeMount"):
        jsonschema.validate(cluster, schema)


def test_each_kind_of_pod_mounts_its_own_secret_and_uses_it():
    cluster = rendered()
    for role in ("scheduler", "worker"):
        volumes = {volume["name"]: volume for volume in cluster["spec"][role]["spec"]["volumes"]}
        assert volumes["tls"]["secret"]["secretName"] == f"slrt-{role}-tls"
        settings = variables(container(cluster, role))
        mounts = container(cluster, role)["volumeMounts"]
        (place,) = [mount["mountPath"] for mount in mounts if mount["name"] == "tls"]
        prefix = f"DASK_DISTRIBUTED__COMM__TLS__{role.upper()}"
        assert settings[f"{prefix}__KEY"] == f"{place}/{role}-key.pem"
        assert settings["DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION"] == "True"
        assert settings["DASK_DISTRIBUTED__SCHEDULER__WORK_STEALING"] == "False"


def test_nothing_is_reachable_from_outside_and_nobody_is_root():
    cluster = rendered()
    assert cluster["spec"]["scheduler"]["service"]["type"] == "ClusterIP"
    for role in ("scheduler", "worker"):
        arguments = container(cluster, role)["args"]
        assert arguments[arguments.index("--host") + 1] == "$(SLRT_POD_ADDRESS)"
        assert arguments[arguments.index("--dashboard-address") + 1].startswith("127.0.0.1:")
        assert cluster["spec"][role]["spec"]["securityContext"]["runAsNonRoot"] is True


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def test_what_the_pods_run_becomes_a_cluster(certificates, tmp_path):
    """The same commands with the same variables, where Kubernetes would put its own values."""
    port = free_port()
    text = json.dumps(rendered(certificates.path))
    for theirs, ours in {
        "/etc/slrt-dask/tls": certificates.path,
        "slrt-scheduler.default.svc": "127.0.0.1",
        "$(SLRT_POD_ADDRESS)": "127.0.0.1",
        "$(DASK_WORKER_NAME)": "slrt-worker-1",
        "/scratch": tmp_path,
        "8786": port,
        "8787": free_port(),
    }.items():
        assert theirs in text
        text = text.replace(theirs, str(ours))
    cluster = json.loads(text)
    with ExitStack() as stack:
        for role in ("scheduler", "worker"):
            found = container(cluster, role)
            settings = {name: value for name, value in variables(found).items() if value}
            process = subprocess.Popen(
                [sys.executable, "-m", *found["args"]], env={**environment(), **settings}
            )
            stack.callback(process.wait, 60)
            stack.callback(process.terminate)
        address = f"tls://127.0.0.1:{port}"
        with Client(address, security=certificates.security(), timeout=30) as client:
            client.wait_for_workers(1, timeout=30)
            (worker,) = client.scheduler_info()["workers"].values()
        assert (worker["name"], worker["nthreads"]) == ("slrt-worker-1", 2)
        probe = container(cluster, "scheduler")["readinessProbe"]["exec"]["command"]
        assert subprocess.run([sys.executable, *probe[1:]], timeout=30).returncode == 0


def test_certificates_reach_kubectl_through_a_pipe_only(
    call_launcher, certificates, program, tmp_path
):
    told = tmp_path / "told"
    folder = program("kubectl", f'echo "$@" > {told}.arguments; cat > {told}\n')
    said = call_launcher(
        SCRIPT, "--image", "i", "--tls", certificates.path, "--apply", programs=[folder]
    )
    assert (said.code, said.out, said.err) == (0, "", "")
    assert Path(f"{told}.arguments").read_text() == "apply -f -\n"
    documents = list(yaml.safe_load_all(told.read_text()))
    assert [each["kind"] for each in documents] == [
        "Secret", "Secret", "NetworkPolicy", "DaskCluster",
    ]  # fmt: skip
    assert set(documents[1]["data"]) == {"ca.pem", "worker.pem", "worker-key.pem"}


def test_what_is_printed_holds_no_key_but_says_how_to_bring_them(call_launcher, certificates):
    said = call_launcher(SCRIPT, "--image", "i", "--tls", certificates.path)
    assert said.code == 0
    assert "Secret" not in {each["kind"] for each in yaml.safe_load_all(said.out)}
    assert "create secret generic slrt-worker-tls" in said.err
    assert f"--from-file={certificates.key('worker')}" in said.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "could run code as you"),
        (["--insecure", "--name", "Big"], "--name must be small letters"),
        (["--insecure", "--workers", "0"], "at least 1"),
        (["--insecure", "--memory", "much"], "invalid"),
    ],
)
def test_what_cannot_be_is_refused(call_launcher, arguments, words):
    said = call_launcher(SCRIPT, "--image", "i", *arguments)
    assert said.code == 2
    assert words in said.err
