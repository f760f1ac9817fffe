"""The Hopper GEMM: how it can be tiled, and its spec."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from stof_cupy.errors import UnsupportedError, mismatch
from stof_cupy.jit.epilogues import PLAIN, EpilogueKind
from stof_cupy.jit.spec import TENSOR_MAP, KernelSpec
from stof_cupy.jit.wgmma import wgmma

__all__ = ["GEMM_SM90_CONFIGS", "Sm90Gemm", "for_layout", "gemm_sm90"]

_SMEM_PER_BLOCK = 232448
_REGISTERS_BESIDE = 32  # of a thread, for all but the sums
_OF_STATISTICS = 16  # of CTAs that have a row together: else 192 sums are spilled
_BESIDE_MORE = 104  # of an epilogue that reads much more than a bias and a residual
_PITCH = 64 + 4  # floats of a row of sums on their way to be transposed
_BLOCK = 64 * 128  # bytes of 64 rows


@dataclass(frozen=True)
class Sm90Gemm:
    """How the kernel works.

    Attributes
    ----------
    m, n : int
        Rows of A and columns of B of a tile. Where 64 does not divide `n`, the last 64 columns of
        the output begin in those before, and some are stored twice.
    pingpong : bool
        Whether two warpgroups have a tile each, so that one's epilogue runs under the other's
        products, or share one.
    cluster : int
        CTAs with tiles above each other, 1 or 2, which share what they load of B.
    swapped : bool
        Whether A has the columns of the output and B its rows, for outputs of few rows.
    split : bool
        Whether K may be cut into pieces for CTAs of their own.
    transposed_a, transposed_b : bool
        Whether A is contiguous along its rows, and B along its columns, in memory; else both are
        along K. As the kernel has them: swapped ones.
    across : int
        0, or CTAs of a cluster that have all columns, to normalise the rows.
    joined : int
        CTAs of a cluster that have a piece of K each, and add them up in their shared memory: of
        64 columns or more each, or where a tile has fewer of some of its rows.
    stages : int
        Buffers for 64 of K; 0: as many as there is memory for, up to 8.
    bounded : bool
        Whether waits that take a second are reported and end in a fault: for finding hangs.
    """

    m: int
    n: int
    pingpong: bool = False
    cluster: int = 1
    swapped: bool = False
    split: bool = False
    transposed_a: bool = False
    transposed_b: bool = False
    across: int = 0
    joined: int = 1
    stages: int = 0
    bounded: bool = False

    threads = 384

    @property
    def _stage_bytes(self) -> int:
        return (self.m + self.n) * 128

    def _out_bytes(self, epilogue: EpilogueKind) -> int:
        """Bytes of both warpgroups for output on its way, the residual and its barriers."""
        if self.swapped:
            return 2 * (-(-self.n * _PITCH * 4 // 1024) * 1024)
        if self.by_rows:
            return 0  # stored from registers
        buffers = 4 if epilogue.residual or self.across else 2
        statistics = 32 + 2 * 2 * self.across * 64 * 8 if self.across else 0
        return 2 * buffers * (_BLOCK + 8 * epilogue.residual) + statistics

    def depth(self, epilogue: EpilogueKind = PLAIN) -> int:
        """Return how many buffers for 64 of K there are."""
        if self.stages:
            return self.stages
        left = _SMEM_PER_BLOCK - self._out_bytes(epilogue) - 8
        return min(8, left // (self._stage_bytes + 16))

    def smem_bytes(self, epilogue: EpilogueKind = PLAIN) -> int:
        """Return the shared memory of a CTA."""
        stages = self.depth(epilogue) * (self._stage_bytes + 16)
        return stages + self._out_bytes(epilogue) + 8

    @property
    def ctas(self) -> int:
        """CTAs of a cluster."""
        return self.across or self.cluster * self.joined

    @property
    def by_rows(self) -> bool:
        """Whether CTAs that join pieces of K share out a tile's rows, as it has too few columns."""
        return self.joined > 1 and self.n < 64 * self.joined

    @property
    def sharers(self) -> int:
        """Warpgroups that work on a tile."""
        return 1 if self.pingpong else 2

    @property
    def sums(self) -> int:
        """Registers of a thread for sums."""
        return self.m // (64 * self.sharers) * self.n // 2

    def fault(self, epilogue: EpilogueKind = PLAIN) -> str | None:
        """Return why there is no such kernel, or None.

        Examples
        --------
        >>> Sm90Gemm(128, 256, cluster=2).fault()
        >>> Sm90Gemm(256, 256).fault()
        'registers: got 256, expected at most 200 for sums'
        """
        return _fault_of(self, epilogue)  # asked of all, for every new size of a product

    def _fault(self, epilogue: EpilogueKind) -> str | None:
        rows = 64 * self.sharers
        if self.m % rows or not 0 < self.m <= 256 or (self.swapped and self.m != rows):
            expected = f"{rows}" if self.swapped else f"a multiple of {rows} up to 256"
            return mismatch("m", self.m, expected)
        columns = self._columns(epilogue)
        least = max(columns, 8 if self.swapped else 64)
        if self.n % columns or not least <= self.n <= 256:
            return mismatch("n", self.n, f"a multiple of {columns} from {least} to 256")
        if self.cluster not in (1, 2) or (self.cluster > 1 and self.n % (16 * self.cluster)):
            return mismatch("cluster", self.cluster, "1, or 2 where n is a multiple of 32")
        if self.across:
            others = (self.swapped, self.split, epilogue.gated, self.cluster > 1)
            if any(others) or self.m != 128 or self.across > 8:
                return mismatch("across", self.across, "at most 8 with tiles of 128 rows")
        if self.joined > 1:
            alone = not (self.pingpong or self.swapped or self.split or self.across)
            if (
                not alone
                or self.cluster > 1
                or self.m != 128
                or (8 % self.joined if self.by_rows else self.n % (64 * self.joined))
                or (self.by_rows and self.n > 128)  # wider ones are spilled
            ):
                expected = f"a divisor of {self.n // 64} in tiles of 128 rows"
                expected += ", or of 8 where they have at most 128 columns"
                return mismatch("joined", self.joined, expected)
        if epilogue.gated and (self.transposed_a if self.swapped else self.transposed_b):
            return mismatch("epilogue", "gated", "one that is not, unless B is contiguous along K")
        wrong = self._fault_of_stages(epilogue)
        if wrong is not None:
            return wrong
        beside = (epilogue.normed, epilogue.residual, epilogue.statistics)
        more = epilogue.rotary is not None or sum(beside) > 1
        most = 232 - (_BESIDE_MORE if more else _REGISTERS_BESIDE)
        if self.across > 1 and not epilogue.residual:  # with one ptxas finds room
            most -= _OF_STATISTICS
        if self.sums > most:
            return mismatch("registers", self.sums, f"at most {most} for sums")
        depth = self.depth(epilogue)
        if depth < 2 or self.smem_bytes(epilogue) > _SMEM_PER_BLOCK:
            return mismatch("stages", depth, f"2 or more in {_SMEM_PER_BLOCK} bytes")
        joint = self.m * self.n * 4 if self.joined > 1 else 0  # where operands have been
        if joint > depth * self._stage_bytes:
            return mismatch("stages", depth, f"as many as have room for {joint} bytes of sums")
        return None

    def _columns(self, epilogue: EpilogueKind) -> int:
        """Return what the columns have to be a multiple of.

        64 are stored at a time, of which 16, 32 or 48 may be stored twice where nothing else is
        done with 64 at a time.
        """
        if self.swapped and not self.transposed_b:
            return 8
        stages = epilogue.gated or epilogue.rotary or epilogue.statistics or epilogue.heads
        whole = self.transposed_b or self.across or self.joined > 1 or stages
        return 64 * epilogue.halves if whole else 16

    def _fault_of_stages(self, epilogue: EpilogueKind) -> str | None:
        """Return why an epilogue that does more than change elements does not fit, or None."""
        together = 64 if self.swapped else self.n
        if epilogue.apart and together % (2 * epilogue.apart):
            expected = f"a divisor of {together}"
            return mismatch("rotary", f"heads of {2 * epilogue.apart}", expected)
        if self.across and not epilogue.rows_alone:
            return mismatch("across", self.across, "0 of such an epilogue")
        if self.joined > 1 and (epilogue.gated or epilogue.apart):
            return mismatch("joined", self.joined, "1 of columns that are coupled")
        if self.by_rows and epilogue.statistics:
            return mismatch("joined", self.joined, f"at most {self.n // 64} where rows are told of")
        if epilogue.statistics and epilogue.gated:
            return mismatch("statistics", "those of a gated product", "of one that is not")
        return None

    @property
    def name(self) -> str:
        """What distinguishes this kernel of a type from others."""
        flags = {"pingpong": self.pingpong, "swapped": self.swapped, "split": self.split}
        flags |= {"ta": self.transposed_a, "tb": self.transposed_b, "bounded": self.bounded}
        variant = "".join(f"_{name}" for name, on in flags.items() if on)
        variant += f"_norm{self.across}" if self.across else ""
        variant += f"_joined{self.joined}" if self.joined > 1 else ""
        stages = f"s{self.stages}" if self.stages else ""
        return f"{self.m}x{self.n}_{stages}c{self.cluster}{variant}"


@cache
def _fault_of(config: Sm90Gemm, epilogue: EpilogueKind) -> str | None:
    return config._fault(epilogue)


GEMM_SM90_CONFIGS = (
    *(Sm90Gemm(128, n, cluster=c) for n in (256, 192, 128) for c in (2, 1)),
    *(Sm90Gemm(256, 128, cluster=c) for c in (2, 1)),
    *(Sm90Gemm(128, n, pingpong=True, cluster=c) for n in (192, 128) for c in (2, 1)),
    *(Sm90Gemm(64, n, pingpong=True) for n in (256, 192, 128, 64)),
    *(Sm90Gemm(128, n, split=True) for n in (192, 128, 64)),
    *(Sm90Gemm(128, n, swapped=True, split=True) for n in (8, 16, 32, 64)),
    *(Sm90Gemm(128, n, joined=j) for n, j in ((256, 4), (192, 3), (256, 2), (128, 2))),
    *(Sm90Gemm(128, 64, joined=j) for j in (4, 8)),
    Sm90Gemm(128, 256, split=True),
    *(Sm90Gemm(128, 144, pingpong=turns) for turns in (False, True)),
    Sm90Gemm(128, 96),
)
"""What may be chosen, for operands contiguous along K."""


@cache
def for_layout(config: Sm90Gemm, transposed_a: bool, transposed_b: bool) -> Sm90Gemm:
    """Return a configuration for operands that lie in memory as told, before it swaps them."""
    if config.swapped:
        transposed_a, transposed_b = transposed_b, transposed_a
    return replace(config, transposed_a=transposed_a, transposed_b=transposed_b)


@cache
def gemm_sm90(dtype: str, config: Sm90Gemm, epilogue: EpilogueKind = PLAIN) -> KernelSpec:
    """Return the GEMM on wgmma for ``"float16"`` or ``"bfloat16"``.

    Raises
    ------
    UnsupportedError
        See `Sm90Gemm.fault`.
    """
    wrong = config.fault(epilogue)
    if wrong is not None:
        raise UnsupportedError(wrong)
    t = {"float16": "f16", "bfloat16": "bf16"}[dtype]
    arguments = [
        *(f"stof::{t}", str(config.m), str(config.n), str(config.depth(epilogue))),
        *(str(config.pingpong).lower(), str(config.cluster)),
        *(str(config.transposed_a).lower(), str(config.transposed_b).lower()),
        *(epilogue.type, str(config.swapped).lower(), str(config.split).lower()),
        *(str(config.across), str(config.bounded).lower(), str(config.joined)),
    ]
    pointers = ["c", "bias", "residual", "norm_weight", "norm_bias"]
    pointers += ["partial", "counters", "report"]
    pointers += ["row_statistics", "column_sums", "positions", "frequency", "statistics"]
    sizes = ["m", "n", "k", "tiles_a", "tiles_b", "group", "splits", "split_steps"]
    sizes += ["stream", "whole"]
    sizes += ["mapped_c", "mapped_residual", "pairs_c", "pairs_residual"]
    sizes += ["turned", "half", "head_dim", "seq"]
    return KernelSpec(
        name=f"gemm_sm90_{t}_{config.name}{epilogue.name}",
        header="gemm/sm90.cuh",
        type=f"stof::gemm::Sm90<{', '.join(arguments)}>",
        params=(
            *((f"map_{name}", TENSOR_MAP) for name in ("a", "b", "c", "residual")),
            *((name, "u8") for name in pointers),
            *((name, "i8") for name in ("residual_row", "c_row", "c_batch", "c_head")),
            *((name, "i4") for name in sizes),
            *((name, "f4") for name in ("scale", "eps", "magnitude")),
        ),
        threads=config.threads,
        smem_bytes=config.smem_bytes(epilogue),
        arch="90a",
        waits=True,
        prelude=wgmma(t, (config.n,)),
        cluster=config.ctas,
    )
