"""The figures of a lesson's voice, which no test holds a lesson to."""

from nbformat import v4

from distlab.authoring.__main__ import main
from distlab.authoring.voice import measure_voice
from tests.support.repository import ROOT

TEXT = """# A title of no matter

It's one sentence. The [next](https://a.b) has `x = 1` in
it, and it's a long one, because each word up to the last one
of the twenty-seven counts, as in a book.

> **Takeaway.** Not counted.

- not counted

| not | counted |
|---|---|

<details><summary>Not counted. No.</summary>

Folded text counts!

</details>

```python
x = 1  # It doesn't.
```

Three. Short. Ones."""


def test_sentences_of_paragraphs_are_counted_and_nothing_else():
    code = v4.new_code_cell("# Not this. Nor that.")
    voice = measure_voice([v4.new_markdown_cell(TEXT), code, v4.new_markdown_cell("Four.")])
    assert [sentence[:5] for sentence in voice.sentences if sentence][:3] == [
        "It's ",
        "The [",
        "Folde",
    ]
    assert (round(voice.mean, 1), voice.contractions, voice.runs) == (
        5.3,
        2,
        ["Three. Short. Ones."],
    )
    assert (round(voice.short, 2), round(voice.long, 2)) == (0.86, 0.14)


def test_a_lesson_is_named_by_its_number_and_a_page_by_its_name(capsys):
    for name, text in (("00", "00_start_here "), ("README", "README ")):
        assert main(["voice", name, "--root", str(ROOT)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[1].startswith(text) and lines[2] == ""
    assert main(["voice", "99", "--root", str(ROOT)]) == 2
