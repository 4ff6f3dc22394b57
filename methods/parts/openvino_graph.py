"""The Llama family's decoder as an OpenVINO model with the names that OpenVINO GenAI expects.

The cache is a state of the model and attention one operation, in the form in which the CPU plugin fuses both and GenAI
turns them into paged attention. Touvron et al. 2023 (Llama).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino
from openvino import PartialShape, Type
from openvino import opset13 as ops
from openvino.op.util import Variable, VariableInfo
from torch import Tensor

from specbench.models.fast.compact import CompactModel, Layer

NEVER = -1e30


def build_graph(model: Any, context: int) -> openvino.Model:
    """model: of the Llama family, without windows. context: [tokens] rows of the rotary table.

    input_ids, attention_mask, position_ids (B, T), beam_idx (B,) -> logits (B, T, V). B is 1 where it counts.
    """
    return _Graph(CompactModel(model, context, context, False), model).model


def _floats(values: Any) -> Any:
    return ops.constant(np.ascontiguousarray(values.float().numpy() if isinstance(values, Tensor) else values, "f4"))


def _ints(*values: int) -> Any:
    return ops.constant(np.array(values, "i8"))


def _int(value: int) -> Any:
    return ops.constant(np.int64(value))


class _Graph:
    """The model under construction; ``model`` is the result."""

    def __init__(self, compact: CompactModel, model: Any) -> None:
        self._compact, self._epsilon = compact, model.config.get_text_config().rms_norm_eps
        ids, seen, places = (_input(name, [-1, -1]) for name in ("input_ids", "attention_mask", "position_ids"))
        self._beam = _input("beam_idx", [-1], Type.i32)
        self._writes: list[Any] = []
        self._bias = _causal(ids, seen)
        self._cos, self._sin = (
            ops.unsqueeze(ops.gather(_floats(table), places, _int(0)), _int(1))
            for table in (compact.small.cos, compact.small.sin)
        )
        hidden = ops.gather(_floats(compact.embedding), ids, _int(0))
        for number, layer in enumerate(compact.layers):
            hidden = ops.add(hidden, self._attend(layer, self._norm(hidden, layer.before), number))
            gated = ops.split(self._linear(self._norm(hidden, layer.after), layer.gate_up), _int(-1), 2)
            up = ops.multiply(ops.swish(gated.output(0)), gated.output(1))
            hidden = ops.add(hidden, self._linear(up, layer.down))
        logits = ops.result(self._linear(self._norm(hidden, compact.norm), compact.head))
        logits.output(0).set_names({"logits"})
        self.model = openvino.Model([logits], self._writes, [ids, seen, places, self._beam], "decoder")

    def _norm(self, rows: Any, norm: Any) -> Any:
        mean = ops.reduce_mean(ops.power(rows, _floats(2.0)), _ints(-1), keep_dims=True)
        scale = ops.divide(_floats(1.0), ops.sqrt(ops.add(mean, _floats(self._epsilon))))
        return ops.multiply(ops.multiply(rows, scale), _floats(norm.weight))

    def _linear(self, rows: Any, linear: Any) -> Any:
        product = ops.matmul(rows, _floats(linear.weight), False, True)
        return product if linear.bias is None else ops.add(product, _floats(linear.bias))

    def _attend(self, layer: Layer, rows: Any, number: int) -> Any:
        compact = self._compact
        queries, keys, size = compact.query_heads, compact.key_heads, compact.size
        heads = ops.reshape(self._linear(rows, layer.qkv), _ints(0, 0, queries + 2 * keys, size), True)
        parts = ops.variadic_split(ops.transpose(heads, _ints(0, 2, 1, 3)), _int(1), _ints(queries, keys, keys))
        query, key, value = parts.outputs()
        if layer.heads is not None:
            query, key = self._norm(query, layer.heads[0]), self._norm(key, layer.heads[1])
        cached = [self._cache(self._rotate(key), f"key.{number}"), self._cache(value, f"value.{number}")]
        mixed = ops.scaled_dot_product_attention(self._rotate(query), *cached, self._bias, causal=False)
        joined = ops.reshape(ops.transpose(mixed, _ints(0, 2, 1, 3)), _ints(0, 0, queries * size), True)
        return self._linear(joined, layer.out)

    def _rotate(self, heads: Any) -> Any:
        """The sine has the sign of the half that it is multiplied with."""
        half = self._compact.size // 2
        first, second = ops.variadic_split(heads, _int(-1), _ints(half, half)).outputs()
        turned = ops.concat([second, first], -1)
        return ops.add(ops.multiply(heads, self._cos), ops.multiply(turned, self._sin))

    def _cache(self, fed: Any, name: str) -> Any:
        """The cached rows with the fed rows, for every query head."""
        compact, info = self._compact, VariableInfo()
        info.data_shape, info.data_type = PartialShape([-1, compact.key_heads, -1, compact.size]), Type.f32
        info.variable_id = name
        state = Variable(info)
        batch = ops.gather(ops.shape_of(self._beam), _ints(0), _int(0))
        empty = ops.broadcast(_floats(0.0), ops.concat([batch, _ints(compact.key_heads, 0, compact.size)], 0))
        before = ops.gather(ops.read_value(empty, state), self._beam, _int(0))
        cached = ops.concat([before, fed], 2)
        self._writes.append(ops.assign(cached, state))
        if compact.groups == 1:
            return cached
        grouped = ops.unsqueeze(cached, _int(2))
        shared = ops.broadcast(grouped, _ints(1, 1, compact.groups, 1, 1), broadcast_spec="BIDIRECTIONAL")
        return ops.reshape(shared, _ints(0, compact.query_heads, -1, compact.size), True)


def _input(name: str, shape: list[int], dtype: Any = Type.i64) -> Any:
    found = ops.parameter(PartialShape(shape), dtype, name=name)
    found.output(0).set_names({name})
    return found


def _causal(ids: Any, seen: Any) -> Any:
    """(1, 1, T, cached + T) additive: every row sees the rows up to its own."""
    fed, total = (ops.gather(ops.shape_of(each), _int(1), _int(0)) for each in (ids, seen))
    columns = ops.range(_int(0), total, _int(1), "i64")
    rows = ops.add(ops.range(_int(0), fed, _int(1), "i64"), ops.subtract(total, fed))
    behind = ops.less_equal(ops.unsqueeze(columns, _int(0)), ops.unsqueeze(rows, _int(1)))
    return ops.unsqueeze(ops.select(behind, _floats(0.0), _floats(NEVER)), _ints(0, 1))
