"""Pathfinder: the published drawing rules, labels confirmed by flood fill, and errors that name the file."""

import numpy as np
import pytest
from PIL import Image
from scipy.ndimage import binary_dilation, label

from flare.sequence.files import read_sequences
from flare.sequence.pathfinder import Pathfinder, PathfinderFiles, draw
from flare.sequence.pathfinder_drawing import available, block_border, make_stamps, stamp_at
from flare.utils.errors import ConfigError, DataError


def test_a_dash_is_drawn_as_the_published_generator_does():
    dashes = make_stamps(2, 0.5, 1)
    k = stamp_at(dashes, 0.0)
    line, mask = (np.rint(255 * a[k]).astype(int) for a in (dashes.line, dashes.mask))
    assert dashes.reach == 4
    assert line[4].tolist() == [0, 0, 2, 0, 102, 135, 116, 0, 0]
    assert not np.delete(line, 4, axis=0).any()
    assert mask[3].tolist() == mask[5].tolist() == [0, 1, 2, 20, 173, 204, 186, 28, 0]
    assert mask[4].tolist() == [0, 3, 0, 155, 255, 255, 255, 183, 3]
    assert len({stamp_at(dashes, np.deg2rad(float(degree))) for degree in range(-180, 180)}) == 30


@pytest.mark.parametrize(("border", "counts"), [(14, {6: 12, 9: 18}), (1, {812: 12, 841: 18})])
def test_the_published_border_leaves_thirty_directions(border, counts):
    dashes, mask, found = make_stamps(2, 0.5, 1), np.zeros((32, 32)), {}
    block_border(mask, 1)
    for degree in range(-180, 180):
        places = len(available(mask, dashes, stamp_at(dashes, np.deg2rad(float(degree))), border, True))
        if places:
            found[places] = found.get(places, 0) + 1
            assert -150 <= degree <= -121
    assert found == counts


DISCS = {
    32: [[228, 254, 133], [255, 255, 190], [132, 178, 55]],
    128: [
        [252, 255, 255, 255, 178],
        [255, 246, 251, 250, 253],
        [252, 251, 254, 252, 244],
        [255, 253, 253, 255, 243],
        [178, 246, 254, 235, 77],
    ],
}
"""Pixels per side -> brightness of a disc around its center, of 255."""


def find_discs(image):
    """Return the centers of the two discs and their brightness, from the pixels alone."""
    disc = np.array(DISCS[len(image)])
    views = np.lib.stride_tricks.sliding_window_view(image.astype(float), disc.shape)
    fits = (views / disc).min((2, 3))  # the brightest disc that these pixels allow
    places = np.argsort(fits, axis=None)[-2:]
    centers = np.stack(np.unravel_index(places, fits.shape), axis=1) + len(disc) // 2
    return centers, float(fits.flat[places[0]])


def visible_label(scene, gap):
    """Return the label that can be seen in the image, or None.

    The discs are found in the image at their recorded positions, and both paths are in the image. Then each path alone
    is flood filled with the gaps of its dashed line closed.
    """
    discs, level = find_discs(scene.image)
    lit = scene.image / (255 * max(level, 1e-3))
    target = 1.5 if len(lit) == 32 else 0.9
    if sorted(discs.tolist()) != sorted(scene.discs.tolist()) or (lit < target * scene.paths - 0.03).any():
        return None
    axis = np.arange(-gap, gap + 1)
    under = []
    for path in scene.paths:
        closed = binary_dilation(path > 0.2, structure=axis[:, None] ** 2 + axis**2 <= gap**2)
        _, count = label(closed, structure=np.ones((3, 3)))
        assert count == 1, "a path is in one piece"
        under.append([path[y, x] > 0.2 for y, x in discs])
    return int(np.all(under, axis=1).any()) if np.any(under, axis=0).all() else None


@pytest.mark.parametrize(
    ("count", "border", "size"),
    [
        (50, "published", 32),
        (50, "occupied", 32),
        pytest.param(1000, "published", 32, marks=pytest.mark.slow),
        pytest.param(1000, "occupied", 32, marks=pytest.mark.slow),
        pytest.param(30, "published", 128, marks=pytest.mark.slow),
    ],
)
def test_labels_are_confirmed_by_flood_fill(count, border, size):
    scenes = [draw(np.random.default_rng([1, index]), size=size, border=border) for index in range(count)]
    assert all(visible_label(scene, 2 if size == 32 else 4) == scene.label for scene in scenes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("border", "attempts", "distractors", "mean", "deviation", "lit"),
    [("published", 320, 1.1, 20.2, 51.1, 0.34), ("occupied", 27, 4.6, 27.8, 58.0, 0.45)],
)
def test_statistics_are_those_of_the_published_generator(border, attempts, distractors, mean, deviation, lit):
    """Tolerances are the spread of 1,200 images and the digits given."""
    scenes = [draw(np.random.default_rng([0, index]), border=border) for index in range(4000)]
    pixels = np.stack([scene.image for scene in scenes]).astype(float)
    assert np.mean([scene.attempts for scene in scenes]) == pytest.approx(attempts, rel=0.08)
    assert np.mean([scene.distractors for scene in scenes]) == pytest.approx(distractors, abs=0.08)
    assert pixels.mean() == pytest.approx(mean, rel=0.01)
    assert pixels.std() == pytest.approx(deviation, rel=0.01)
    assert (pixels > 0).mean() == pytest.approx(lit, abs=0.01)
    assert np.mean([scene.label for scene in scenes]) == pytest.approx(0.5, abs=0.025)


def test_the_brightness_of_a_few_images_is_that_of_the_published():
    pixels = np.stack([draw(np.random.default_rng([0, index])).image for index in range(200)]).astype(float)
    assert pixels.mean() == pytest.approx(20.2, rel=0.05)
    assert pixels.std() == pytest.approx(51.1, rel=0.03)
    assert (pixels.min(), pixels.max()) == (0, 255)


def test_impossible_images_are_refused():
    with pytest.raises(ConfigError, match="size=33"):
        draw(np.random.default_rng(0), size=33)
    with pytest.raises(ConfigError, match="dashes=2"):
        Pathfinder(dashes=2)


def write(root, count=20):
    """Write two batches in the published layout."""
    scenes = [draw(np.random.default_rng([9, index])) for index in range(count)]
    level = root / "curv_contour_length_14"
    for batch in (0, 1):
        rows = []
        for folder in ("metadata", f"imgs/{batch}"):
            (level / folder).mkdir(parents=True, exist_ok=True)
        for index, scene in list(enumerate(scenes))[batch::2]:
            Image.fromarray(scene.image).save(level / "imgs" / str(batch) / f"sample_{index}.png")
            rows.append(f"imgs/{batch} sample_{index}.png {index} {scene.label} 1.0 14 4 2 0.5 1 1\n")
        (level / "metadata" / f"{batch}.npy").write_text("".join(rows))
    return scenes


def test_the_published_files_are_read_without_empty_images(tmp_path):
    scenes = write(tmp_path, 21)
    (tmp_path / "curv_contour_length_14" / "imgs" / "0" / "sample_20.png").write_bytes(b"")
    dataset = read_sequences(PathfinderFiles(folder=str(tmp_path)), tmp_path / "d", quiet=True)
    assert [len(dataset.split(name)) for name in ("train", "val", "test")] == [16, 2, 2]
    known = {scene.image.tobytes(): scene.label for scene in scenes[:20]}
    assert {dataset[i].tokens.tobytes(): dataset[i].label for i in range(20)} == known


def spoil_label(root):
    path = root / "metadata" / "1.npy"
    path.write_text(path.read_text().replace(" 3 0 1.0", " 3 7 1.0").replace(" 3 1 1.0", " 3 7 1.0"))


def spoil_image(root):
    path = root / "imgs" / "0" / "sample_6.png"
    path.write_bytes(path.read_bytes()[:-60])


@pytest.mark.parametrize(
    ("spoil", "fact"),
    [
        (spoil_label, "metadata/1.npy, line 2: "),
        (spoil_image, "imgs/0/sample_6.png: "),
        (lambda root: (root / "imgs/1/sample_3.png").unlink(), "imgs/1/sample_3.png"),
        (lambda root: (root / "metadata/0.npy").write_bytes(b"imgs\xff"), "metadata/0.npy, line 1: byte 4 is 0xff"),
        (lambda root: Image.new("RGB", (32, 32)).save(root / "imgs/0/sample_2.png"), "imgs/0/sample_2.png: .* RGB"),
    ],
)
def test_bad_files_are_named(tmp_path, spoil, fact):
    write(tmp_path)
    spoil(tmp_path / "curv_contour_length_14")
    with pytest.raises(DataError, match=fact) as error:
        read_sequences(PathfinderFiles(folder=str(tmp_path)), tmp_path / "d", quiet=True)
    assert len(str(error.value)) < 400
