"""Local response normalisation against its formula, channel by channel in float64."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from taihu.kernels.nn.response_norm import Response, response_norm, response_norm_gradient

_SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 2), st.integers(1, 20))
_RESPONSES = st.builds(
    Response, st.sampled_from([1, 3, 5, 9]), st.floats(0, 2), st.sampled_from([0.75, 0.5, 1.3]), st.floats(0.5, 2)
)


def _near(channel: int, channels: int, size: int) -> range:
    return range(max(0, channel - size // 2), min(channels, channel + size // 2 + 1))


def _scales(row: NDArray[Any], response: Response) -> list[float]:
    size, alpha, _, k = response
    squares = row.astype(np.float64) ** 2
    return [k + alpha / size * sum(squares[j] for j in _near(c, len(row), size)) for c in range(len(row))]


def _jacobian(row: NDArray[Any], response: Response) -> NDArray[np.float64]:
    """dy_c / dx_j."""
    size, alpha, beta, _ = response
    scales, channels = _scales(row, response), len(row)
    slopes = np.diag([scale**-beta for scale in scales])
    for c in range(channels):
        for j in _near(c, channels, size):
            slopes[c, j] -= row[c] * beta * scales[c] ** (-beta - 1) * 2 * alpha / size * row[j]
    return slopes


@settings(deadline=None, max_examples=30)
@given(_SHAPES, _RESPONSES, st.sampled_from([np.float32, np.float64]), st.integers(0, 99), st.booleans())
def test_the_formula_and_its_gradient(
    shape: tuple[int, int, int], response: Response, dtype: Any, seed: int, over: bool
) -> None:
    generator = np.random.default_rng(seed)
    x, dy = (generator.standard_normal(shape).astype(dtype) for _ in range(2))
    scales, y = np.full_like(x, np.nan), np.full_like(x, np.nan)
    gradient = dy.copy()
    dx = gradient if over else np.full_like(x, np.nan)
    scratch = np.full((2, 3, shape[2] + response.size - 1), np.nan, dtype)
    half = shape[0] // 2
    for first, last, lane in ((half, shape[0], 1), (0, half, 0)):
        response_norm(x, scales, y, response, scratch[:, :2], first, last, lane)
        response_norm_gradient(x, scales, gradient, dx, response, scratch, first, last, lane)
    rows = list(np.ndindex(*shape[:2]))
    expected_y = [x[at] * np.array(_scales(x[at], response)) ** -response.beta for at in rows]
    expected_dx = [dy[at].astype(np.float64) @ _jacobian(x[at], response) for at in rows]
    tolerance = 1e-5 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(y.reshape(-1, shape[2]), expected_y, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(dx.reshape(-1, shape[2]), expected_dx, rtol=10 * tolerance, atol=10 * tolerance)
