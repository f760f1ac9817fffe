"""Which GEMM a product runs: what is offered, what is kept, what happens where it does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stof_cupy.fusion import lengths, products, structured
from stof_cupy.fusion.bench import PieceSpace, Site
from stof_cupy.fusion.chain import Chain
from stof_cupy.fusion.cost import NUMPY, machine_of
from stof_cupy.fusion.kernels import KERNELS, kernel_of
from stof_cupy.fusion.ledger import Budget, Ledger
from stof_cupy.fusion.pieces import Piece
from stof_cupy.fusion.search import two_stage
from stof_cupy.fusion.store import SchemeStore, versions
from stof_cupy.fusion.tune import tune
from stof_cupy.graph import Graph, Node
from stof_cupy.jit.catalogue import GEMM_TILES
from stof_cupy.jit.gemm_sm90 import GEMM_SM90_CONFIGS
from stof_cupy.jit.gemm_sm90 import gemm_sm90 as gemm_sm90_spec
from stof_cupy.jit.spec import KernelSpec
from stof_cupy.ops import gemm, gemm_choice, gemm_model, gemm_sm80, gemm_sm90
from stof_cupy.ops.gemm_args import Problem
from stof_cupy.ops.gemm_sm90 import Layout
from stof_cupy.ops.gemm_vendor import Vendor
from tests.fusion.test_tune import H100

MACHINE = machine_of(H100)
SIZES = {"batch": 8, "seq": 512}
SITE = Site("cuda", "bfloat16", None, MACHINE, SIZES)


def product(rows: int = 768, depth: int = 768, **how: Any) -> Node:
    g = Graph("product")
    x = g.input("x", ("batch", "seq", depth), "float")
    return g.gemm(x, g.constant("w", np.zeros((rows, depth), np.float32)), **how)


def layer() -> Graph:
    """Projection, norm, gated and plain products of one width."""
    g = Graph("layer")
    x = g.input("x", ("batch", "seq", 256), "float")
    ones = g.constant("ones", np.ones(256, np.float32))
    for i in range(2):
        w, up, gate, down = (
            g.constant(f"{name}{i}", np.full(shape, i + 2.0, np.float32))
            for name, shape in (
                ("w", (256, 256)), ("up", (512, 256)), ("gate", (512, 256)), ("down", (256, 512)),
            )
        )  # fmt: skip
        y = g.rms_norm(g.add(g.gemm(x, w), x), ones, eps=1e-5)
        h = g.gated(g.gemm(y, gate), g.gemm(y, up), activation="silu")
        x = g.add(g.gemm(h, down), y)
    g.output("y", x)
    return structured(g)


def test_without_a_gpu_there_is_nothing_to_set() -> None:
    node = product()
    assert products.settings([node], SIZES, NUMPY) == ((),)
    assert products.predicted([node], SIZES, NUMPY, ()) is None


def test_settings_are_the_models_candidates_best_first() -> None:
    node = product()
    found = products.settings([node], SIZES, MACHINE)
    times = [products.predicted([node], SIZES, MACHINE, each) for each in found]
    assert len(found) > 6 and len(set(found)) == len(found)
    assert times == sorted(times) and times[0] == products.predicted([node], SIZES, MACHINE, ())
    problem = products.problem_of(node, SIZES)
    assert (problem.m, problem.n, problem.k) == (4096, 768, 768)
    for setting in found:
        choice = products._choice(setting)
        assert products._setting(choice) == setting
        if isinstance(choice, gemm_sm90.Plan):
            assert gemm_sm90.fault(choice, problem, gemm_sm90.Layout()) is None


def test_an_odd_depth_leaves_the_kernel_for_every_gpu() -> None:
    found = products.settings([product(depth=77)], SIZES, MACHINE)
    assert {products.CHOICES[setting[0][1]] for setting in found} <= set(GEMM_TILES)


def test_no_rows_and_no_constant() -> None:
    assert products.settings([product()], {"batch": 0, "seq": 5}, MACHINE) == ((),)
    g = Graph("two")
    x, w = g.input("x", ("seq", 8), "float"), g.input("w", (4, 8), "float")
    assert not products.is_product([g.gemm(x, w)])
    assert kernel_of([g.gemm(x, w)], "cuda") is KERNELS[1]


def test_a_choice_from_another_release_is_the_models() -> None:
    assert products._choice((("kernel", len(products.CHOICES)), ("splits", 1))) is None
    assert products._choice(()) is None


@pytest.mark.parametrize("fits", [True, False])
def test_what_does_not_fit_what_is_given_is_left_to_the_model(
    fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def launch(problem: Any, a: Any, b: Any, epilogue: Any, out: Any, choice: Any) -> Any:
        seen.append((problem.m, epilogue.activation, epilogue.bias is not None, choice))
        return a @ b

    monkeypatch.setattr(gemm, "_launch", launch)
    setting = (("kernel", len(GEMM_TILES)), ("splits", 1))
    node = product(rows=64, depth=64, bias=None, activation="gelu")
    run = products.build([node], node.inputs, setting)
    x = np.zeros((2, 3, 64 if fits else 68), np.float16)  # 136 bytes a row: no tensor map
    w = np.zeros((64, x.shape[2]), np.float16)
    assert run(x, w, None, None).shape == (2, 3, 64)
    plan = gemm_sm90.Plan(GEMM_SM90_CONFIGS[0])
    assert seen == [(6, "gelu", False, plan if fits else None)]


def test_the_kernel_for_every_gpu_always_fits() -> None:
    node = product(depth=77)
    x, w = np.zeros((3, 77), np.float16), np.zeros((768, 77), np.float16)
    assert products._fits(gemm_sm80.Config(GEMM_TILES[0]), products.problem_of(node, SIZES), x, w)


def test_a_tuned_layer_names_a_kernel_for_every_product(tmp_path: Path) -> None:
    store = SchemeStore(tmp_path)
    graph = layer()
    off = tune(graph, SITE, "off")
    # A product alone by its own call, which chooses for every size.
    assert all(len(each.nodes) > 1 for each in off.lowered.fused)
    tuned = tune(graph, SITE, "fast", store=store)
    products_of = [node for node in tuned.lowered.graph.nodes() if node.op == "gemm"]
    fused = [node for each in tuned.lowered.fused for node in each.nodes if node.op == "gemm"]
    assert sorted(map(id, fused)) == sorted(map(id, products_of))
    alone = [each for each in tuned.lowered.fused if len(each.nodes) == 1]
    assert alone and all(each.inputs == each.nodes[0].inputs for each in alone)
    again = tune(graph, SITE, "fast", store=store)
    assert all(piece.cached for piece in again.report.pieces)
    assert [p.settings for p in again.report.pieces] == [p.settings for p in tuned.report.pieces]


def test_the_clock_overrules_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each product the kernel that the model holds worst of those offered is the fastest."""
    chain = Chain(layer())
    space = PieceSpace(chain, Piece(0, len(chain)), SITE)

    def measure(self: PieceSpace, span: Any, setting: Any) -> float:
        offered = self.settings(span)
        return 1e-5 * (len(offered) - offered.index(setting)) * (span[1] - span[0])

    monkeypatch.setattr(PieceSpace, "measure", measure)
    # Pruned are those that the model expects to take twice as long as the best.
    found = two_stage(Ledger(space, Budget(samples=5, prune=100.0, choices=99)), space.rules())
    for span, setting in zip(found.scheme.spans(), found.settings, strict=True):
        assert setting == space.settings(span)[-1]


def test_schemes_of_another_catalogue_are_of_another_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from stof_cupy.fusion import store

    before = versions()
    monkeypatch.setattr(store, "CHOICES", products.CHOICES[:-1])
    assert versions() != before


def test_what_is_likely_is_a_part_of_all_that_can_be_timed() -> None:
    chain = Chain(layer())
    space = PieceSpace(chain, Piece(0, len(chain)), SITE)
    rules = {space.key(span): len(space.settings(span)) for span in space.rules()}
    others = {space.key(span) for span in space.segments()} - rules.keys()
    likely, every = [*space.ways(Budget())], [*space.ways()]
    assert len(likely) == sum(min(n, 6) for n in rules.values()) + len(others) < len(every)
    two = [*space.ways(Budget(choices=2))]
    assert len(two) == sum(min(n, 2) for n in rules.values()) + len(others) < len(likely)


def test_a_product_that_turns_is_set_like_others_or_left_to_be_two_kernels() -> None:
    g = Graph("turned")
    x, at = g.input("x", ("batch", "seq", 1024), "float"), g.input("at", ("batch", "seq"), "int")
    w = g.constant("w", np.zeros((3072, 1024), np.float32))
    how = {"frequency": np.ones(32), "heads": 40, "head_dim": 64}
    node = g.turned_gemm(x, w, at, **how)
    free, *found = products.settings([node], SIZES, MACHINE)
    assert free == () and found
    times = [products.predicted([node], SIZES, MACHINE, each) for each in found]
    assert times == sorted(times, key=float) and times[0] is not None  # type: ignore[arg-type]
    plain = products.predicted([product(3072, 1024)], SIZES, MACHINE, ())
    assert plain is not None and times[0] > plain
    names = [each.name for each in lengths.kernels([node], SIZES, "bfloat16", H100)]
    assert names[0] == "rotary_bf16" and all("_turned64" in name for name in names[1:])
    assert len(names) > 2
    # Heads of 128 leave a few rows too few tiles: there the product is a plain one.
    wide = g.constant("wide", np.zeros((3072, 8192), np.float32))
    how = {"frequency": np.ones(64), "heads": 20, "head_dim": 128}
    y = g.turned_gemm(g.input("y", ("batch", "seq", 8192), "float"), wide, at, **how)
    names = [
        each.name for each in lengths.kernels([y, y], {"batch": 1, "seq": 16}, "bfloat16", H100)
    ]
    assert len(names) > 1 and not any("turned" in name for name in names)


@pytest.mark.parametrize("batch", [1, 8, 16])
def test_no_length_of_a_class_asks_for_another_kernel(batch: int) -> None:
    node = product(2304, 768)
    ahead = lengths.kernels([node], {"batch": batch, "seq": 1500}, "bfloat16", H100)
    for seq in range(1025, 2049):
        problem = Problem("bfloat16", batch * seq, 2304, 768, products._kind(node))
        assert spec_of(problem) in ahead


@pytest.mark.parametrize(("batch", "most"), [(3, 8), (1, 32), (8, 32), (1, 256), (3, 64)])
def test_nor_one_of_few_rows(batch: int, most: int) -> None:
    node = product(768, 3072)
    ahead = lengths.kernels([node], {"batch": batch, "seq": most}, "bfloat16", H100)
    for seq in range(most // 2 + 1, most + 1):
        assert spec_of(Problem("bfloat16", batch * seq, 768, 3072, products._kind(node))) in ahead


def spec_of(problem: Problem) -> KernelSpec:
    """Return the kernel that `gemm` runs."""
    choice = gemm_choice.choices(problem, Layout(), H100)[-1]
    if isinstance(choice, gemm_sm90.Plan):
        return gemm_sm90_spec("bfloat16", choice.config, problem.epilogue)
    assert not isinstance(choice, Vendor)
    return choice.spec(problem)


def test_what_gemm_itself_would_choose_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel for few rows, and what was measured, are no settings, and may be the fastest."""
    node = product()
    assert () not in products.settings([node], SIZES, MACHINE)
    assert products.settings([node], {"batch": 1, "seq": 2}, MACHINE)[0] == ()
    best, other = gemm_model.explain(products.problem_of(node, SIZES), Layout(), H100)[:2]
    for own in (other.choice, Vendor(0)):
        with monkeypatch.context() as patch:
            patch.setattr(gemm_choice, "choices", lambda *_, own=own: (own, best.choice))
            assert products.settings([node], SIZES, MACHINE)[0] == ()
