"""The epilogues of GEMM kernels: which stages of ``cuda/epilogue/`` they chain."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ACTIVATIONS", "EPILOGUE_PARAMS", "PLAIN", "EpilogueKind"]

ACTIVATIONS = {"gelu": "Gelu", "gelu_tanh": "GeluTanh", "relu": "Relu", "silu": "Silu"}
"""The functions of ``cuda/activation.cuh`` by their names here."""


@dataclass(frozen=True)
class EpilogueKind:
    """``activation(turned(scale * normed(a @ b) + bias)) + residual``: what is asked for of it.

    If `gated`, ``activation`` is of the first half of the columns, and multiplies the second.
    `rotary` is None, "neighbours" or the head dim of halves that are turned. If `heads`, columns
    are stored as ``(batch, heads, seq, head_dim)``, and `statistics` of rows may be told.

    Examples
    --------
    >>> EpilogueKind(bias=True, activation="gelu").name
    '_bias_gelu'
    >>> EpilogueKind(activation="silu", gated=True).type
    'stof::epilogue::Chain<stof::epilogue::Gate<stof::activation::Silu>>'
    """

    scale: bool = False
    bias: bool = False
    activation: str | None = None
    gated: bool = False
    residual: bool = False
    normed: bool = False
    rotary: str | int | None = None
    statistics: bool = False
    heads: bool = False

    @property
    def rows_alone(self) -> bool:
        """Whether nothing is done but to single elements, which are stored in rows."""
        return not (self.normed or self.rotary or self.statistics or self.heads)

    @property
    def stages(self) -> tuple[tuple[str, str], ...]:
        """Names and C++ types of the stages in order."""
        found = []
        if self.normed:
            found.append(("normed", "Normed"))
        if self.scale:
            found.append(("scale", "Scale"))
        if self.bias:
            found.append(("bias", "Bias"))
        if self.rotary == "neighbours":
            found.append(("turned", "TurnNeighbours"))
        elif self.rotary is not None:
            found.append((f"turned{self.rotary}", f"TurnHalves<{self.rotary}>"))
        if self.activation is not None:
            stage = "Gate" if self.gated else "Activate"
            function = f"stof::activation::{ACTIVATIONS[self.activation]}"
            name = self.activation + ("_gate" if self.gated else "")
            found.append((name, f"{stage}<{function}>"))
        if self.residual:
            found.append(("residual", "Residual"))
        if self.statistics:
            found.append(("statistics", "Statistics"))
        if self.heads:
            found.append(("heads", "Heads"))
        return tuple(found)

    @property
    def apart(self) -> int:
        """How far apart columns are that are computed together; 0 if none are."""
        return self.rotary // 2 if isinstance(self.rotary, int) else 0

    @property
    def halves(self) -> int:
        """Columns of B for one of the output."""
        return 2 if self.gated else 1

    @property
    def name(self) -> str:
        """What distinguishes a kernel with this epilogue from others."""
        return "".join(f"_{name}" for name, _ in self.stages)

    @property
    def type(self) -> str:
        """The C++ type."""
        chain = ", ".join(f"stof::epilogue::{type_}" for _, type_ in self.stages)
        return f"stof::epilogue::Chain<{chain}>"


EPILOGUE_PARAMS = (
    *("row_statistics", "column_sums", "positions", "frequency", "statistics"),
    *("c_batch", "c_head", "turned", "half", "head_dim", "seq", "magnitude"),
)
"""Fields of both kernels' parameters that only some epilogues read."""

PLAIN = EpilogueKind()
