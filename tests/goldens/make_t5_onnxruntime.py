"""Makes t5_onnxruntime.npz: flan-t5-small's int8 files by onnxruntime, beside t5.npz.

``int8``: the files as they are, which quantise activations too. ``float``: the encoder's file with
each int8 product replaced by one of floats, those that its weights stand for: that is what this
package computes. Needs onnxruntime, and t5.npz::

    PYTHONPATH=. python tests/goldens/make_t5_onnxruntime.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from stof_cupy.models import zoo
from stof_cupy.models.packaged import fetch
from tests.goldens.cases import NEW

HERE = Path(__file__).parent


def session(model: Any) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def floated(path: Path) -> bytes:
    """Return a file whose activations are not quantised: MatMul in place of MatMulInteger."""
    model = onnx.load(str(path))
    graph = model.graph
    arrays = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    makes = {name: node for node in graph.node for name in node.output}
    reads: dict[str, list[Any]] = {}
    for node in graph.node:
        for name in node.input:
            reads.setdefault(name, []).append(node)
    new: dict[int, Any] = {}
    for node in graph.node:
        if node.op_type != "MatMulInteger":
            continue
        # x -> DynamicQuantizeLinear -> MatMulInteger -> Cast -> Mul by the product of both scales
        x, weight, _, zero = node.input
        (cast,) = reads[node.output[0]]
        (scaled,) = reads[cast.output[0]]
        scales = makes[next(name for name in scaled.input if name != cast.output[0])]
        scale = next(name for name in scales.input if name not in makes[x].output)
        floats = arrays[weight].astype(np.float32) - arrays[zero].astype(np.float32)
        name = f"{weight}_float"
        graph.initializer.append(numpy_helper.from_array(floats * arrays[scale], name))
        product = helper.make_node("MatMul", [makes[x].input[0], name], [scaled.output[0]])
        new |= {id(node): None, id(cast): None, id(scaled): product}
    nodes = [new.get(id(node), node) for node in graph.node]
    del graph.node[:]
    graph.node.extend(node for node in nodes if node is not None)
    return model.SerializeToString()


def main() -> None:
    root = fetch(zoo.FLAN_T5_SMALL)
    encoder, decoder = (session(str(root / f"{part}.onnx")) for part in ("encoder", "decoder"))
    exact = session(floated(root / "encoder.onnx"))
    made = {}
    with np.load(HERE / "t5.npz") as golden:
        for i in range(2):
            ids = golden[f"flan/{i}/ids"].astype(np.int64)
            mask = np.ones_like(ids)
            given = {"input_ids": ids, "attention_mask": mask}
            hidden = encoder.run(None, given)[0]
            row = np.zeros((len(ids), 1), np.int64)
            for _ in range(NEW):
                source = {
                    "encoder_hidden_states": hidden,
                    "encoder_attention_mask": np.ones_like(ids),
                }
                logits = decoder.run(None, {"input_ids": row, **source})[0]
                row = np.concatenate([row, logits[:, -1:].argmax(-1)], axis=1)
            made[f"{i}/int8/greedy"] = row[:, 1:].astype(np.int32)
            made[f"{i}/int8/hidden"] = hidden[:, :, ::16]
            made[f"{i}/float/hidden"] = exact.run(None, given)[0][:, :, ::16]
            print(i, row[:, 1:].tolist(), golden[f"flan/{i}/greedy"].tolist())
    np.savez_compressed(HERE / "t5_onnxruntime.npz", **made)


if __name__ == "__main__":
    main()
