"""Check the manifest against the dask operator's own schema, and keep the part that it uses.

    python tests/cluster/reduce_schema.py CRD VERSION > tests/cluster/dask_cluster_schema.json

CRD is daskcluster.yaml of the operator's helm chart, which the Python package dask-kubernetes, of
this VERSION, has in dask_kubernetes/operator/deployment/helm/dask-kubernetes-operator/crds. That
package brings fifty others along and the schema has thousands of lines, so tests use what this
makes of it: the same, without the fields that the manifest does not have. A field that is new in
the manifest, or misspelt, is not in there, and makes the test fail until this has found it in the
operator's schema.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import yaml

Schema = dict[str, Any]
KEPT = ("type", "enum", "format", "required", "minimum", "maximum", "x-kubernetes-int-or-string")


def reduced(schema: Schema, examples: list[Any]) -> Schema:
    """The schema of what the examples contain; everything else in them is refused."""
    kept: Schema = {key: schema[key] for key in KEPT if key in schema}
    mappings = [example for example in examples if isinstance(example, dict)]
    if "properties" in schema and mappings:
        used = {key for example in mappings for key in example}
        kept["properties"] = {
            key: reduced(value, [example[key] for example in mappings if key in example])
            for key, value in sorted(schema["properties"].items())
            if key in used
        }
        kept["additionalProperties"] = False
    elif "additionalProperties" in schema:
        kept["additionalProperties"] = schema["additionalProperties"]
    if "items" in schema:
        kept["items"] = reduced(schema["items"], [item for each in examples for item in each])
    if kept.pop("x-kubernetes-int-or-string", False):
        kept["type"] = ["integer", "string"]
    return kept


def cluster_schema(definition: Schema) -> Schema:
    """The schema inside a CustomResourceDefinition; what every object has is not repeated there."""
    (version,) = definition["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    text = {"type": "string"}
    general = {
        "apiVersion": {"enum": [f"{definition['spec']['group']}/{version['name']}"]},
        "kind": {"enum": [definition["spec"]["names"]["kind"]]},
        "metadata": {"type": "object", "properties": {"name": text, "namespace": text}},
    }
    return {**schema, "properties": {**schema["properties"], **general}}


def main() -> None:
    from tests.cluster.test_kubernetes_manifest import rendered

    path, version = sys.argv[1:]
    definition = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    examples = [rendered(), rendered(claim="data")]
    schema = reduced(cluster_schema(definition), examples)
    for example in examples:
        jsonschema.validate(example, schema)
    origin = f"made by reduce_schema.py from daskcluster.yaml of dask-kubernetes {version}"
    print(json.dumps({"$comment": origin, **schema}, indent=1))


if __name__ == "__main__":
    main()
