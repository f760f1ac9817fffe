"""The wgmma instructions of a kernel, written out: each names all of its accumulator registers."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["wgmma"]


def wgmma(dtype: str, sizes: Iterable[int]) -> str:
    """Return specialisations of ``stof::ptx::Wgmma`` (``cuda/ptx/wgmma.cuh``).

    Parameters
    ----------
    dtype : {"f16", "bf16"}
        Of the operands, as ``cuda/types.cuh`` names it.
    sizes : iterable of int
        The columns N of the products, multiples of 8 up to 256; repetitions count once.

    Examples
    --------
    >>> text = wgmma("bf16", (128, 64, 128))
    >>> text.count("struct"), text.count("m64n128k16.f32.bf16.bf16")
    (2, 4)
    """
    return "namespace stof::ptx {\n" + "".join(_one(dtype, n) for n in sorted(set(sizes))) + "}\n"


def _one(dtype: str, n: int) -> str:
    """Return the specialisation for one N."""
    count = n // 2
    d = ",".join(f"%{i}" for i in range(count))
    both = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    name = f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{dtype}.{dtype}"
    a = ",".join(f"%{count + i}" for i in range(4))
    products = "".join(
        f"""\
  template <int kTransposedA, int kTransposedB>
  static __device__ __forceinline__ void {called}(float (&d)[{count}], u64 a, u64 b) {{
    asm volatile(
        "{{.reg .pred p; setp.ne.b32 p, {added}, 0;\\n"
        "{name} {{{d}}}, %{count}, %{count + 1}, p, 1, 1, %{count + 2}, %{count + 3};}}\\n"
        : {sums}
        : "l"(a), "l"(b), "n"(kTransposedA), "n"(kTransposedB));
  }}
"""
        for called, added, sums in (("product", 1, both), ("first", 0, both.replace("+", "=")))
    )
    return f"""
template <>
struct Wgmma<{dtype}, {n}> {{
  static __device__ __forceinline__ void qk(float (&d)[{count}], u64 a, u64 b, bool accumulate) {{
    asm volatile(
        "{{.reg .pred p; setp.ne.b32 p, %{count + 2}, 0;\\n"
        "{name} {{{d}}}, %{count}, %{count + 1}, p, 1, 1, 0, 0;}}\\n"
        : {both}
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
  }}
{products}  static __device__ __forceinline__ void pv(float (&d)[{count}], const u32* a, u64 b) {{
    asm volatile(
        "{{.reg .pred p; setp.ne.b32 p, 1, 0;\\n"
        "{name} {{{d}}}, {{{a}}}, %{count + 4}, p, 1, 1, 1;}}\\n"
        : {both}
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }}
}};
"""
