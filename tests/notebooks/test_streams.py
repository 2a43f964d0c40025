"""What a cell printed, put together: the same however it arrived."""

from nbformat import v4

from distlab.notebooks.streams import settled


def stream(text, name="stdout"):
    return v4.new_output("stream", name=name, text=text)


def shown(*outputs):
    return [output.get("text", output.output_type) for output in settled(list(outputs))]


def test_text_stays_between_what_it_was_printed_between():
    name = v4.new_output("display_data", data={"text/plain": "worker:0"})
    first = [stream("w", "stderr"), stream("a"), stream("b")]
    assert shown(name, *first, name, stream("c")) == [
        *["display_data", "ab", "w"],
        *["display_data", "c"],
    ]
    assert first[1].text == "a"


def test_what_was_written_over_or_taken_back_is_left_out():
    assert shown(stream("1/3\r2/3"), stream("\r3/3\nab\x08\x08c")) == ["3/3\nc"]
    assert shown(stream("line\r\nnext")) == ["line\r\nnext"]
