"""What inputs of runs ask of CUDA, as JSON: `python -m tests.models.inputs_path CACHE_DIR`.

Run on the stand-in for CuPy of tests/runtime/fake_cuda.py, in a process of its own.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import numpy as np

from stof_cupy.errors import ArgumentError
from stof_cupy.models.checks import integers
from stof_cupy.runtime.packing import Packed
from tests.runtime import cuda_path, fake_cuda

BAD = {
    "vocabulary": ("int64", 50), "negative": ("int64", -1), "wraps": ("int64", 2**32),
    "int32": ("int32", -1), "int16": ("int16", -3), "int8": ("int8", -128),
    "uint8": ("uint8", 200), "uint64": ("uint64", 2**64 - 1),
}  # fmt: skip


LENGTHS = (40, 0, 8, 19)
PLACES = {"lists there": [True] * 4, "lists here": [False] * 4, "lists of both": [True, False] * 2}
"""Which sequences of a list lie on the GPU."""


def engine_of(config: dict[str, Any], vocabulary: int = 50, **more: Any) -> Any:
    from stof_cupy import TransformerEngine, models

    config = {**config, "vocab_size": vocabulary}
    weights = models.random_weights(config)
    how = {"backend": "cuda", "dtype": "bfloat16", "cuda_graphs": True, **more}
    return TransformerEngine(weights, config=config, **how)


def lists(*there: bool) -> dict[str, Any]:
    """Return what lists of sequences ask for, packed (BERT) and one by one (GPT-2)."""
    import cupy

    told = {}
    for name, config in (("packed", cuda_path.BERT), ("one by one", cuda_path.GPT2)):
        engine, runs = engine_of(config), []
        for _ in range(3):
            x: list[Any] = [np.arange(n) + 10 * i for i, n in enumerate(LENGTHS)]
            x = [cupy.asarray(e) if t else e for e, t in zip(x, there, strict=True)]
            fake_cuda.LOG.clear()
            results = engine.run(x)
            runs.append(list(fake_cuda.LOG))
        told[name] = {
            "runs": runs,
            "shapes": [each.shape for each in results],
            "there": [isinstance(each, cupy.ndarray) for each in results],
            "first": first_columns(engine, x),
        }
    return told


def first_columns(engine: Any, x: list[Any], types: Any = None) -> list[list[int]]:
    """Return what comes out where a hidden state is the token's id: kernels compute nothing."""
    import cupy

    from stof_cupy.runtime import Program

    def hidden(ids: Any) -> Any:
        host = ids if isinstance(ids, np.ndarray) else ids.get()
        return cupy.asarray(np.repeat(host[..., None], 128, axis=-1))

    engine._forward = lambda ids, *_: hidden(ids)
    run = Program._run

    def states(_: Any, inputs: Any, finish: Any, write: Any = None) -> dict[str, Any]:
        if write is not None:
            write(inputs)
        if types is not None:
            assert inputs["token_types"].get()[0, : sum(LENGTHS)].tolist() == [1] * sum(LENGTHS)
        return {"hidden": hidden(inputs["ids"])}

    Program._run = states  # type: ignore[method-assign]
    try:
        results = engine.run(x, token_types=types)
        made = [each if isinstance(each, np.ndarray) else each.get() for each in results]
    finally:
        Program._run = run  # type: ignore[method-assign]
    return [each[:, 0].tolist() for each in made]


KINDS = {
    "int32": ["int32"] * 4, "uint8": ["uint8"] * 4, "widths": ["int64", "int8", "int32", "uint16"],
    "unsigned": ["uint32", "int32", "int64", "uint64"],
}  # fmt: skip
STEPS = {"strided": 2, "backwards": -1}


def kinds() -> dict[str, list[Any]]:
    """Return as `first_columns` what lists of all kinds come to, recorded and not."""
    import cupy

    whole = [np.arange(n) + 10 * i for i, n in enumerate(LENGTHS)]
    cases = {
        name: [cupy.asarray(row.astype(dtype)) for row, dtype in zip(whole, dtypes, strict=True)]
        for name, dtypes in KINDS.items()
    }
    for name, step in STEPS.items():
        wide = [np.repeat(row, abs(step)) if step > 0 else row[::-1].copy() for row in whole]
        cases[name] = [cupy.asarray(row)[::step] for row in wide]
    with cupy.cuda.Device(1):
        cases["another device"] = [cupy.asarray(row) for row in whole]
    found = {}
    for graphs in (True, False):
        engine = engine_of(cuda_path.BERT, 200, cuda_graphs=graphs)
        for _ in range(2):  # what is tuned, and recorded, has its inputs as well
            engine.run(cases["int32"])
        for name, x in cases.items():
            for types in (None, [row * 0 + 1 for row in x]):
                fake_cuda.LOG.clear()
                engine.run(x, token_types=types)
                packings = fake_cuda.LOG.count(("launch", "packing"))
                columns = first_columns(engine, x, types)
                found[f"{name}, {graphs}, {types is None}"] = [packings, columns]
    return found


def errors() -> dict[str, str]:
    """Return what is raised by a run of ids, types or lengths out of range on the GPU."""
    import cupy

    engine, large = engine_of(cuda_path.BERT), engine_of(cuda_path.BERT, 60000)
    good = np.ones((2, 8), np.int64)
    cases: dict[str, tuple[Any, Any, dict[str, Any]]] = {}
    for name, (dtype, value) in BAD.items():
        x = np.ones((2, 8), dtype)
        x[1, 2] = value
        cases[name] = (engine, cupy.asarray(x), {})
        cases[f"{name}, list"] = (engine, [cupy.asarray(row) for row in x], {})
        if value < 0:  # as many bits without a sign would be a token
            cases[f"{name}, large"] = (large, cupy.asarray(x), {})
    x = cupy.asarray(good)
    cases["types"] = (engine, x, {"token_types": cupy.asarray(good * 2)})
    cases["lengths"] = (engine, x, {"lengths": cupy.asarray(np.array([8, 9]))})
    cases["types, list"] = (
        engine,
        [x[0], x[1]],
        {"token_types": [x[0], cupy.asarray(good[0] * 2)]},
    )
    found = {}
    for name, (runs, given, how) in cases.items():
        try:
            runs.run(given, **how)
            found[name] = "nothing"
        except ArgumentError as error:
            found[name] = str(error)
    found["good"] = str(engine.run(x, token_types=x, lengths=cupy.asarray(good[0, :2])).shape)
    return found


def no_input() -> dict[str, list[str]]:
    """Return what three packed runs each say of an array that is no input, here and on the GPU."""
    import cupy

    program = engine_of(cuda_path.BERT)._program.packed()
    ids = np.zeros((1, sum(LENGTHS)), np.int32)
    given = {"ids": ids, "token_types": ids, "mask.0": Packed(LENGTHS), "mask.1": Packed(LENGTHS)}
    told: dict[str, list[str]] = {}
    for place, array in (("here", ids), ("there", cupy.asarray(ids))):
        for _ in range(3):
            try:
                said = str(program.run({**given, "nonsense": array}, lengths=LENGTHS)["hidden"])
            except ArgumentError as error:
                said = str(error)
            told.setdefault(place, []).append(said)
    return told


def captured() -> dict[str, Any]:
    """Return what runs inside the caller's own capture launch, or raise."""
    import cupy

    engine = engine_of(cuda_path.BERT)
    ids, lengths = np.ones((2, 8), np.int64), np.array([8, 3])
    there = cupy.asarray(ids), cupy.asarray(lengths)
    for _ in range(3):
        engine.run(there[0], lengths=there[1])
    told: dict[str, Any] = {}
    cases = {
        "there": (there[0], there[1]),
        "ids here": (ids, there[1]),
        "lengths here": (there[0], lengths),
        "list": ([there[0][0], there[0][1]], None),
    }
    own = cupy.cuda.MemoryPool()
    with cupy.cuda.Stream(non_blocking=True) as stream, cupy.cuda.using_allocator(own.malloc):
        for name, (x, y) in cases.items():
            stream.begin_capture()
            fake_cuda.LOG.clear()
            try:
                told[name] = str(engine.run(x, lengths=y).shape)
            except ArgumentError as error:
                told[name] = str(error)
            told[f"{name}, asked"] = [kind for kind, _ in fake_cuda.LOG]
            stream.end_capture()
        low = cupy.asarray(np.array([[0, 49, 50, -1, 2**32, 2**31 + 1]]))
        stream.begin_capture()
        made = integers(low, "x", ("batch", "seq"), 49, engine._target)
        stream.end_capture()
    return told | {"-1": made.get().tolist(), "dtype": str(made.dtype)}


def found() -> dict[str, Any]:
    from stof_cupy import masks

    window = masks.sliding_window(64, window=8)
    return {
        "bert, ids there": cuda_path.told(cuda_path.BERT, {}),
        **{name: lists(*there) for name, there in PLACES.items()},
        "kinds": kinds(),
        "errors": errors(),
        "no input": no_input(),
        "captured": captured(),
        "gpt2, spec": cuda_path.told(cuda_path.GPT2, {"mask": "sliding:w=8"}),
        "gpt2, mask": cuda_path.told(cuda_path.GPT2, {"mask": window.tobsr()}),
        "gpt2, pattern": cuda_path.told(cuda_path.GPT2, {"mask": window}),
    }


if __name__ == "__main__":
    os.environ["STOF_CACHE_DIR"] = sys.argv[1]
    fake_cuda.install(cuda_path.H100)
    print(json.dumps(found()))
