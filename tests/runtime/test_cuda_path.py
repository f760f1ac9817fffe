"""What a run asks of CUDA, found out without a GPU: one graph, no waiting, nothing uploaded late.

Kernels compute nothing here; that they are right is for other tests.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.cuda_path import LENGTHS

ENGINES = [
    "bert", "bert, lengths", "bert, longformer", "bert, layers", "bert, both", "gpt2", "llama",
    "llama, neighbours", "vit", "t5",
]  # fmt: skip
BLOCKS = ["block", "block, causal"]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the log of `cuda_path`, which is a process of its own."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.runtime.cuda_path", str(tmp_path_factory.mktemp("cache"))],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def kinds(run: list[list[str]]) -> Counter[str]:
    return Counter(kind for kind, _ in run)


def kernels(run: list[list[str]]) -> list[str]:
    return [name for kind, name in run if kind == "launch"]


@pytest.mark.parametrize("case", [*ENGINES, *BLOCKS])
def test_the_third_run_is_one_graph(told: dict[str, Any], case: str) -> None:
    assert not told[case]["warnings"]
    first, second, third = told[case]["runs"]
    assert kernels(first) and not kernels(third)
    assert kinds(third)["graph"] == 1
    assert kinds(third)["sync"] == kinds(third)["malloc"] == 0
    # Once before and once for the capture.
    assert kernels(second) == kernels(first) * 2


@pytest.mark.parametrize("case", ["masked, off", "masked, fast"])
def test_a_mask_that_is_an_array_is_no_obstacle_to_tuning(told: dict[str, Any], case: str) -> None:
    assert not told[case]["warnings"]
    for run in told[case]["runs"][1:]:  # of another array each; the first one tunes
        assert kernels(run) and not kinds(run)["graph"]


@pytest.mark.parametrize("case", ["scores, off", "scores, fast"])
def test_scores_that_are_masked_are_recorded(told: dict[str, Any], case: str) -> None:
    assert not told[case]["warnings"]
    assert kinds(told[case]["runs"][2])["graph"] == 1
    assert not kinds(told[case]["runs"][2])["upload"]


@pytest.mark.parametrize("case", BLOCKS)
def test_a_replay_only_copies_and_launches(told: dict[str, Any], case: str) -> None:
    third = told[case]["runs"][2]
    assert set(kinds(third)) == {"event", "cupy", "graph"}
    assert all(name == "copy" for kind, name in third if kind == "cupy")
    assert kinds(third)["cupy"] == 2  # x in, y out


@pytest.mark.parametrize(
    ("case", "a_layer", "beside"),
    [
        ("bert", 7, 2),
        ("gpt2", 7, 4),
        ("vit", 7, 3),
        ("t5", 7, 2),
        ("block", 7, 0),
        ("llama", 7, 2),
        ("llama, neighbours", 7, 2),
    ],
)
def test_launches_of_a_layer(told: dict[str, Any], case: str, a_layer: int, beside: int) -> None:
    """Products with all that follows, attention, norms; LLaMA's products turn queries and keys."""
    names = kernels(told[case]["runs"][0])
    in_one = sum(bool(re.search(r"_norm\d", name)) for name in names)  # of a product's kernel
    assert len(names) + in_one == 2 * a_layer + beside


def test_epilogues_are_fused(told: dict[str, Any]) -> None:
    names = {case: " ".join(kernels(told[case]["runs"][0])) for case in ENGINES}
    assert "bias_gelu " in names["bert"] and "bias_residual " in names["bert"]
    assert "bias_gelu_tanh " in names["gpt2"] and "silu_gate " in names["llama"]
    assert names["llama"].count("_turned64 ") == names["llama, neighbours"].count("_turned ") == 2
    for each in ("add_", "gelu_bf16", "gated_", "rotary_"):
        assert f" {each}" not in names["bert"] + names["llama"]


def test_relative_biases_that_are_constant_are_made_before_any_run(told: dict[str, Any]) -> None:
    """Once for all executors: a run gathers none."""
    for run in told["t5"]["runs"]:
        assert ["cupy", "take"] not in run


def test_a_step_of_decoding_keeps_its_products_of_few_rows(told: dict[str, Any]) -> None:
    """Norms are of the products after them; what turns, keeps and attends is one launch."""
    found = kernels(told["token"])
    a_layer = ["gemm_few", "attentio", "gemm_str", "gemm_few", "gemm_str"]
    assert [name[:8] for name in found][1:11] == a_layer * 2
    assert sum(name.startswith("attention_token") for name in found) == 2


@pytest.mark.parametrize("case", LENGTHS)
def test_lengths_of_a_class_ask_for_no_kernel_that_was_not_compiled(
    told: dict[str, Any], case: tuple[str, str | None]
) -> None:
    found = told[f"lengths, {case}"]
    ahead, launched = (set(found[name]) for name in ("ahead", "launched"))
    assert len(launched) > 6  # several kernels for one product
    assert launched <= ahead


def test_another_device_than_the_current_one(told: dict[str, Any]) -> None:
    """T29: everything happens on the engine's device; results go where the inputs came from."""
    found = told["another device"]
    assert (found["results"], found["devices"], found["back"]) == ([1, 1, 1], [1], 0)
    assert found["profiled"] == [1]


def test_packed_runs_of_other_lengths_are_one_graph(told: dict[str, Any]) -> None:
    assert all(map(all, told["ragged"]["right"]))
    first, second, third = told["ragged"]["runs"]
    assert any(name.startswith("attention") for name in kernels(first))
    assert kinds(third)["graph"] == 1 and kinds(third)["sync"] == kinds(third)["malloc"] == 0
    # Sequences, positions and documents go up as one, and one kernel makes the arrays of them.
    assert kernels(third) == ["packing"]
    before = [kind for kind, _ in third[: third.index(["graph", "launch"])]]
    assert before.count("upload") == 1 and "await" not in before
    copies = [name for kind, name in third if kind == "cupy"]
    # Hidden states out, and after that the check: nothing in, the kernel writes to what is read.
    assert copies == ["copy", "max"]
    launch, largest = third.index(["graph", "launch"]), third.index(["cupy", "max"])
    assert launch < largest < third.index(["await", "event"])
    # On a stream that waits for the kernel, not for the run, which is launched after its event.
    assert third[largest - 1] == ["event", "wait"] and third[launch - 1] == ["event", "record"]
    # The mask is built by what is recorded, before the layers; once recorded it is launched.
    names = kernels(second)
    assert names[0] == names[-1] == "packing" and names.count("packing") == 2
    assert names[1].startswith("mask_") and names[-2][:5] != "mask_"
    assert layers(second) == layers(first) * 2


def layers(run: list[list[str]]) -> list[str]:
    """Return the kernels of a packed run that work on its layers."""
    return [name for name in kernels(run) if name != "packing" and name[:5] != "mask_"]


def test_kernels_of_packed_runs_are_compiled_ahead_too(told: dict[str, Any]) -> None:
    """Those that build the mask, and attention by it, among them."""
    launched = set(kernels(told["ragged"]["runs"][0]))
    assert {name.split("_")[0] for name in launched} >= {"attention", "mask", "gemm"}
    assert launched <= set(told["ragged"]["ahead"])


@pytest.mark.parametrize("tune", ["off", "fast"])
def test_folded_norms_are_told_by_products_tuned_or_not(told: dict[str, Any], tune: str) -> None:
    found = told[f"folded, {tune}"]
    names = found["again"]
    # All but the last one, whose norm is not of products alone.
    telling = [name for name in names if name.startswith("gemm_sm") and "_statistics" in name]
    assert len(telling) == 2 * 3 - 1
    assert sum("_normed" in name for name in names) == 2 * 3
    # No product could tell of the embeddings.
    assert sum(name.startswith("row_statistics") for name in names) <= 1
    assert sum(name.startswith("layer_norm") for name in names) <= 1
    assert set(found["launched"]) <= set(found["ahead"])


@pytest.mark.parametrize("tune", ["off", "fast"])
def test_products_and_norms_in_one_kernel_are_compiled_for_all_lengths(
    told: dict[str, Any], tune: str
) -> None:
    ahead, launched = (set(told[f"joined, {tune}"][name]) for name in ("ahead", "launched"))
    assert any(re.search(r"_norm\d_bias_residual", name) for name in launched)
    assert launched <= ahead
