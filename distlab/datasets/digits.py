"""The UCI handwritten digits as a TFDS data set: 1,797 real images, no download.

scikit-learn carries the data; a builder of TensorFlow Datasets writes it as TFRecord shards, so
that `tfds.load("digits")` takes the same path as any large data set.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import tensorflow_datasets as tfds

TEST_EXAMPLES = 360

_DESCRIPTION = """
Handwritten digits of 8x8 pixels, from the test part of "Optical Recognition of Handwritten Digits"
(E. Alpaydin, C. Kaynak, 1998, UCI Machine Learning Repository, CC BY 4.0), as scikit-learn carries
them. Pixels, 0 to 16 in the original, are scaled to 0 to 255. The split is drawn once, with a fixed
seed: 1,437 training and 360 test images.
"""


class Digits(tfds.core.GeneratorBasedBuilder):  # type: ignore[misc]  # TFDS is untyped
    """Builds "digits": an 8x8 grey image and its label."""

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES: ClassVar[dict[str, str]] = {"1.0.0": "First version."}

    def _info(self) -> Any:
        return self.dataset_info_from_configs(
            description=_DESCRIPTION,
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(shape=(8, 8, 1), dtype=np.uint8),
                    "label": tfds.features.ClassLabel(num_classes=10),
                }
            ),
            supervised_keys=("image", "label"),
            homepage="https://doi.org/10.24432/C50P49",
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        from sklearn.datasets import load_digits

        pixels, labels = load_digits(return_X_y=True)
        images = np.round(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
        order = np.random.default_rng(0).permutation(len(images))
        return {
            "train": self._generate_examples(images, labels, order[TEST_EXAMPLES:]),
            "test": self._generate_examples(images, labels, order[:TEST_EXAMPLES]),
        }

    def _generate_examples(self, images: Any, labels: Any, chosen: Any) -> Iterator[Any]:
        for index in chosen:
            yield int(index), {"image": images[index], "label": int(labels[index])}
