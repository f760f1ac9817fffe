"""What the host does for each of 64 sequences, on CuPy's own arrays (of memory that is not there), no GPU: PYTHONPATH=. python scratch/host_rows.py"""
import timeit
import cupy, numpy as np
from stof_cupy.models import lists
from stof_cupy.models.target import Target
memory = cupy.cuda.UnownedMemory(0x7F0000000000, 1 << 30, None, 0)
def there(shape, dtype=np.int32): return cupy.ndarray(shape, dtype, memptr=cupy.cuda.MemoryPointer(memory, 0))
n = np.random.default_rng(0).integers(10, 513, 64)
x = [there((int(k),)) for k in n]
target = Target("cuda", "bfloat16", 0)
hidden = there((int(n.sum()), 384), np.float16)
given = lists._imported(x, "x")
origins = [origin for _, origin in given]
def ms(call):
    return min(timeit.repeat(call, number=20, repeat=15)) / 20 * 1e3
print(f"is_list    {ms(lambda: lists.is_list(x)):.3f} ms")
print(f"_imported  {ms(lambda: lists._imported(x, 'x')):.3f}")
print(f"_exported  {ms(lambda: lists._exported(hidden, n.tolist(), origins)):.3f}")
print(f"  views    {ms(lambda: [hidden[a:a + 9] for a in range(64)]):.3f}")
try:
    from stof_cupy.ops.packing import Column, Table
except ImportError:  # before
    def tokens():
        rows = [each[0] for each in given if each is not None]
        lengths = [0 if each is None else len(each[0]) for each in given]
        alike = {(type(row), row.ndim, row.dtype.kind) for row in rows}
        [target.put(row) for row in rows]
    print(f"_tokens    {ms(tokens):.3f}")
else:
    print(f"_tokens    {ms(lambda: lists._tokens(given, 'x', 100, target, [])):.3f}")
    rows, lengths = lists._tokens(given, "x", 100, target, [])
    print(f"alike      {ms(lambda: rows.alike()):.3f}")
    out = there((1, 20000))
    rows = rows.alike()
    def table():
        made = Table(n, 4)
        made.add(Column(rows, out)); made.add(Column(np.broadcast_to(np.int32(0), (int(n.sum()),)), out))
        made.add_counted(0, out); made.add_counted(1, out)
        made.numbers(); made.launch()
    print(f"table      {ms(table):.3f}")
