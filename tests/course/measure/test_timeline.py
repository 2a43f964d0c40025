"""A profile says which thread worked when, and on what."""

import sys

import keras
import pytest
import tensorflow as tf

from distlab.course.figures.timeline import draw_timeline, one_operation
from distlab.course.measure import timeline
from distlab.course.measure.timeline import (
    COMPUTE,
    Event,
    ProfileError,
    busy_ms,
    covered_ms,
    events_in,
    kind_of,
    overlap_ms,
    record_quickest,
    record_timeline,
)
from distlab.errors import UnsupportedEnvironment


def event(start_ms, ms, kind="forward", thread="tf_Compute 1"):
    return Event(
        start_ms=start_ms, ms=ms, thread=thread, kind=kind, operation="MatMul", name="dense/MatMul"
    )


def test_tensorflow_still_has_the_class_of_a_profile_at_a_path_that_is_not_public():
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    assert {"planes"} <= set(xplane_pb2.XSpace.DESCRIPTOR.fields_by_name)


def test_a_tensorflow_without_that_class_is_refused_before_anything_runs(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow.tsl.profiler.protobuf", None)
    ran = []
    with pytest.raises(UnsupportedEnvironment, match=r"without tensorflow\.tsl") as error:
        record_timeline(lambda: ran.append(1))
    assert "open the folder in TensorBoard" in str(error.value)
    assert ran == []


@pytest.fixture(scope="module")
def fitted():
    """A timeline of three steps of Keras's own loop."""
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    data = tf.data.Dataset.from_tensor_slices((tf.ones([12, 8]), tf.ones([12, 1]))).batch(4)
    model.fit(data, verbose=0, shuffle=False)
    return record_timeline(lambda: model.fit(data, verbose=0, shuffle=False))


def test_a_fit_is_recorded_with_the_kinds_of_its_work(fitted):
    kinds = {each.kind for each in fitted}
    assert {"forward", "backward", "update", "waits"} <= kinds
    products = {each.kind for each in fitted if each.operation.endswith("MatMul")}
    assert products == {"forward", "backward"}
    assert fitted[0].start_ms == 0
    assert fitted == sorted(fitted)
    assert all("PartitionedCall" not in each.name for each in fitted)


def test_a_timeline_is_drawn_with_a_lane_a_thread_and_in_words(fitted):
    figure = draw_timeline({"fit": fitted}, title="Keras fits")
    (axes,) = figure.axes
    lanes = [label.get_text() for label in axes.get_yticklabels()]
    assert set(lanes) <= {each.thread for each in fitted}
    assert figure.alt.startswith("Keras fits. Timelines of threads")
    assert "backward" in figure.alt


def test_a_timeline_is_coloured_by_what_a_caller_asks(fitted):
    assert {each.work for each in fitted} >= {"products", "other operations", "waits"}
    assert all(each.operation.endswith("MatMul") for each in fitted if each.work == "products")
    by_work = draw_timeline({"fit": fitted}, title="Work", by=lambda event: event.work)
    assert [text.get_text() for text in by_work.legends[0].get_texts()][:2] == [
        "products",
        "other operations",
    ]
    products = covered_ms(each for each in fitted if each.work == "products")
    assert f"products {products:.0f} ms" in by_work.alt
    one = draw_timeline({"fit": fitted}, title="One", by=one_operation("MatMul"))
    legend = [text.get_text() for text in one.legends[0].get_texts()]
    assert legend[:2] == ["MatMul", "other operations"]


def test_the_quickest_of_several_recordings_is_kept(monkeypatch):
    def lasting(ms):
        event = Event(
            start_ms=0, ms=ms, thread="python 1", kind="forward", operation="Mul", name="Mul"
        )
        return [event]

    found = iter([lasting(5.0), lasting(2.0), lasting(3.0)])
    monkeypatch.setattr(timeline, "record_timeline", lambda function: next(found))
    assert record_quickest(lambda: None, rounds=3) == lasting(2.0)


@pytest.mark.parametrize(
    ("name", "pool", "kind"),
    [
        ("functional_1/dense_1/MatMul:_MklMatMul", "tf_Compute", "forward"),
        ("StatefulPartitionedCall/gradient_tape/f/dense/MatMul:MatMul", "tf_Compute", "backward"),
        ("while/body/_1/StatefulPartitionedCall/adam/Sqrt:Sqrt", "tf_Compute", "update"),
        ("adamw_1/mul:Mul", "tf_Compute", "update"),
        ("AddN_10:AddN", "tf_Compute", "backward"),
        ("IteratorGetNextOp::DoCompute", "python", "waits"),
        ("Iterator::Root::Map", "tf_data_iterator_resource", "input"),
        ("EagerPyFunc:EagerPyFunc", "tf_data_private_threadpool", "input"),
        ("Iterator::Root::Map", "python", ""),
        ("ExecutorState::Process", "tf_Compute", ""),
        ("EagerLocalExecute: IteratorGetNext", "python", ""),
    ],
)
def test_the_name_of_an_event_says_its_kind(name, pool, kind):
    assert kind_of(name, pool) == kind


def test_busy_time_counts_overlapping_work_once():
    events = [event(0, 4), event(1, 2), event(3, 3, thread="tf_Compute 2"), event(10, 1, "input")]
    assert busy_ms(events) == 7
    assert busy_ms(events, "forward") == 6
    assert overlap_ms(events, "input", COMPUTE) == 0
    assert overlap_ms([*events, event(5, 2, "input")], "input", COMPUTE) == 1


def profile():
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    return xplane_pb2.XSpace()


def test_nested_events_of_a_kind_count_once_and_time_begins_with_the_first():
    space = profile()
    plane = space.planes.add(name="/host:CPU")
    for number, name in enumerate(("Iterator::Root::Map", "Iterator::Root::Map::Batch", "x:Mul")):
        plane.event_metadata[number].name = name
    line = plane.lines.add(name="tf_data_iterator_resource/7", timestamp_ns=5_000_000)
    for number, (offset, ms) in enumerate(((0, 4), (1, 2), (6, 1))):
        line.events.add(metadata_id=number, offset_ps=offset * 10**9, duration_ps=ms * 10**9)
    outer, alone = events_in(space)
    assert (outer.start_ms, outer.ms, outer.kind) == (0, 4, "input")
    assert (alone.start_ms, alone.ms, alone.operation) == (6, 1, "Mul")
    assert outer.thread == "tf_data_iterator_resource 1"


def test_a_kernel_of_a_gpu_has_the_name_of_its_operation():
    space = profile()
    plane = space.planes.add(name="/device:GPU:0")
    plane.event_metadata[1].name = "ampere_sgemm_128x64_nn"
    plane.stat_metadata[3].name = "tf_op"
    plane.stat_metadata[4].name = "gradient_tape/dense/MatMul:MatMul"
    line = plane.lines.add(name="Stream #13(Compute)")
    row = line.events.add(metadata_id=1, duration_ps=2 * 10**9)
    row.stats.add(metadata_id=3, ref_value=4)
    (only,) = events_in(space)
    assert (only.kind, only.thread, only.ms) == ("backward", "GPU:0 1", 2)


def test_a_second_profile_at_once_and_an_empty_one_are_refused(tmp_path):
    tf.profiler.experimental.start(str(tmp_path))
    try:
        with pytest.raises(ProfileError, match="being recorded already"):
            record_timeline(lambda: None)
    finally:
        tf.profiler.experimental.stop()
    with pytest.raises(ProfileError, match="with no operation in them"):
        record_timeline(lambda: None)


def test_an_error_of_the_function_ends_the_profile(tmp_path):
    with pytest.raises(ZeroDivisionError):
        record_timeline(lambda: 1 / 0)
    tf.profiler.experimental.start(str(tmp_path))  # which raises if one still runs
    tf.profiler.experimental.stop(save=False)
