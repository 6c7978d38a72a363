"""Numbers in words that say something."""

import pytest

from flare.cli.words import verdict


@pytest.mark.parametrize(
    ("error", "baseline", "said"),
    [
        (0.1, 0.35, "ours is 3.5 times better"),
        (0.98, 1.0, "ours is 2.0% better"),
        (1.02, 1.0, "ours is WORSE by 2.0%"),
        (1.0, 1.0, "ours is WORSE by 0.0%"),
        (1.5, 1.0, "ours is WORSE, 1.5 times its error"),
        (0.0, 1.0, "ours is exact"),
    ],
)
def test_a_ratio_near_one_is_a_percentage(error, baseline, said):
    assert verdict(error, baseline) == said
