"""to_onnx: a block of a model → an ONNX graph that any runtime scores.

In: a model and the name of a block. Out: an onnx.ModelProto. Each feature is an input of its own, called as in the
query:

- Numbers are doubles of shape (rows, 1) or, for vectors, (rows, length); NaN where one is missing.
- Dates are days since 1970-01-01.
- Texts are strings of shape (rows, 1). A missing one is empty, or `<missing>` where the empty text is a category.

The output `contribution`, (rows, outputs) in double, is the block's contribution to the score.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from tablepuppet import __version__
from tablepuppet.errors import ModelError
from tablepuppet.prediction.export import block_named, layers_of
from tablepuppet.prediction.model import Model
from tablepuppet.protocol.columns import CategoryEncoder, Encoder, IdEncoder, NumberEncoder

MISSING = "<missing>"  # a text, where the empty one is a category
_OPSETS = {"": 18, "ai.onnx.ml": 3}


def to_onnx(model: Model, block: str | None = None) -> Any:
    try:
        import onnx
    except ImportError:
        raise ModelError('ONNX needs its package: pip install "tablepuppet[onnx]"') from None
    number = block_named(model, block, "ONNX")
    graph = _Graph(onnx)
    encoders = zip(model.blocks[number].features, model.blocks[number].encoders, strict=True)
    value = graph.node("Concat", *(part for name, e in encoders for part in graph.encode(name, e)), axis=1)
    for layer in layers_of(model, number):
        product = graph.node("MatMul", value, graph.constant(layer.weights))
        value = graph.active(graph.node("Add", product, graph.constant(layer.constant)), layer.activation)
    graph.node("Identity", value, out="contribution")
    output = onnx.helper.make_tensor_value_info("contribution", onnx.TensorProto.DOUBLE, ["rows", model.widths[number]])
    name = model.blocks[number].name
    used = {one for node in graph.nodes for one in node.input}  # runtimes warn of constants that no node takes
    constants = [constant for constant in graph.constants if constant.name in used]
    made = onnx.helper.make_model(
        onnx.helper.make_graph(graph.nodes, name, graph.inputs, [output], constants),
        opset_imports=[onnx.helper.make_opsetid(domain, version) for domain, version in _OPSETS.items()],
        producer_name="tablepuppet",
        producer_version=__version__,
        doc_string=f"What {name} adds to the score for {model.label}",
        ir_version=9,
    )
    onnx.checker.check_model(made)
    return made


class _Graph:
    """Nodes, inputs and constants as they are added."""

    def __init__(self, onnx: Any) -> None:
        self._onnx = onnx
        self.nodes: list[Any] = []
        self.inputs: list[Any] = []
        self.constants: list[Any] = []

    def node(self, kind: str, *inputs: str, out: str | None = None, domain: str = "", **attributes: Any) -> str:
        """Adds a node; returns the name of its output."""
        name = out or f"v{len(self.nodes)}"
        self.nodes.append(self._onnx.helper.make_node(kind, list(inputs), [name], domain=domain, **attributes))
        return name

    def constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(self._onnx.numpy_helper.from_array(np.asarray(value), name))
        return name

    def encode(self, name: str, encoder: Encoder) -> Iterator[str]:
        """A feature's input and its encoded columns."""
        described = self._onnx.helper.make_tensor_value_info
        assert not isinstance(encoder, IdEncoder)  # block_named refuses them
        if isinstance(encoder, NumberEncoder):
            self.inputs.append(described(name, self._onnx.TensorProto.DOUBLE, ["rows", encoder.mean.size]))
            return self._numbers(name, encoder)
        self.inputs.append(described(name, self._onnx.TensorProto.STRING, ["rows", 1]))
        return self._texts(name, encoder)

    def _numbers(self, name: str, encoder: NumberEncoder) -> Iterator[str]:
        double = self._onnx.TensorProto.DOUBLE
        marks = self.node("Cast", self.node("IsNaN", name), to=double)
        missing = self.node("ReduceMax", marks, self.constant(np.array([1])), keepdims=1)  # one entry: the whole vector
        is_missing = self.node("Greater", missing, self.constant(np.array(0.5)))
        filled = self.node("Where", is_missing, self.constant(encoder.fill), name)
        slopes = np.divide(1.0, encoder.scale, out=np.zeros_like(encoder.scale), where=encoder.scale > 0)
        yield self.node("Mul", self.node("Sub", filled, self.constant(encoder.mean)), self.constant(slopes))
        if encoder.has_missing:
            yield missing

    def _texts(self, name: str, encoder: CategoryEncoder) -> Iterator[str]:
        known = len(encoder.categories)
        codes = {category: k for k, category in enumerate(encoder.categories)}
        if encoder.has_missing:
            codes["" if "" not in codes else MISSING] = known
        width = known + encoder.has_missing + encoder.has_other
        coded = self.node(
            "LabelEncoder",
            name,
            domain="ai.onnx.ml",
            keys_strings=list(codes),
            values_int64s=list(codes.values()),
            default_int64=width - 1 if encoder.has_other else -1,
        )
        equal = self.node("Equal", coded, self.constant(np.arange(width, dtype=np.int64)))
        yield self.node("Cast", equal, to=self._onnx.TensorProto.DOUBLE)

    def active(self, value: str, activation: str) -> str:
        """An activation written out in operators that runtimes have for doubles."""
        one, two = (self.constant(np.array(x)) for x in (1.0, 2.0))
        if activation in ("sigmoid", "silu"):
            raised = self.node("Add", one, self.node("Exp", self.node("Neg", value)))
            return self.node("Div", one if activation == "sigmoid" else value, raised)
        if activation == "tanh":
            raised = self.node("Add", one, self.node("Exp", self.node("Mul", two, value)))
            return self.node("Sub", one, self.node("Div", two, raised))
        if activation == "elu":
            is_positive = self.node("Greater", value, self.constant(np.array(0.0)))
            return self.node("Where", is_positive, value, self.node("Sub", self.node("Exp", value), one))
        if activation == "gelu":
            float32 = self._onnx.TensorProto.FLOAT  # erf is there for single precision only
            scaled = self.node("Cast", self.node("Mul", value, self.constant(np.array(0.5**0.5))), to=float32)
            error = self.node("Cast", self.node("Erf", scaled), to=self._onnx.TensorProto.DOUBLE)
            return self.node("Mul", self.node("Div", value, two), self.node("Add", one, error))
        return self.node("Relu", value) if activation == "relu" else value
