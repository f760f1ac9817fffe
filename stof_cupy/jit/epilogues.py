"""The epilogues of GEMM kernels: which stages of ``cuda/epilogue/`` they chain."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ACTIVATIONS", "PLAIN", "EpilogueKind"]

ACTIVATIONS = {"gelu": "Gelu", "gelu_tanh": "GeluTanh", "relu": "Relu", "silu": "Silu"}
"""The functions of ``cuda/activation.cuh`` by their names here."""


@dataclass(frozen=True)
class EpilogueKind:
    """``activation(scale * a @ b + bias) + residual``, of which a kernel has what is asked for.

    If `gated`, ``activation`` is of the first half of the columns, and multiplies the second.

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

    @property
    def stages(self) -> tuple[tuple[str, str], ...]:
        """Names and C++ types of the stages in order."""
        found = []
        if self.scale:
            found.append(("scale", "Scale"))
        if self.bias:
            found.append(("bias", "Bias"))
        if self.activation is not None:
            stage = "Gate" if self.gated else "Activate"
            function = f"stof::activation::{ACTIVATIONS[self.activation]}"
            name = self.activation + ("_gate" if self.gated else "")
            found.append((name, f"{stage}<{function}>"))
        if self.residual:
            found.append(("residual", "Residual"))
        return tuple(found)

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


PLAIN = EpilogueKind()
