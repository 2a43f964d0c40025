"""The picture of epochs shows each image where it came, and says in words what repeats."""

import numpy as np

from distlab.pictures.epoch_orders import draw_epochs

IMAGES = np.linspace(0, 1, 4 * 4).reshape(4, 2, 2, 1)


def epochs(*orders, shifts=(0, 0)):
    return [
        [(number, np.roll(IMAGES[number], shift, axis=1)) for number in order]
        for order, shift in zip(orders, shifts, strict=True)
    ]


def test_each_epoch_is_a_row_with_a_space_between_batches():
    (axes,) = draw_epochs({"a": epochs([0, 1, 2, 3], [3, 1, 2, 0])}, batch=2).axes
    left = [image.get_extent()[0] for image in axes.images[:4]]
    gaps = np.diff(left)
    assert gaps[1] > gaps[0] == gaps[2]
    numbers = [text.get_text() for text in axes.texts if text.get_text().isdigit()]
    assert "".join(numbers) == "01233120"


def test_the_words_count_orders_batches_and_versions():
    frozen = epochs([0, 1, 2, 3], [0, 1, 2, 3])
    fresh = epochs([0, 1, 2, 3], [2, 0, 1, 3], shifts=(0, 1))
    words = draw_epochs({"frozen": frozen, "fresh": fresh}, batch=2).alt
    counts = "Different orders: {}. Different batches: {}. Versions of one image: at most {}."
    of = "2 epochs of 4 images."
    told = (f"frozen: {of} {counts.format(1, 2, 1)}", f"fresh: {of} {counts.format(2, 4, 2)}")
    assert words == " ".join(told)
