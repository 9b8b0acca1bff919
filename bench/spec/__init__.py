"""What a person asks for: models, methods, datasets, targets and the suite that crosses them.

Pure: no I/O and no torch, so that every command answers fast and a suite can be checked anywhere.
`bench/suite.py` reads the YAML files and builds these types.  See them resolved with:

    bench list suites/quick.yaml --json
"""

from bench.spec.base import DTYPE_BYTES, Dtype, NonNegative, Positive, Slug, Spec
from bench.spec.budget import Budget, Comparison, Constraints, ConvergenceTarget, Strategy, scale
from bench.spec.cell import Cell
from bench.spec.claim import Claim, ClaimFile, Expected, Measure
from bench.spec.dataset import DatasetSpec, Field_, Message, Source, Split, TokenLengths
from bench.spec.endpoint import EndpointSpec, TokenPrice
from bench.spec.method import (
    UNTRAINED,
    WITHOUT_MODEL,
    AdapterSpec,
    MethodSpec,
    Optimizer,
    QuantizationSpec,
)
from bench.spec.model import (
    HubWeights,
    ModelSpec,
    PackageWeights,
    PathWeights,
    RandomWeights,
    TinyWeights,
    Weights,
)
from bench.spec.serving import Serving
from bench.spec.suite import Reference, Rule, Suite, SuiteFile, When
from bench.spec.target import API, Price, TargetSpec

__all__ = [
    "API",
    "DTYPE_BYTES",
    "UNTRAINED",
    "WITHOUT_MODEL",
    "AdapterSpec",
    "Budget",
    "Cell",
    "Claim",
    "ClaimFile",
    "Comparison",
    "Constraints",
    "ConvergenceTarget",
    "DatasetSpec",
    "Dtype",
    "EndpointSpec",
    "Expected",
    "Field_",
    "HubWeights",
    "Measure",
    "Message",
    "MethodSpec",
    "ModelSpec",
    "NonNegative",
    "Optimizer",
    "PackageWeights",
    "PathWeights",
    "Positive",
    "Price",
    "QuantizationSpec",
    "RandomWeights",
    "Reference",
    "Rule",
    "Serving",
    "Slug",
    "Source",
    "Spec",
    "Split",
    "Strategy",
    "Suite",
    "SuiteFile",
    "TargetSpec",
    "TinyWeights",
    "TokenLengths",
    "TokenPrice",
    "Weights",
    "When",
    "scale",
]
