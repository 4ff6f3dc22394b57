"""T between measured points is a straight line; beyond them it is marked as an extension, and never
falls.
"""

import numpy as np
import pytest

from specbench.profile import Fit, Grid, Profile


def grid(ms, fed=(1, 4, 8), contexts=(100, 500)) -> Grid:
    ms = np.array(ms, dtype=float)
    return Grid(np.array(fed, float), np.array(contexts, float), ms, 0.1 * ms, np.zeros_like(ms))


MEASURED = grid([[2, 5, 6], [4, 7, 10]])


@pytest.mark.parametrize(
    ("fed", "context", "expected"),
    [(1, 100, 2), (8, 500, 10), (2, 100, 3), (1, 300, 3), (6, 300, (5.5 + 8.5) / 2), (8, 100, 6)],
)
def test_measured_points_and_straight_lines_between(fed, context, expected):
    assert MEASURED.forward_ms([fed], [context])[0] == pytest.approx(expected)
    assert MEASURED.rest_ms([fed], [context])[0] == pytest.approx(0.1 * expected)
    assert not MEASURED.outside([fed], [context])[0]


def test_beyond_the_grid_is_an_extension_and_a_fit_is_its_formula():
    assert MEASURED.forward_ms([12], [100])[0] == pytest.approx(7)  # 0.25 ms a token from 4 to 8
    assert MEASURED.forward_ms([1], [900])[0] == pytest.approx(6)
    assert MEASURED.outside([12, 1, 8], [100, 900, 100]).tolist() == [True, True, False]
    assert MEASURED.forward_ms([4], [10])[0] == pytest.approx(5)
    assert MEASURED.outside([4], [10])[0]
    falling = grid([[2, 5, 4], [2, 5, 4]])
    assert falling.forward_ms([100], [100])[0] == pytest.approx(4)
    one = grid([[2, 5, 6]], contexts=(100,))
    assert one.forward_ms([4, 4], [1, 5000]).tolist() == [5, 5]
    fit = Fit(base_ms=5.0, per_fed_us=20.0, per_context_us=0.5, host_ms=1.0)
    assert fit.forward_ms([1, 10], [1000, 0]).tolist() == pytest.approx([5.52, 5.2])
    assert fit.rest_ms([1, 10], [0, 0]).tolist() == [1, 1]
    assert not fit.outside([10_000], [10**6]).any()


def test_requests_that_share_a_forward_do_not_attend_to_each_others_drafts():
    """Of a forward that costs 0.1 ms a token and 1 us a token and key."""

    def time_ms(fed, keys):
        return 1.0 + 0.1 * fed + 1e-3 * fed * keys

    fed, contexts = np.array([1.0, 64.0, 128.0, 256.0, 512.0]), np.array([50.0, 1000.0])
    grid = np.array([[time_ms(count, context + count) for count in fed] for context in contexts])
    profile = Profile(
        "cpu",
        "m",
        "fast",
        "float32",
        "measured",
        Grid(fed, contexts, grid, 0 * grid, 0 * grid),
        "2026",
    )
    for requests, own in ((4, 64), (8, 32), (2, 128), (8, 64)):
        wanted = time_ms(requests * own, 200 + own)
        read = profile.forward_ms(1.0, 200 * requests) - profile.forward_ms(1.0, 200)
        found = profile.shared_ms(requests * own, 200, requests) - read
        assert found == pytest.approx(wanted, rel=0.02)
        assert profile.step_ms(requests * own, 200) > 1.1 * wanted
    assert profile.shared_ms(64, 200, 1) == pytest.approx(profile.step_ms(64, 200))
