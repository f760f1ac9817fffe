from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stof_cupy.errors import ArgumentError
from stof_cupy.jit.spec import KernelSpec


def test_params_dtype_is_laid_out_as_c_does(spec: KernelSpec) -> None:
    odd = replace(
        spec, params=(("flag", "i4"), ("pointer", "u8"), ("many", "(3,)i4"), ("end", "i2"))
    )
    dtype = odd.params_dtype()
    assert [dtype.fields[name][1] for name in dtype.names] == [0, 8, 16, 28]
    assert dtype.itemsize == 32 and dtype.isalignedstruct


@pytest.mark.parametrize(
    "claim, arch, expected",
    [
        ("80+", "80", True),
        ("80+", "90a", True),
        ("80+", "120", True),
        ("90+", "89", False),
        ("90a", "90a", True),
        ("90a", "90", False),
        ("90a", "100", False),
        ("100f", "100f", True),
    ],
)
def test_supports(spec: KernelSpec, claim: str, arch: str, expected: bool) -> None:
    assert replace(spec, arch=claim).supports(arch) is expected


@pytest.mark.parametrize(
    "change, named",
    [
        ({"name": "Axpy<float>"}, "Axpy<float>"),
        ({"name": ""}, "lower-case"),
        ({"params": ()}, "at least one field"),
        ({"arch": "sm_80"}, "sm_80"),
        ({"arch": "90a+"}, "90a[+]"),
    ],
)
def test_bad_specs_are_refused(spec: KernelSpec, change: dict[str, object], named: str) -> None:
    with pytest.raises(ArgumentError, match=named):
        replace(spec, **change)


def test_specs_are_values(spec: KernelSpec) -> None:
    assert replace(spec) == spec and hash(replace(spec)) == hash(spec)
    assert spec.symbol == "stof_axpy_f32"
    assert np.zeros(1, spec.params_dtype())[0].itemsize == 32
