#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""examples/kubernetes/indexed-job.yaml without Kubernetes: whether its parts agree, and what a pod of
it gets.

    kubernetes.py FILE check            says what does not agree, and ends with 1
    kubernetes.py FILE pods             number, name and DNS name of each pod, a line each
    kubernetes.py FILE pod NUMBER       its environment, as lines for a shell, and its command

Ends with 77 where Python has no YAML."""

import json
import re
import shlex
import sys

try:
    import yaml
except ImportError:
    print("there is no module yaml")
    sys.exit(77)

INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def parts(path):
    """By kind; a kind comes once."""
    with open(path) as file:
        found = {each["kind"]: each for each in yaml.safe_load_all(file) if each}
    return found["Service"], found["Job"]


def container_of(job):
    [container] = job["spec"]["template"]["spec"]["containers"]
    return container


def environment(job, number):
    """As kubelet makes it."""
    made = {"JOB_COMPLETION_INDEX": str(number)}
    for each in container_of(job)["env"]:
        if "value" in each:
            made[each["name"]] = each["value"]
        elif each["valueFrom"]["fieldRef"]["fieldPath"] == INDEX:
            made[each["name"]] = str(number)
        else:
            raise ValueError(each)
    return made


def wrong(service, job):
    spec, pod, container = job["spec"], job["spec"]["template"]["spec"], container_of(job)
    name, n = job["metadata"]["name"], spec["completions"]
    env = environment(job, 0)
    address = re.fullmatch(r"tcp:([^:]+):(\d+),ranks=(\d+),secret=(\S+)", env.get("DESCANT_JOB", ""))
    volumes = {each["name"]: each for each in pod["volumes"]}
    mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    script = container["command"][-1]
    checks = [
        ("apiVersion", (service["apiVersion"], job["apiVersion"]) == ("v1", "batch/v1")),
        ("the service is headless", service["spec"]["clusterIP"] == "None"),
        ("the service knows pods before they are ready", service["spec"]["publishNotReadyAddresses"]),
        ("the service selects the job's pods", service["spec"]["selector"] == {"job-name": name}),
        ("the subdomain is the service's name", pod["subdomain"] == service["metadata"]["name"]),
        ("pods have numbers", spec["completionMode"] == "Indexed"),
        ("all pods run at once", spec["parallelism"] == n),
        ("WORLD_SIZE", env.get("WORLD_SIZE") == str(n)),
        ("RANK", all(environment(job, k).get("RANK") == str(k) for k in range(n))),
        ("DESCANT_JOB is an address", address),
        ("pods come back where they were", pod["restartPolicy"] == "OnFailure"),
        ("values are texts", all(isinstance(each.get("value", ""), str) for each in container["env"])),
        ("what is mounted is there", set(mounts.values()) <= set(volumes)),
        ("the command is a shell's", container["command"][:2] == ["sh", "-c"]),
    ]
    if address:
        host, port, ranks, secret = address.groups()
        there = [path for path, volume in mounts.items() if "secret" in volumes[volume]]
        checks += [
            ("the address is that of the pod with the number 0",
             host == f"{name}-0.{pod['subdomain']}"),
            ("the service has the port", int(port) in [each["port"] for each in service["spec"]["ports"]]),
            ("ranks", ranks == str(n)),
            ("the command makes the secret's file", f">{secret}" in script),
            ("the command has the secret from where it is mounted",
             len(there) == 1 and f"cat {there[0]}/secret" in script),
            ("the command waits for the first pod's name", f"getent hosts {host}" in script),
        ]
    return [what for what, good in checks if not good]


def main(path, what, number=None):
    service, job = parts(path)
    if what == "check":
        found = wrong(service, job)
        print("\n".join(f"does not hold: {each}" for each in found) or json.dumps(environment(job, 0)))
        return 1 if found else 0
    if what == "pods":
        for k in range(job["spec"]["completions"]):
            name = f"{job['metadata']['name']}-{k}"
            print(k, name, f"{name}.{job['spec']['template']['spec']['subdomain']}")
    else:
        for name, value in environment(job, int(number)).items():
            print(f"export {name}={shlex.quote(value)}")
        print(shlex.join(["exec", *container_of(job)["command"]]))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
