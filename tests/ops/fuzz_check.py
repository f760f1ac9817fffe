"""A drawn problem of attention run into guarded memory, beside the float64 oracle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stof_cupy import RelativeBias, attention, attention_varlen
from stof_cupy.errors import StofError
from stof_cupy.jit.spec import KernelSpec
from stof_cupy.masks import BsrMask, MaskStack
from stof_cupy.ops import reference
from stof_cupy.ops.attention_fields import Args
from stof_cupy.testing import assert_close, poison, random_array, rng
from tests.ops import forced
from tests.ops.forced import RefusalError
from tests.ops.fuzz_case import Case, sequences

FEW_OUTPUTS, COLUMNS = 4096, 64


@dataclass(frozen=True)
class Outcome:
    """What came of running a case one way: "ok", "refused", "wrong" or "error", and why."""

    way: str
    verdict: str
    reason: str = ""


@dataclass(frozen=True)
class Kernels:
    """What may be launched.

    Attributes
    ----------
    facts : DeviceFacts or None
        Of the GPU; None for NumPy's arrays.
    specs : frozenset of KernelSpec
        What is ready on the GPU.
    on_host : bool
        Whether instances run on NumPy's arrays, compiled for the CPU, or are only asked whether
        they would.
    """

    facts: Any = None
    specs: frozenset[KernelSpec] = frozenset()
    on_host: bool = False


# ---------------------------------------------------------------- the oracle


@dataclass(frozen=True)
class Expected:
    """The oracle's results; `exact` and `low` may have more columns than the output."""

    exact: Any
    low: Any
    lse: Any
    lse_error: float

    def check(self, out: Any, lse: Any) -> None:
        """Raise AssertionError unless a result is within its budget."""
        more = self.low[..., out.shape[-1] :].astype(out.dtype)
        assert_close(np.concatenate([out, more], -1), self.exact, self.low)
        limits = {"rtol": 4e-6, "atol": self.lse_error}
        np.testing.assert_allclose(lse, self.lse, **limits, err_msg="LSE", verbose=False)
        nothing = np.isneginf(self.lse)
        if out.astype(np.float32)[nothing].any():
            raise AssertionError("a row without keys is not zero")


def oracle(case: Case) -> Expected:
    """Compute a case densely in float64.

    Of few outputs the error's largest is not known well: columns are added to V, of the same
    distribution, so that the budget is that of more of them.
    """
    q, k, v = case.batched()
    if np.prod(q.shape[:3]) * v.shape[3] < FEW_OUTPUTS:
        more = random_array(rng(case.seed + 2**32), (*v.shape[:3], COLUMNS), q.dtype.name)
        v = np.concatenate([v, more], -1)
    how = {n: x for n, x in case.how.items() if n != "kv_lengths"}
    if case.lens:
        how = _distances(case, how)
    keep = case.keep()
    exact, lse = reference.attention(q, k, v, keep, return_lse=True, **how)
    low = reference.attention(q, k, v, keep, precision=q.dtype.name, **how)
    return Expected(exact, low, lse, 2e-5 + 2e-6 * _reach(q, k, how))


def _distances(case: Case, how: dict[str, Any]) -> dict[str, Any]:
    """Return scores of packed sequences, with what depends on distance as an array."""
    how = dict(how)
    ahead = sequences(**case.lens)[1]
    bias, slopes = how.get("bias"), how.pop("alibi", None)
    if isinstance(bias, RelativeBias):
        reach = bias.max_distance
        how["bias"] = bias.by_distance(reach)[:, np.clip(ahead, -reach, reach) + reach]
    if slopes is not None:
        total = -slopes[:, None, None].astype(np.float64) * abs(ahead)
        if bias is not None:  # its type's lowest number masks
            lowest = np.nextafter(np.array(-np.inf, bias.dtype), np.zeros((), bias.dtype))
            total = total + np.where(bias > lowest, bias.astype(np.float64), -np.inf)
        how["bias"] = total
    return how


def _reach(q: Any, k: Any, how: dict[str, Any]) -> float:
    """Return about how large the terms of a score are, whose rounding the LSE shows."""
    if not q.size or not k.size:
        return 0.0
    sizes = []
    for x in (q, k):
        wide = np.where(np.isfinite(x), x, 0).astype(np.float64)
        sizes.append(np.sqrt((wide * wide).sum(-1).max()))
    reach = sizes[0] * sizes[1] * abs(how.get("scale") or q.shape[-1] ** -0.5)
    bias = how.get("bias")
    if isinstance(bias, np.ndarray):
        reach += np.abs(np.where(np.abs(bias) < 1e3, bias, 0).astype(np.float64)).max(initial=0)
    if (slopes := how.get("alibi")) is not None:
        reach += np.abs(slopes).max() * max(q.shape[2], k.shape[2])
    return float(reach)


# ---------------------------------------------------------------- arrays


def guarded(shape: tuple[int, ...], dtype: Any, view: str, xp: Any) -> tuple[Any, Any]:
    """Return poisoned memory of a shape, lying as `view` says, and all the memory it is part of."""
    *lead, rows, columns = shape
    size = int(np.prod(shape))
    if view == "rows":
        base = poison((*lead, 2 * rows + 1, columns), dtype, xp)
        return base[..., : 2 * rows : 2, :], base
    if view == "slice":
        base = poison((*lead, rows, 3 * columns), dtype, xp)
        return base[..., columns : 2 * columns], base
    if view == "padded":
        base = poison((*lead, rows, -(-columns // 8) * 8 + 8), dtype, xp)
        return base[..., :columns], base
    if view == "reversed":
        base = poison((*lead, rows + 2, columns), dtype, xp)
        return base[..., 1 : rows + 1, :][..., ::-1, :], base
    if view == "transposed" and lead:
        base = poison((*lead[:-1], rows, lead[-1], columns), dtype, xp)
        return base.swapaxes(-2, -3), base
    start = 257 if view == "offset" else 256
    base = poison((size + 2 * start,), dtype, xp)
    return base[start : start + size].reshape(shape), base


def placed(x: Any, view: str, xp: Any) -> Any:
    """Return an array's copy that lies as `view` says."""
    if view == "fortran":
        return xp.asfortranarray(xp.asarray(x))
    if not view or x.ndim < 2:
        return xp.asarray(x)
    there, _ = guarded(x.shape, x.dtype, view, xp)
    there[...] = xp.asarray(x)
    return there


def given_mask(case: Case, xp: Any) -> Any:
    """Return the mask in the form that the case names."""
    dense = case.dense
    if dense is None or case.form == "dense":
        return dense
    if case.form == "scipy":
        from scipy.sparse import csr_array

        return csr_array(dense)
    if case.form == "on the GPU" and xp is not np:
        return xp.asarray(dense)
    lowered = BsrMask(dense) if dense.ndim == 2 else MaskStack.from_dense(dense)
    return lowered.to("cuda") if case.form == "uploaded" and xp is not np else lowered


def given(case: Case, xp: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of `attention`, or `attention_varlen`."""
    arrays = [placed(getattr(case, n), case.views[n], xp) for n in "qkv"]
    how: dict[str, Any] = {}
    for name, x in case.how.items():
        if isinstance(x, RelativeBias):
            table = xp.asarray(x.table)
            far = x.max_distance
            x = RelativeBias(table, bidirectional=x.bidirectional, max_distance=far)
        elif isinstance(x, np.ndarray):
            x = placed(x, case.views["bias"] if name == "bias" else "", xp)
        how[name] = x
    return arrays, {"mask": given_mask(case, xp), **how, **case.lens}


# ---------------------------------------------------------------- running


def run_case(case: Case, kernels: Kernels) -> list[Outcome]:
    """Run a case on its instance's kernel and as `attention` chooses; of NumPy without a GPU."""
    if kernels.facts is None:
        xp: Any = np
    else:
        import cupy as xp
    expected = oracle(case)
    return [_outcome(case, way, expected, kernels, xp) for way in ("instance", "attention")]


def _outcome(case: Case, way: str, expected: Expected, kernels: Kernels, xp: Any) -> Outcome:
    name = type(case.instance).__name__ if way == "instance" else way
    name += " packed" if case.lens and way == "attention" else ""
    try:
        _run(case, way, expected, kernels, xp)
    except RefusalError as reason:
        return Outcome(name, "refused", str(reason))
    except AssertionError as error:
        return Outcome(name, "wrong", " ".join(str(error).split())[:400])
    except StofError as error:
        return Outcome(name, "error", repr(error)[:400])
    return Outcome(name, "ok")


def _run(case: Case, way: str, expected: Expected, kernels: Kernels, xp: Any) -> None:
    arrays, how = given(case, xp)
    shape = (*case.q.shape[:-1], case.v.shape[-1])
    twice = rng(case.seed + 2**33).random() < 0.15
    first = None

    def launch(args: Args, chosen: Any) -> Any:
        if way == "attention":
            specs = [] if xp is np else forced.chosen_specs(args)
            if not kernels.specs.issuperset(specs):
                raise RefusalError("a kernel that was not compiled beforehand")
            return chosen()
        if reason := case.instance.refusal(args):
            raise RefusalError(reason)
        if xp is np and not kernels.on_host:
            return chosen()
        g = rng(case.seed + 2**34)
        if xp is np:
            from tests.ops import forced_on_host

            return forced_on_host.launch(case.instance, g, args)
        if not kernels.specs.issuperset(case.instance.specs()):
            raise RefusalError("a kernel for other GPUs")
        return case.instance.launch(g, args)

    for _ in range(1 + twice):
        out, base = guarded(shape, case.q.dtype, case.views["out"], xp)
        stale = xp.full(shape[:-1], np.nan, np.float32)  # the pool gives it away as LSE
        del stale
        with forced.forced(launch):
            run = attention_varlen if case.lens else attention
            got, lse = run(*arrays, return_lse=True, out=out, **how)
        if got is not out:
            raise AssertionError("out is not what was given")
        results = [x.get() if xp is not np else x for x in (out, lse, base)]
        _check_guard(results[0], results[2])
        if case.lens:
            results[:2] = results[0].swapaxes(0, 1)[None], results[1].T[None]
        expected.check(results[0], results[1])
        bits = results[0].astype(np.float32).tobytes(), results[1].tobytes()
        if first is not None and bits != first:
            raise AssertionError("not the same twice")
        first = bits


def _check_guard(out: Any, base: Any) -> None:
    outside = base.size - out.size
    poisoned = np.isnan(base.astype(np.float32)).sum() - np.isnan(out.astype(np.float32)).sum()
    if poisoned != outside:
        raise AssertionError(f"{outside - poisoned} elements beside the output were written")
