"""A dask cluster on Kubernetes, as a manifest for the dask operator.

    python cluster/kubernetes_manifest.py --image REGISTRY/slrt-dask --claim data \\
        --workers 4 --threads 4 --memory 16GB --tls certs --apply

Prints the manifest; with --apply it goes to kubectl instead, and the certificates with it. Without,
standard error tells how to put those there first.
"""

from __future__ import annotations

import argparse
import base64
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from dask.utils import parse_bytes
from network import (
    DASHBOARD_PORT,
    LOOPBACK,
    Network,
    add_certificate_options,
    certificates_of,
    workers_command,
)

from slrt_dask.certificates import CertificateDirectory

PORT = 8786
NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
# Where things are in the pods, and who runs there; the container recipe makes the same user.
CERTIFICATES = "/etc/slrt-dask/tls"
SCRATCH = "/scratch"
USER = 1000
# Kubernetes replaces this by the pod's address in the cluster's network, the only one to listen at.
OWN_ADDRESS = "$(SLRT_POD_ADDRESS)"
# The scheduler's HTTP is on the loopback interface, so the question has to come from inside.
HEALTH = (
    "import urllib.request; "
    f"urllib.request.urlopen('http://{LOOPBACK}:{DASHBOARD_PORT}/health', timeout=5)"
)
Manifest = dict[str, Any]


@dataclass(frozen=True)
class Wanted:
    """What the cluster shall be. Memory is in bytes."""

    name: str
    namespace: str
    image: str
    workers: int
    threads: int
    memory: int
    scheduler_memory: int
    claim: str | None
    data: str
    certificates: CertificateDirectory | None

    @property
    def network(self) -> Network:
        """As it is seen in a pod."""
        mounted = None if self.certificates is None else CertificateDirectory(Path(CERTIFICATES))
        return Network(OWN_ADDRESS, PORT, None, f"{LOOPBACK}:{DASHBOARD_PORT}", mounted)

    @property
    def address(self) -> str:
        return f"{self.network.protocol}://{self.name}-scheduler.{self.namespace}.svc:{PORT}"

    def labels(self, **more: str) -> dict[str, str]:
        """Those that the operator gives to the pods of this cluster."""
        return {"dask.org/cluster-name": self.name, **more}


def main() -> int:
    wanted, apply = _options()
    if not apply:
        print(as_yaml(manifests(wanted)), end="")
        for command in secret_commands(wanted):
            print(f"before this: {command}", file=sys.stderr)
        return 0
    # Through a pipe, keys are in no file, no list of processes and no output.
    everything = as_yaml([*secrets(wanted), *manifests(wanted)])
    return subprocess.run(["kubectl", "apply", "-f", "-"], input=everything.encode()).returncode


def as_yaml(manifests: list[Manifest]) -> str:
    # Repeated in full, not by reference, for people to read.
    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, data: object) -> bool:
            return True

    return str(yaml.dump_all(manifests, Dumper=Plain, sort_keys=False))


def manifests(wanted: Wanted) -> list[Manifest]:
    cluster = {
        "apiVersion": "kubernetes.dask.org/v1",
        "kind": "DaskCluster",
        "metadata": {"name": wanted.name, "namespace": wanted.namespace},
        "spec": {
            "scheduler": {"spec": _scheduler(wanted), "service": _service(wanted)},
            "worker": {"replicas": wanted.workers, "spec": _worker(wanted)},
        },
    }
    return [_network_policy(wanted), cluster]


def secrets(wanted: Wanted) -> list[Manifest]:
    """For each kind of pod its own certificate and key, and no other."""
    return [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "namespace": wanted.namespace},
            "type": "Opaque",
            "data": {file.name: base64.b64encode(file.read_bytes()).decode() for file in files},
        }
        for name, files in _secret_files(wanted).items()
    ]


def secret_commands(wanted: Wanted) -> list[str]:
    """Shell commands that do the same."""
    create = ["kubectl", "--namespace", wanted.namespace, "create", "secret", "generic"]
    return [
        shlex.join([*create, name, *(f"--from-file={file}" for file in files)])
        for name, files in _secret_files(wanted).items()
    ]


def _secret_files(wanted: Wanted) -> dict[str, tuple[Path, ...]]:
    if wanted.certificates is None:
        return {}
    roles = ("scheduler", "worker")
    return {_secret(wanted, role): wanted.certificates.files(role) for role in roles}


def _secret(wanted: Wanted, role: str) -> str:
    return f"{wanted.name}-{role}-tls"


def _scheduler(wanted: Wanted) -> Manifest:
    command = wanted.network.scheduler()
    probe = {"exec": {"command": ["python", "-c", HEALTH]}, "timeoutSeconds": 10}
    container = {
        **_container(wanted, "scheduler", command, memory=wanted.scheduler_memory, cores=1),
        "ports": [{"name": "tcp-comm", "containerPort": PORT, "protocol": "TCP"}],
        "readinessProbe": {**probe, "periodSeconds": 5},
        "livenessProbe": {**probe, "initialDelaySeconds": 60, "periodSeconds": 30},
    }
    return _pod(wanted, "scheduler", container)


def _worker(wanted: Wanted) -> Manifest:
    command = workers_command(
        wanted.address,
        workers=1,
        threads=wanted.threads,
        memory_limit=str(wanted.memory),
        local_directory=SCRATCH,
    )
    # The operator finds a worker again by the name that it gives in this variable.
    command += ["--host", OWN_ADDRESS, "--name", "$(DASK_WORKER_NAME)"]
    container = _container(wanted, "worker", command, memory=wanted.memory, cores=wanted.threads)
    return _pod(wanted, "worker", container)


def _container(
    wanted: Wanted, role: str, command: list[str], *, memory: int, cores: int
) -> Manifest:
    # The operator would fill in the scheduler's address, but without TLS.
    settings = {**wanted.network.settings(role), "DASK_SCHEDULER_ADDRESS": wanted.address}
    own_address = {"fieldRef": {"fieldPath": "status.podIP"}}
    mounts = [{"name": "scratch", "mountPath": SCRATCH}]
    if wanted.certificates is not None:
        mounts.append({"name": "tls", "mountPath": CERTIFICATES})
    if wanted.claim is not None:
        mounts.append({"name": "data", "mountPath": wanted.data})
    return {
        "name": role,
        "image": wanted.image,
        "args": ["dask", *command],
        "env": [
            {"name": "SLRT_POD_ADDRESS", "valueFrom": own_address},
            *({"name": name, "value": value} for name, value in settings.items()),
        ],
        "resources": {
            "requests": {"cpu": str(cores), "memory": str(memory)},
            "limits": {"memory": str(memory)},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
    }


def _pod(wanted: Wanted, role: str, container: Manifest) -> Manifest:
    volumes: list[Manifest] = [{"name": "scratch", "emptyDir": {}}]
    if wanted.certificates is not None:
        # The group may read: the files belong to root, and the pod's user is in the group.
        secret = {"secretName": _secret(wanted, role), "defaultMode": 0o440}
        volumes.append({"name": "tls", "secret": secret})
    if wanted.claim is not None:
        volumes.append({"name": "data", "persistentVolumeClaim": {"claimName": wanted.claim}})
    return {
        # Code that runs in a fit has no business with Kubernetes.
        "automountServiceAccountToken": False,
        # Kubernetes would describe services in variables, which dask might take for settings.
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": volumes,
    }


def _service(wanted: Wanted) -> Manifest:
    """Reachable inside Kubernetes only."""
    return {
        "type": "ClusterIP",
        "selector": wanted.labels(**{"dask.org/component": "scheduler"}),
        "ports": [{"name": "tcp-comm", "protocol": "TCP", "port": PORT, "targetPort": "tcp-comm"}],
    }


def _network_policy(wanted: Wanted) -> Manifest:
    """Pods of this cluster speak with each other; others have no reason to, and no certificate."""
    ours = {"matchLabels": wanted.labels()}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": f"{wanted.name}-only", "namespace": wanted.namespace},
        "spec": {
            "podSelector": ours,
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": ours}]}],
        },
    }


def _options() -> tuple[Wanted, bool]:
    parser = argparse.ArgumentParser(description="A dask cluster for the operator of Kubernetes.")
    parser.add_argument("--name", default="slrt", help="of the cluster (default slrt)")
    parser.add_argument("--namespace", default="default", help="(default: default)")
    parser.add_argument("--image", required=True, help="made with cluster/Containerfile")
    parser.add_argument("--workers", type=int, default=2, help="worker pods (default 2)")
    parser.add_argument("--threads", type=int, default=1, help="of each worker (default 1)")
    parser.add_argument("--memory", type=_bytes, default="4GiB", help="of each worker (4GiB)")
    parser.add_argument("--scheduler-memory", type=_bytes, default="2GiB", help="(2GiB)")
    parser.add_argument("--claim", help="the volume claim with stores and runs")
    parser.add_argument("--data", default="/data", help="where its files are (default /data)")
    parser.add_argument("--apply", action="store_true", help="give it to kubectl")
    add_certificate_options(parser)
    options = vars(parser.parse_args())
    for name in ("name", "namespace"):
        if not NAME.fullmatch(options[name]):
            parser.error(f"--{name} must be small letters, digits and hyphens, at most 40.")
    if min(options["workers"], options["threads"]) < 1:
        parser.error("--workers and --threads must be at least 1.")
    tls, insecure, apply = (options.pop(name) for name in ("tls", "insecure", "apply"))
    certificates = certificates_of(parser, tls, insecure=insecure)
    return Wanted(certificates=certificates, **options), apply


def _bytes(text: str) -> int:
    """argparse tells of the ValueError."""
    return int(parse_bytes(text))


if __name__ == "__main__":
    sys.exit(main())
