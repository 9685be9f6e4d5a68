"""Requests and their answers, as the OpenAPI document shows them. A test sends each and compares.

They are of a model `score` with four named features and three outputs, y = x·W + b, explained by DeepSHAP.
Its first output decides.
"""

from dataclasses import dataclass
from typing import Any

MODEL = "score"
_DIGEST = "e" * 64
_REFERENCES = "r" * 64
_PROFILE = "f" * 64
_X = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [2.0, 2.0, 2.0, 2.0]}
_INSTANCE = {"income": 2.0, "debt": 2.0, "age_of_account": 2.0, "late_payments": 2.0}
_HEAD = {"model_name": MODEL, "model_version": "1"}
_Y = {"name": "y", "datatype": "FP32", "shape": [1, 3]}


_DECISION = {
    "id": "d" * 32,
    "decision": "decline",
    "score": -4.75,
    "threshold": -5.0,
    "explained_value": -4.75,
    "base_value": -11.125,
    "reasons": [
        {
            "code": "R02",
            "text": "Recent late payments",
            "feature": "late_payments",
            "value": 2.0,
            "attribution": 6.0,
            "share": 12 / 13,
            "features": ["late_payments"],
            "unit": None,
            "category": None,
            "shown": None,
            "tied": False,
            "uncertain": False,
        },
        {
            "code": "R01",
            "text": "Income",
            "feature": "income",
            "value": 2.0,
            "attribution": 0.5,
            "share": 1 / 13,
            "features": ["income"],
            "unit": None,
            "category": None,
            "shown": None,
            "tied": False,
            "uncertain": False,
        },
    ],
    "attributions": {
        "income": 0.5,
        "debt": 0.0,
        "age_of_account": -0.125,
        "late_payments": 6.0,
    },
    "completeness_gap": 0.0,
    "warnings": [],
    "digests": {
        "model": "m" * 64,
        "references": "r" * 64,
        "explainer": _DIGEST,
        "profile": _PROFILE,
    },
}


@dataclass(frozen=True)
class Example:
    """`request` None where the operation takes no body."""

    answer: Any
    request: Any = None


EXAMPLES: dict[str, Example] = {
    "alive": Example({"status": "alive"}),
    "server_live": Example({"live": True}),
    "server_ready": Example({"ready": True}),
    "model_ready": Example({"name": MODEL, "ready": True}),
    "model_metadata": Example(
        {
            "name": MODEL,
            "versions": ["1"],
            "platform": "onnxruntime_onnx",
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
            "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 3]}],
            "devices": ["cpu"],
        }
    ),
    "model_config": Example(
        {
            "name": MODEL,
            "backend": "onnxruntime",
            "max_batch_size": 4,
            "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [4]}],
            "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [3]}],
            "dynamic_batching": {},
        }
    ),
    "infer": Example(
        request={"id": "42", "inputs": [_X]},
        answer={**_HEAD, "id": "42", "outputs": [{**_Y, "data": [-4.75, 2.0, 0.0]}]},
    ),
    "explain": Example(
        request={"inputs": [_X], "outputs": [{"name": "x_attributions"}, {"name": "base_value"}]},
        answer={
            **_HEAD,
            "parameters": {"method": "deepshap", "explanation": _DIGEST},
            "outputs": [
                {
                    "name": "x_attributions",
                    "datatype": "FP32",
                    "shape": [1, 3, 4],
                    "data": [0.5, 0.0, -0.125, 6.0, -1.0, 0.0, 0.0, -2.0, 0.25, 0.0, 2.0, -1.0],
                },
                {"name": "base_value", "datatype": "FP32", "shape": [1, 3], "data": [-11.125, 5.0, -1.25]},
            ],
        },
    ),
    "v1_models": Example({"models": [MODEL], "explainable": [MODEL]}),
    "v1_model": Example(
        {
            "name": MODEL,
            "ready": True,
            "explainable": True,
            "method": "deepshap",
            "targets": [0, 1, 2],
            "features": {"x": list(_INSTANCE)},
        }
    ),
    "v1_features": Example(
        {
            "model": MODEL,
            "explainer": "compiled",
            "method": "deepshap",
            "digest": _DIGEST,
            "explainers": [{"name": "compiled", "method": "deepshap", "digest": _DIGEST, "default": True}],
            "inputs": [
                {
                    "name": "x",
                    "datatype": "FP32",
                    "shape": [4],
                    "explained": True,
                    "features": list(_INSTANCE),
                    "attributions": "x_attributions",
                }
            ],
            "features": [
                {
                    "name": "income",
                    "input": "x",
                    "kind": "number",
                    "missing": False,
                    "integer": False,
                    "whole": True,
                    "least": 1.0,
                    "most": 1.0,
                    "quantiles": [1.0] * 21,
                    "missing_share": 0.0,
                    "begin": 1.0,
                },
                *(
                    {
                        "name": name,
                        "input": "x",
                        "kind": "number",
                        "missing": False,
                        "integer": False,
                        "begin": 0.0,
                    }
                    for name in list(_INSTANCE)[1:]
                ),
            ],
            "groups": [],
            "players": [],
            "layers": [],
            "outputs": [{"name": "y", "datatype": "FP32", "shape": [3]}],
            "probabilities": [],
            "output": "y",
            "output_shape": [3],
            "targets": [0, 1, 2],
            "has_base_value": True,
            "has_gap": True,
            "references": {"rows": 1, "digest": _REFERENCES},
            "request_references": 32,
            "decision": {
                "output": "y",
                "index": 0,
                "threshold": -5.0,
                "adverse": "above",
                "space": "output",
                "decision_only_features": [],
                "comparisons": [],
            },
            "warnings": [],
        }
    ),
    "v1_predict": Example(request={"instances": [_INSTANCE]}, answer={"predictions": [[-4.75, 2.0, 0.0]]}),
    "v1_explain": Example(
        request={"instances": [_INSTANCE]},
        answer={
            "predictions": [[-4.75, 2.0, 0.0]],
            "explainer": {"name": "compiled", "method": "deepshap", "digest": _DIGEST},
            "explanations": [
                {
                    "targets": [
                        {
                            "target": target,
                            "explained_value": explained,
                            "base_value": base,
                            "completeness_gap": 0.0,
                            "attributions": dict(zip(_INSTANCE, attributions, strict=True)),
                        }
                        for target, explained, base, attributions in (
                            (0, -4.75, -11.125, (0.5, 0.0, -0.125, 6.0)),
                            (1, 2.0, 5.0, (-1.0, 0.0, 0.0, -2.0)),
                            (2, 0.0, -1.25, (0.25, 0.0, 2.0, -1.0)),
                        )
                    ]
                }
            ],
        },
    ),
    "v1_decide": Example(request={"instances": [_INSTANCE]}, answer={"decisions": [_DECISION]}),
    "get_decision": Example(
        {
            "time": "2026-11-25T09:12:03.518822+00:00",
            "model": MODEL,
            "version": "1",
            "caller": "",
            "request_id": "application-4711",
            "latency_ms": 3.1,
            "kept": "plain",
            "instance": _INSTANCE,
            "runtime": {
                "graph": "a" * 64,
                "backend": "onnxruntime",
                "version": "1.23.0",
                "devices": ["cpu"],
                "threads": 2,
                "processor": "AMD EPYC",
            },
            "answer": _DECISION,
        }
    ),
    "decision_notice": Example(
        request={
            "template": "adverse-action",
            "variables": {
                "date": "2026-11-25",
                "creditor": {"name": "A Bank", "address": "1 High Street"},
                "applicant": {"name": "Jo Doe", "address": "2 Low Street"},
                "agency": {"name": "An agency", "address": "3 Side Street"},
                "application": "personal loan",
                "consumer_report": False,
            },
        },
        answer={
            "id": "d" * 32,
            "template": "adverse-action",
            "text": "A Bank\n1 High Street\n\n2026-11-25\n\nJo Doe\n…",
            "warnings": [],
        },
    ),
    "replay_decision": Example(
        request={},
        answer={
            "id": "d" * 32,
            "same": True,
            "exact": True,
            "differences": [],
            "elsewhere": [],
            "passed_over": [],
            "entry": f"{MODEL}_explain",
        },
    ),
    "repository_index": Example(
        request={"ready": True}, answer=[{"name": MODEL, "version": "1", "state": "READY", "reason": ""}]
    ),
    "model_statistics": Example(
        {
            "model_stats": [
                {
                    "name": MODEL,
                    "version": "1",
                    "inference_count": 3,
                    "execution_count": 2,
                    "inference_stats": {
                        "success": {"count": 2, "ns": 2_400_000},
                        "fail": {"count": 0, "ns": 0},
                        "compute_input": {"count": 2, "ns": 700_000},
                        "queue": {"count": 2, "ns": 900_000},
                        "compute_infer": {"count": 2, "ns": 300_000},
                        "compute_output": {"count": 2, "ns": 500_000},
                    },
                }
            ]
        }
    ),
}
