"""pytest -p closeness (PYTHONPATH=scratch): how near each test came to its tolerance.

Wraps numpy.testing.assert_allclose, numpy.allclose and stof_cupy.testing.assert_close; writes the largest
error / allowed of every test as "ratio kind test" to $CLOSENESS, default closeness.txt.
"""

import os

import numpy as np

_now = [""]
_worst = {}


def _note(kind, ratio):
    key = (_now[0], kind)
    _worst[key] = max(_worst.get(key, 0.0), float(ratio))


def _ratio(a, b, rtol, atol):
    try:
        a, b = (np.asarray(x.get() if hasattr(x, "get") else x).astype(np.float64) for x in (a, b))
        with np.errstate(all="ignore"):
            r = np.abs(a - b) / (atol + rtol * np.abs(b))
        r = r[np.isfinite(r)]
        return r.max(initial=0)
    except Exception:
        return 0.0


_allclose, _np_allclose = np.testing.assert_allclose, np.allclose


def assert_allclose(actual, desired, rtol=1e-7, atol=0, *args, **kwargs):
    _note("assert_allclose", _ratio(actual, desired, rtol, atol))
    return _allclose(actual, desired, rtol, atol, *args, **kwargs)


def np_allclose(a, b, rtol=1e-5, atol=1e-8, equal_nan=False):
    _note("allclose", _ratio(a, b, rtol, atol))
    return _np_allclose(a, b, rtol, atol, equal_nan)


np.testing.assert_allclose, np.allclose = assert_allclose, np_allclose

import stof_cupy.testing as testing  # noqa: E402

_close = testing.assert_close


def assert_close(got, exact, lowprec):
    try:
        g = np.asarray(got.get() if hasattr(got, "get") else got)
        allowed = testing.budget(exact, lowprec, g.dtype)
        e = np.abs(g.astype(np.float64) - np.asarray(exact, np.float64))
        e = e[np.isfinite(e)]
        if allowed:
            _note("assert_close", e.max(initial=0) / allowed)
    except Exception:
        pass
    return _close(got, exact, lowprec)


testing.assert_close = assert_close


def pytest_runtest_logstart(nodeid, location):
    _now[0] = nodeid


def pytest_sessionfinish(session, exitstatus):
    with open(os.environ.get("CLOSENESS", "closeness.txt"), "w") as f:
        for (test, kind), ratio in sorted(_worst.items(), key=lambda x: -x[1]):
            f.write(f"{ratio:.3f} {kind} {test}\n")
