"""The published runs are as their sources state, and the model's errors are those of the lesson."""

from dataclasses import replace

import keras
import pytest

from distlab.measure.published import (
    PUBLISHED,
    RESNET_50,
    RESNET_101,
    VGG_16,
    hidden_share,
    model_of,
    predicted_efficiency,
)

LATENCY_SECS = 10e-6


def test_the_parameters_of_resnet_50_are_those_that_keras_counts():
    assert keras.applications.ResNet50(weights=None).count_params() == RESNET_50.parameters


def test_a_run_has_float32_gradients_and_a_link_in_bytes():
    assert VGG_16.sizes == {"per_replica_batch": 64, "gradient_bytes": 4 * 138_357_544}
    model = model_of(VGG_16, hidden=0.0, latency_secs=0.0)
    assert model.all_reduce_secs(512, VGG_16.sizes["gradient_bytes"]) == pytest.approx(
        2 * 511 / 512 * 4 * 138_357_544 * 8 / 25e9
    )


def test_the_hidden_share_gives_the_efficiency_to_which_it_is_fitted():
    hidden = hidden_share(RESNET_101, latency_secs=LATENCY_SECS)
    model = model_of(RESNET_101, hidden=hidden, latency_secs=LATENCY_SECS)
    assert model.efficiency(512, **RESNET_101.sizes) == pytest.approx(0.90)


def test_the_other_four_runs_are_predicted_with_the_errors_that_the_lesson_states():
    hidden = hidden_share(RESNET_101, latency_secs=LATENCY_SECS)
    points = {}
    for run in PUBLISHED[1:]:
        said = predicted_efficiency(run, hidden=hidden, latency_secs=LATENCY_SECS)
        error = said - run.efficiency
        points[run.network, run.gpus] = round(100 * error, 1)
    assert points == {
        ("Inception V3", 512): 3.4,
        ("VGG-16", 512): 4.0,
        ("VGG-16", 128): -6.4,
        ("ResNet-50", 256): 3.2,
    }


def test_the_shortest_step_loses_most_to_the_rounds():
    hidden = hidden_share(RESNET_101, latency_secs=LATENCY_SECS)
    left = {}
    for run in PUBLISHED:
        model = model_of(run, hidden=hidden, latency_secs=LATENCY_SECS)
        few, many = (model.efficiency(gpus, **run.sizes) for gpus in (512, 4096))
        left[run.network] = many / few
    assert min(left, key=left.get) == "ResNet-50"
    assert max(left, key=left.get) == "VGG-16"


def test_with_a_latency_of_1_us_no_network_loses_more_than_2_percent_to_the_rounds():
    hidden = hidden_share(RESNET_101, latency_secs=LATENCY_SECS)
    for run in PUBLISHED:
        model = model_of(run, hidden=hidden, latency_secs=1e-6)
        few, many = (model.efficiency(gpus, **run.sizes) for gpus in (512, 4096))
        assert 0.98 < many / few < 1


def test_vgg_16_needs_a_link_of_about_100_gbit_for_90_percent():
    hidden = hidden_share(RESNET_101, latency_secs=LATENCY_SECS)
    reached = [
        predicted_efficiency(
            replace(VGG_16, link_bits_per_sec=1e9 * gbit), hidden=hidden, latency_secs=LATENCY_SECS
        )
        for gbit in (90, 100)
    ]
    assert reached[0] < 0.90 < reached[1]
