"""What a run does with its inputs: masks are made once, and what is asked of CUDA on their behalf.

For the latter, kernels compute nothing: see tests/runtime/fake_cuda.py.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stof_cupy import masks, models
from stof_cupy.errors import ArgumentError
from stof_cupy.models import checks, inputs
from stof_cupy.models.lists import can_be_packed
from stof_cupy.models.target import Target
from tests.goldens.cases import DECODERS, GEMMA3, GPT2, SPARSE
from tests.models.inputs_path import BAD, KINDS, LENGTHS, PLACES, STEPS
from tests.runtime.cuda_path import BERT, T5, VIT

TARGET = Target.choose("numpy")
SHAPE = (1, 4, 70, 70)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the log of `inputs_path`, which is a process of its own."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.models.inputs_path", str(tmp_path_factory.mktemp("cache"))],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def kinds(run: list[list[str]]) -> list[str]:
    return [kind for kind, _ in run]


@pytest.mark.parametrize("case", ["gpt2, spec", "gpt2, mask", "gpt2, pattern"])
def test_a_decoder_with_a_mask_is_recorded(told: dict[str, Any], case: str) -> None:
    assert not told[case]["warnings"]
    third = kinds(told[case]["runs"][2])
    assert third.count("graph") == 1
    assert not {"launch", "upload", "malloc", "sync"} & {*third}


def test_a_run_inside_the_callers_own_graph(told: dict[str, Any]) -> None:
    found = told["captured"]
    assert found["there"] == "(2, 8, 128)"
    asked = {*found["there, asked"]}
    assert "launch" in asked and not {"sync", "await", "async", "upload", "graph"} & asked
    assert found["ids here"].startswith("x: got an array on the host, expected one on the GPU")
    assert found["lengths here"].startswith("lengths: got an array on the host, expected one")
    assert found["list"].startswith("x: got a list of sequences, expected one array while a CUDA")
    for name in ("ids here", "list"):
        assert "launch" not in found[f"{name}, asked"]
    assert found["-1"] == [[0, 49, -1, -1, -1, -1]] and found["dtype"] == "int32"


def test_ids_on_the_gpu_are_looked_at_once(told: dict[str, Any]) -> None:
    third = kinds(told["bert, ids there"]["runs"][2])
    assert third.count("async") == third.count("await") == third.count("graph") == 1
    assert third.index("async") < third.index("graph") < third.index("await")
    assert not {"download", "sync"} & {*third}


def test_ids_are_cast_once(told: dict[str, Any]) -> None:
    """From int64 to int32 before the run, which reads them as they are."""
    first, _, third = told["bert, ids there"]["runs"]
    assert [run.count(["cupy", "astype"]) for run in (first, third)] == [1, 1]


def test_ids_of_a_list_are_looked_at_after_the_launch(told: dict[str, Any]) -> None:
    found = told["lists there"]["packed"]
    third = kinds(found["runs"][2])
    assert third.count("async") == third.count("await") == third.count("graph") == 1
    assert third.index("graph") < third.index("async") < third.index("await")
    assert not {"download", "sync"} & {*third}


def test_ids_of_the_host_are_looked_at_there(told: dict[str, Any]) -> None:
    for case in told["lists here"].values():
        third = kinds(case["runs"][2])
        assert "await" not in third and "async" not in third
        last = len(third) - third[::-1].index("graph")
        assert "download" not in third[:last]


@pytest.mark.parametrize("place", PLACES)
def test_results_of_a_list(told: dict[str, Any], place: str) -> None:
    for case in told[place].values():
        assert case["shapes"] == [[n, 128] for n in LENGTHS]
        assert case["first"] == [[10 * i + j for j in range(n)] for i, n in enumerate(LENGTHS)]
        # An empty one has no place: it goes where the first of the others does.
        there = [
            place != "lists here" if n == 0 else t
            for n, t in zip(LENGTHS, PLACES[place], strict=True)
        ]
        assert case["there"] == there


def test_lists_of_every_kind_are_put_together(told: dict[str, Any]) -> None:
    found = told["kinds"]
    assert len(found) == 4 * (len(KINDS) + len(STEPS) + 1)
    for name, (packings, columns) in found.items():
        assert columns == [[10 * i + j for j in range(n)] for i, n in enumerate(LENGTHS)], name
        assert packings == (", True, " in name), name


def test_results_for_the_host_are_copied_as_one(told: dict[str, Any]) -> None:
    cases = [*told["lists here"].values(), told["lists of both"]["packed"]]
    assert [kinds(case["runs"][2]).count("download") for case in cases] == [1, 1, 1]


@pytest.mark.parametrize("name", BAD)
def test_numbers_out_of_range_on_the_gpu(told: dict[str, Any], name: str) -> None:
    value = BAD[name][1]
    found = told["errors"]
    assert found[name] == f"x[1, 2]: got {value}, expected an integer from 0 to 49"
    assert found[f"{name}, list"] == f"x[1][0, 2]: got {value}, expected an integer from 0 to 49"
    if value < 0:
        large = f"x[1, 2]: got {value}, expected an integer from 0 to 59999"
        assert found[f"{name}, large"] == large


def test_types_and_lengths_out_of_range_on_the_gpu(told: dict[str, Any]) -> None:
    found = told["errors"]
    assert found["types"] == "token_types[0, 0]: got 2, expected an integer from 0 to 1"
    assert found["types, list"] == "token_types[1][0, 0]: got 2, expected an integer from 0 to 1"
    assert found["lengths"] == "lengths[1]: got 9, expected an integer from 0 to 8"
    assert found["good"] == "(2, 8, 128)"


def test_checks_are_waited_for_where_something_else_is_raised() -> None:
    waited = []
    with pytest.raises(KeyError), checks.checked() as later:
        later.append(lambda: waited.append(1))
        raise KeyError
    assert waited == [1]


def test_checks_are_waited_for_where_one_of_them_raises() -> None:
    """What a check looks at, and where its number goes, is somebody else's after that."""
    waited = []

    def bad(name: str) -> None:
        waited.append(name)
        raise ArgumentError(name)

    with pytest.raises(ArgumentError, match=r"^x$"), checks.checked() as later:
        later += [lambda: bad("x"), lambda: waited.append("lengths"), lambda: bad("token_types")]
    assert sorted(waited) == ["lengths", "token_types", "x"]


@pytest.mark.parametrize("place", ["here", "there"])
def test_a_packed_run_says_what_is_no_input_of_it(told: dict[str, Any], place: str) -> None:
    for said in told["no input"][place]:
        assert said.startswith("input: got 'nonsense', expected ids, ")


@pytest.mark.parametrize("dtype", ["int8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_integers_of_every_type(dtype: str) -> None:
    x = np.arange(12, dtype=dtype).reshape(3, 4)[:, ::2]
    made = checks.integers(x, "x", ("batch", "seq"), 10, TARGET)
    assert made.dtype == np.int32 and made.flags.c_contiguous and made.tolist() == x.tolist()
    with pytest.raises(ArgumentError, match=r"x\[2, 1\]: got 10"):
        checks.integers(x, "x", ("batch", "seq"), 9, TARGET)


def masks_of(config: dict[str, Any], mask: Any, **how: Any) -> dict[str, Any]:
    model = models.build(config, models.random_weights(config))
    return inputs.masks_of(model, TARGET, mask, how or None, SHAPE)


@pytest.mark.parametrize("config", [GPT2, GEMMA3], ids=["gpt2", "gemma3"])
def test_the_same_masks_are_the_same_objects(config: dict[str, Any]) -> None:
    pattern = masks.sliding_window(70, window=9)
    for mask in ("sliding:w=9", pattern, pattern.tobsr(), masks.stack([pattern.tobsr()] * 4)):
        first, second = masks_of(config, mask), masks_of(config, mask)
        assert first.keys() == second.keys() and len(first) > 1
        assert all(first[name] is second[name] for name in first)
        dense = np.tri(70, dtype=bool) & pattern.toarray()
        assert any(np.array_equal(each.toarray(), dense) for each in first.values())


def test_layers_without_masks_of_their_own_are_given_that_of_the_call() -> None:
    window, other = (masks.sliding_window(70, window=w).tobsr() for w in (9, 3))
    assert masks_of(BERT, window) == {"mask.0": window, "mask.1": window}
    assert masks_of(BERT, None) == {"mask.0": None, "mask.1": None}
    model = models.build(BERT, models.random_weights(BERT))
    for layer in (0, 1):
        found = inputs.masks_of(model, TARGET, None, {layer: other}, SHAPE)
        assert found == {"mask.0": None, "mask.1": None, f"mask.{layer}": other}
        found = inputs.masks_of(model, TARGET, window, {layer: other}, SHAPE)
        assert found[f"mask.{1 - layer}"] is window
        again = inputs.masks_of(model, TARGET, window, {layer: other}, SHAPE)
        assert again[f"mask.{layer}"] is found[f"mask.{layer}"]
        both = window.toarray() & other.toarray()
        assert np.array_equal(found[f"mask.{layer}"].toarray(), both)


def test_encoders_without_masks_of_their_own_are_packed() -> None:
    every = {**DECODERS, **SPARSE, "bert": BERT, "t5": T5, "vit": VIT}
    packed = {
        name
        for name, config in every.items()
        if can_be_packed(models.build(config, models.random_weights(config)))
    }
    assert packed == {"bert"}


def test_other_masks_are_other_objects() -> None:
    one, other = (masks.sliding_window(70, window=w).tobsr() for w in (9, 10))
    first, second = masks_of(GPT2, one)["mask.0"], masks_of(GPT2, other)["mask.0"]
    assert second.nnz > first.nnz


def test_what_is_made_goes_with_its_operands() -> None:
    gc.collect()
    before = len(inputs._made)
    mask = masks.sliding_window(70, window=9).tobsr()
    made = weakref.ref(masks_of(GPT2, mask)["mask.0"])
    gc.collect()
    assert made() is not None
    del mask
    gc.collect()
    assert made() is None and len(inputs._made) == before
    # Arrays are lowered anew in each run, and nothing is left of them.
    masks_of(GPT2, np.eye(70, dtype=bool))
    gc.collect()
    assert len(inputs._made) == before


def test_few_are_kept() -> None:
    held = [masks.sliding_window(70, window=9).tobsr() for _ in range(inputs._KEPT + 5)]
    made = [masks_of(GPT2, each)["mask.0"] for each in held]
    assert len(inputs._made) == inputs._KEPT
    assert masks_of(GPT2, held[-1])["mask.0"] is made[-1]
    assert masks_of(GPT2, held[0])["mask.0"] is not made[0]


def test_threads_are_given_one_object() -> None:
    base, mask = (masks.sliding_window(70, window=w).tobsr() for w in (9, 10))
    ready, found = threading.Barrier(8), []

    def work() -> None:
        ready.wait()
        for _ in range(50):
            found.append(inputs.both(base, mask))
            inputs.both(base, masks.sliding_window(70, window=8).tobsr())

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 400 and all(each is found[0] for each in found)
