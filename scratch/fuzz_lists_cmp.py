import pickle, sys, numpy as np
a, b = (pickle.load(open(f, "rb")) for f in sys.argv[1:3])
def same(x, y):
    if isinstance(x, (list, tuple)): return type(x) == type(y) and len(x) == len(y) and all(map(same, x, y))
    if isinstance(x, dict): return x.keys() == y.keys() and all(same(x[k], y[k]) for k in x)
    if isinstance(x, np.ndarray): return x.shape == y.shape and x.tobytes() == y.tobytes()
    return x == y
n = 0
for i, (p, q) in enumerate(zip(a, b)):
    assert p[0] == q[0]
    if not same(p[1:], q[1:]):
        n += 1
        if n < 14: print(i, p[0], "\n   OLD", p[1], str(p[2])[:300], "\n   NEW", q[1], str(q[2])[:300], "" if p[1] != "ok" or q[1] != "ok" or same(p[3], q[3]) else "READS DIFFER %s %s" % (p[3], q[3]))
print(n, "of", len(a), "differ")
