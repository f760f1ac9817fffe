"""What a decoded token asks of CUDA, found out without a GPU: one graph, and no waiting for it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tests.runtime.fake_cuda")
CASES = ("gpt2", "llama", "gemma3", "t5")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    run = subprocess.run(
        [sys.executable, "-m", "tests.models.decode_path", str(tmp_path_factory.mktemp("cache"))],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def kinds(run: list[list[str]]) -> list[str]:
    return [kind for kind, _ in run]


@pytest.mark.parametrize("case", CASES)
def test_a_token_is_one_graph(told: dict[str, Any], case: str) -> None:
    assert not told[case]["warnings"]
    first, _, last = (kinds(run) for run in told[case]["runs"])
    assert first.count("capture") == 2  # its begin and end
    assert not last.count("capture") and not last.count("malloc")
    # The first of six tokens comes from the prompts, or else two graphs read the source.
    graphs = [at for at, kind in enumerate(last) if kind == "graph"]
    source = 2 if case == "t5" else 0
    assert len(graphs) == (source + 6 if source else 5)
    assert not last.count("sync") and not last.count("download")
    tokens = last[graphs[source] :]
    # From one graph to the next: no kernel, no upload, one copy of tokens that nobody waits for.
    between = tokens[: len(tokens) - tokens[::-1].index("graph")]
    assert {*between} <= {"graph", "event", "wait", "async"}
    assert between.count("async") == between.count("graph") - 1


def test_types_hold_what_a_family_computes(told: dict[str, Any]) -> None:
    found = [told[case]["dtype"] for case in CASES]
    assert found == ["float16", "float16", "bfloat16", "bfloat16"]


def products(names: Counter[str]) -> int:
    """Take those of few rows away, and return how many there were."""
    return names.pop("gemm_few_rows", 0) + names.pop("gemm_streamed", 0)


def test_kernels_of_a_layer(told: dict[str, Any]) -> None:
    run = told["llama"]["runs"][0]
    begin, end = (i for i, (kind, _) in enumerate(run) if kind == "capture")
    names = Counter(name.split("_f16")[0] for kind, name in run[begin:end] if kind == "launch")
    # Three layers, of four products and one kernel between the first two; rows are looked up too.
    assert products(names) == 3 * 4 + 1
    assert names == {"embedding": 2, "attention_token": 3, "rms_norm": 1, "greedy": 1}


def test_kernels_of_a_layer_that_reads_a_source(told: dict[str, Any]) -> None:
    run = told["t5"]["runs"][0]
    begin, end = (i for i, (kind, _) in enumerate(run) if kind == "capture")
    names = Counter(name.split("_bf16")[0] for _, name in run[begin + 1 : end])
    # Two layers, of six products and two attentions; a bias of positions looks its table up.
    assert products(names) == 2 * 6 + 1 and names.pop("attention_sm80") == 4
    assert names == {
        "embedding": 2, "kv_cache": 2, "take": 2, "astype": 2, "rms_norm": 1, "mul": 1, "greedy": 1,
    }  # fmt: skip
