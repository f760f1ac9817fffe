"""What cuDNN is told of windows and sequences, beside SDPA with the dense mask."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import cudnn_graphs
import documents_peer
import pytest

torch = pytest.importorskip("torch")
sdpa = torch.nn.functional.scaled_dot_product_attention


class Place:
    """A tensor of a graph."""

    def __init__(self, dim: Any = None, stride: Any = None) -> None:
        self.dim, self.stride, self.ragged_offset, self.output = dim, stride, None, False

    def get_dim(self) -> Any:
        return self.dim

    def get_stride(self) -> Any:
        return self.stride

    def set_output(self, value: bool) -> Place:
        self.output = value
        return self

    def set_dim(self, value: Any) -> Place:
        self.dim = value
        return self

    def set_stride(self, value: Any) -> Place:
        self.stride = value
        return self

    def set_ragged_offset(self, value: Place) -> None:
        self.ragged_offset = value


class Graph:
    """A graph of cuDNN that keeps what it is told and reads memory by that alone."""

    def __init__(self, **how: Any) -> None:
        assert how["io_data_type"] == "HALF"
        assert how["intermediate_data_type"] == how["compute_data_type"] == "FLOAT"

    def tensor(self, *, dim: Any, stride: Any) -> Place:
        return Place(dim, stride)

    def tensor_like(self, x: Any) -> Place:
        return Place(tuple(x.shape), x.stride())

    def sdpa(self, **how: Any) -> tuple[Place, None]:
        assert not how["generate_stats"]
        assert how["diagonal_alignment"] == "TOP_LEFT"
        self.told, self.out = how, Place()
        return self.out, None

    def build(self, heuristics: list[str]) -> None:
        assert heuristics == ["A", "FALLBACK"]
        assert self.out.output

    def get_workspace_size(self) -> int:
        return 0

    def execute(self, arrays: dict[Place, Any], workspace: Any, handle: str) -> None:
        assert (handle, workspace.dtype) == ("handle", torch.uint8)
        told, places = self.told, (*(self.told[name] for name in "qkv"), self.out)
        each = [self._sequences(arrays, place) for place in places]
        for q, k, v, out in zip(*each, strict=True):
            ahead = torch.arange(k.shape[-2]) - torch.arange(q.shape[-2])[:, None]
            keep = ahead > -told.get("diagonal_band_left_bound", 1 << 30)
            keep &= ahead <= told.get("diagonal_band_right_bound", 1 << 30)
            how = {"scale": told["attn_scale"], "enable_gqa": len(q) != len(k)}
            out.copy_(sdpa(q[None], k[None], v[None], attn_mask=keep, **how)[0])

    def _sequences(self, arrays: dict[Place, Any], place: Place) -> list[Any]:
        """Return views (heads, seq, head_dim) of a tensor's memory."""
        count, heads, longest, dim = place.dim
        batch, *strides = place.stride
        begins, lengths = [batch * i for i in range(count)], [longest] * count
        if place.ragged_offset is not None:
            assert self.told["use_padding_mask"]
            assert self.told["seq_len_kv"] is self.told["seq_len_q"]
            begins = arrays[place.ragged_offset].flatten().tolist()
            lengths = arrays[self.told["seq_len_q"]].flatten().tolist()
            assert (len(begins), len(lengths)) == (count + 1, count)
            assert max(lengths) == longest
        return [
            arrays[place].as_strided((heads, length, dim), strides, begin)
            for begin, length in zip(begins, lengths, strict=False)
        ]


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Put a cuDNN there; return the streams that it is given."""
    given: list[int] = []
    module = SimpleNamespace(
        data_type=SimpleNamespace(BFLOAT16="BFLOAT16", HALF="HALF", FLOAT="FLOAT"),
        diagonal_alignment=SimpleNamespace(TOP_LEFT="TOP_LEFT"),
        heur_mode=SimpleNamespace(A="A", FALLBACK="FALLBACK"),
        create_handle=lambda: "handle",
        set_stream=lambda handle, stream: given.append(stream),
        pygraph=Graph,
    )
    monkeypatch.setitem(sys.modules, "cudnn", module)
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=len(given))
    )
    cudnn_graphs._handle.cache_clear()
    return given


def assert_close(got: Any, wanted: Any) -> None:
    torch.testing.assert_close(got, wanted, atol=2e-3, rtol=0)  # in float16; results are near 1


def qkv(kv_heads: int = 4) -> list[Any]:
    g = torch.Generator().manual_seed(0)
    return [torch.randn(2, heads, 50, 8, generator=g).half() for heads in (4, kv_heads, kv_heads)]


@pytest.mark.parametrize(("before", "after"), [(7, 7), (7, 0), (None, 0), (None, None)])
def test_windows(streams: list[int], before: int | None, after: int | None) -> None:
    q, k, v = qkv()
    q = q.transpose(1, 2).contiguous().transpose(1, 2)
    ahead = torch.arange(50) - torch.arange(50)[:, None]
    keep = (-ahead <= (50 if before is None else before)) & (
        ahead <= (50 if after is None else after)
    )
    run = cudnn_graphs.windowed(q, k, v, before, after)
    for _ in range(2):
        assert_close(run(), sdpa(q, k, v, attn_mask=keep))
    assert streams == [0, 1]  # the current one, at each call


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_sequences(streams: list[int], kv_heads: int) -> None:
    q, k, v = qkv(kv_heads)
    documents = torch.sort(torch.randint(0, 9, (50,), generator=torch.Generator().manual_seed(1)))
    at = torch.arange(50)
    dense = (documents.values[:, None] == documents.values) & (at[:, None] >= at)
    cell: Any = SimpleNamespace(shape=(2, 4, kv_heads, 50, 50, 8))
    run = documents_peer.prepared(cell, q, k, v, documents.values, dense, cudnn_graphs.sequences())
    for _ in range(2):
        assert_close(run(), sdpa(q, k, v, attn_mask=dense, enable_gqa=kv_heads != 4))
    assert streams == [0, 1]
