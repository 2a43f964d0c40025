"""The picture of lesson 14 shows the mean and the spread of the seeds for each way."""

import numpy as np

from distlab.pictures.label_curve import draw_label_curve, recorded_accuracies

ACCURACIES = {"scratch": {1: [0.2, 0.4], 10: [0.5, 0.7]}, "frozen": {1: [0.6, 0.6], 10: [0.8, 0.8]}}


def test_it_draws_means_and_deviations():
    figure = draw_label_curve(ACCURACIES, ("scratch", "frozen"))
    (axes,) = figure.axes
    lines = [container.lines for container in axes.containers]
    np.testing.assert_allclose(np.asarray(lines[0][0].get_ydata(), float), [0.3, 0.6])
    np.testing.assert_allclose(np.asarray(lines[1][0].get_ydata(), float), [0.6, 0.8])
    lower, upper = (np.asarray(cap.get_ydata(), float) for cap in lines[0][1])
    np.testing.assert_allclose(upper - lower, [0.2, 0.2])
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["scratch", "frozen"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("labels a class", "test accuracy")


def test_the_alternative_text_says_every_mean():
    figure = draw_label_curve(ACCURACIES, ("scratch",))
    assert figure.alt == (
        "Test accuracy by the number of labels a class, with error bars. "
        "scratch: 30% with 1, 60% with 10."
    )


def test_every_way_was_recorded_with_the_same_seeds():
    recorded = recorded_accuracies()
    assert {"scratch", "frozen", "fine-tuned", "leaky"} <= set(recorded)
    shapes = {np.shape(list(by_labels.values())) for by_labels in recorded.values()}
    assert len(shapes) == 1
