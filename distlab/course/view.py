"""A picture that a reader moves: a control for each value, and the figure follows.

    def shares(replicas):
        return {"shares": [12 / replicas] * replicas}

    def draw(numbers, *, replicas):
        ...
        return finish(figure, alt=f"{replicas} replicas: ...")

    View("Shares of a batch", {"replicas": Choices("replicas", [1, 2, 4], start=2)}, shares, draw)

In a notebook with a reader in front of it the last line of a cell shows controls and figure. Where
no widget can answer (on GitHub, in a regression run), it shows the first figure. The site has no
kernel: it shows the numbers of every position, drawn by `docs/_static/views.js`.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from io import BytesIO
from typing import TYPE_CHECKING, Any

from distlab.course.palette import image_tag
from distlab.course.predictions.frontend import can_answer
from distlab.errors import InvalidArgument

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDGET = "application/vnd.jupyter.widget-view+json"
_MOST_FRAMES = 200


@dataclass(frozen=True)
class Choices:
    """The values of one control: a slider, or a button for each value if the values are words.

    Args:
        label: Beside the control, with the unit if there is one: "link (Gbit/s)".
        values: In order from left to right.
        start: Where the control stands at first; None for the first value.
        say: Turns a value into the words beside the control.
        last: Takes the values of the other controls by keyword, and returns the last one that this
            control offers then; None if that depends on no other.
    """

    label: str
    values: Sequence[Any]
    start: Any = None
    say: Callable[[Any], str] = str
    last: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        if not self.values or self.first not in self.values:
            raise InvalidArgument(
                asked=f"Choices({self.label!r}, {list(self.values)}, start={self.start!r})",
                found="a start that is not among the values" if self.values else "no values",
                do="pass at least one value, and one of them as the start",
            )

    @property
    def first(self) -> Any:
        """The value at which the control starts."""
        return self.values[0] if self.start is None and self.values else self.start

    @property
    def words(self) -> bool:
        """Whether the values are words, which have no order."""
        return all(isinstance(value, str) for value in self.values)

    def offered(self, others: Mapping[str, Any]) -> list[Any]:
        """Returns the values that there are beside those of the other controls."""
        values = list(self.values)
        return values if self.last is None else values[: values.index(self.last(**others)) + 1]


class View:
    """A figure with a control for each value that it depends on.

    Args:
        title: Above the controls, and the name by which a screen reader finds them.
        choices: For each value, what its control offers.
        numbers: Takes one value for each of `choices` by keyword, and returns all that is drawn of
            them, as JSON has it: a site shows that without a kernel.
        draw: Takes these numbers, and the values by keyword, and returns a figure that ended in
            `distlab.course.palette.finish`. It is called at every move of a control.
        plays: The name of a control that a Play button moves; None for no button.
    """

    def __init__(
        self,
        title: str,
        choices: Mapping[str, Choices],
        numbers: Callable[..., dict[str, Any]],
        draw: Callable[..., Figure],
        *,
        plays: str | None = None,
    ) -> None:
        self.title = title
        self.choices = dict(choices)
        self.plays = plays
        self._numbers = numbers
        self._draw = draw

    def draw_now(self, **chosen: Any) -> Figure:
        """Returns the figure for the given values; controls that are not named stand at the start.

        Args:
            chosen: A value that its control offers, for any of `choices`.
        """
        values = {name: choice.first for name, choice in self.choices.items()} | chosen
        for name, value in chosen.items():
            if name not in self.choices or value not in self.offered(name, values):
                offered = {key: self.offered(key, values) for key in self.choices}
                raise InvalidArgument(
                    asked=f"draw_now({name}={value!r})",
                    found=f"the controls of {self.title!r} offer {offered}",
                    do="pass one of these values",
                )
        return self._draw(self._numbers(**values), **values)

    def offered(self, name: str, chosen: Mapping[str, Any]) -> list[Any]:
        """Returns what a control offers while the others have these values."""
        others = {key: chosen[key] for key in self.choices if key != name}
        return self.choices[name].offered(others)

    def offers(self, chosen: Mapping[str, Any]) -> bool:
        """Whether the controls can stand at these values together."""
        return all(chosen[name] in self.offered(name, chosen) for name in self.choices)

    def positions(self) -> dict[str, Any]:
        """Returns what a page without a kernel needs: the controls, and each position's numbers.

        The last control moves fastest. A position that is not offered is None.
        """
        controls = [
            {
                "name": name,
                "label": choice.label,
                "values": list(choice.values),
                "said": [choice.say(value) for value in choice.values],
                "start": list(choice.values).index(choice.first),
                "words": choice.words,
                "limited": choice.last is not None,
            }
            for name, choice in self.choices.items()
        ]
        rows: list[dict[str, Any] | None] = []
        for values in itertools.product(*(choice.values for choice in self.choices.values())):
            chosen = dict(zip(self.choices, values, strict=True))
            rows.append(self._numbers(**chosen) if self.offers(chosen) else None)
        return {"title": self.title, "plays": self.plays, "controls": controls, "positions": rows}

    def _ipython_display_(self) -> None:
        from IPython.display import display

        if can_answer():
            display(_Moved(self).bundle, raw=True)
        else:
            display(self.draw_now())


class _Moved:
    """The widgets of one view in one output."""

    def __init__(self, view: View) -> None:
        import ipywidgets

        self._view = view
        self._places: list[Any] = []
        self._limiting = False
        self._frames: dict[tuple[Any, ...], _Frame] = {}
        self._ahead: asyncio.Task[None] | None = None
        self._controls = {name: _control(choice) for name, choice in view.choices.items()}
        for name, control in self._controls.items():
            control.observe(lambda _, name=name: self._follow(name), names="value")
        self._picture = ipywidgets.HTML()
        title = ipywidgets.HTML(f"<strong>{escape(view.title)}</strong>")
        play = [_play(self._controls[view.plays])] if view.plays else []
        self._box = ipywidgets.VBox([title, *self._controls.values(), *play, self._picture])
        self._box.add_class(
            "distlab-view"
        )  # by which the course's extension of JupyterLab knows it
        self._follow(view.plays or next(iter(view.choices)))

    @property
    def bundle(self) -> dict[str, Any]:
        """The widgets as an output, with the words of the first figure where there are none."""
        shown = {"version_major": 2, "version_minor": 0, "model_id": self._box.model_id}
        words = self._frame(self._chosen).words
        return {_WIDGET: shown, "text/plain": f"{self._view.title}. {words}"}

    @property
    def _chosen(self) -> dict[str, Any]:
        return {name: control.value for name, control in self._controls.items()}

    def _follow(self, moved: str) -> None:
        """Shows the figure of the controls' values."""
        if self._limiting:
            return
        self._limit()
        self._picture.value = self._frame(self._chosen).html
        if self._ahead is not None:
            self._ahead.cancel()
        try:
            self._ahead = asyncio.get_running_loop().create_task(self._draw_ahead(moved))
        except RuntimeError:  # no kernel, so nobody moves on while this one waits
            self._ahead = None

    def _limit(self) -> None:
        """Takes from each control what there is not beside the values of the others."""
        self._limiting = True
        for name, choice in self._view.choices.items():
            control = self._controls[name]
            options = _options(choice, self._view.offered(name, self._chosen))
            if choice.last is not None and list(control.options) != options:
                index = min(control.index, len(options) - 1)
                control.options = options
                control.index = index
        self._limiting = False

    async def _draw_ahead(self, moved: str) -> None:
        """Draws where the next move may lead, first by the control that was moved."""
        for name in sorted(self._controls, key=lambda name: name != moved):
            index, chosen = self._controls[name].index, self._chosen
            values = self._view.offered(name, chosen)
            if not self._view.choices[name].words:
                values = values[max(index - 1, 0) : index + 2]
            for value in values:
                neighbour = chosen | {name: value}
                if self._view.offers(neighbour):
                    await asyncio.sleep(0.02)  # what the reader does comes first
                    self._frame(neighbour)

    def _frame(self, chosen: Mapping[str, Any]) -> _Frame:
        place = tuple(chosen.values())
        if place not in self._frames:
            if len(self._frames) == _MOST_FRAMES:
                del self._frames[next(iter(self._frames))]
            self._frames[place] = self._drawn(chosen)
        return self._frames[place]

    def _drawn(self, chosen: Mapping[str, Any]) -> _Frame:
        import matplotlib.pyplot as plt

        # In interactive mode a notebook would keep every figure until the next cell runs.
        with _collected_at_once(), plt.ioff():
            figure: Any = self._view.draw_now(**chosen)
            self._places = _put(figure, self._places)
            image = image_tag(figure, _png(figure))
            return _Frame(figure.alt, f'<div aria-live="polite">{image}</div>')


@dataclass(frozen=True)
class _Frame:
    """A figure that was drawn: its words, and its picture with them."""

    words: str
    html: str


@contextmanager
def _collected_at_once() -> Iterator[None]:
    """Collects the objects of the block when it ends, and nothing during it.

    A figure is thousands of objects in cycles. If they lived on, Python would look through all its
    objects every few moves, which takes 0.1 s once TensorFlow is imported.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect(0)


def _put(figure: Any, places: list[Any]) -> list[Any]:
    """Puts axes where they were: laying out takes as long as drawing, and nothing may jump."""
    engine = figure.get_layout_engine()
    if engine is None:  # `draw` has placed the axes
        return []
    if len(places) == len(figure.axes):
        figure.set_layout_engine("none")
        for axes, place in zip(figure.axes, places, strict=True):
            axes.set_position(place)
        labels = (axes.yaxis.get_tightbbox() for axes in figure.axes)
        if all(box is None or box.x0 >= 0 for box in labels):
            return places
        for axes in figure.axes:
            axes.set_in_layout(True)
        figure.set_layout_engine(engine)
    figure.draw_without_rendering()
    return [axes.get_position() for axes in figure.axes]


def _control(choices: Choices) -> Any:
    import ipywidgets

    looks = {"description_width": "14em"}
    options: dict[str, Any] = {
        "description": choices.label,
        "options": _options(choices, choices.values),
        "value": choices.first,
    }
    if choices.words:
        beside = {"display": "flex", "flex_flow": "row wrap", "align_items": "baseline"}
        style = {**looks, "button_width": "max-content"}
        return ipywidgets.ToggleButtons(**options, style=style, layout=beside)
    return ipywidgets.SelectionSlider(**options, style=looks, layout={"width": "34em"})


def _options(choices: Choices, values: Sequence[Any]) -> list[tuple[str, Any]]:
    return [(choices.say(value), value) for value in values]


def _play(control: Any) -> Any:
    """Returns buttons that move a control to its end, one value a second."""
    import ipywidgets

    play = ipywidgets.Play(max=len(control.options) - 1, interval=1000, show_repeat=False)
    control.observe(lambda change: play.set_trait("max", len(change["new"]) - 1), names="options")
    ipywidgets.link((control, "index"), (play, "value"))
    return play


def _png(figure: Figure) -> str:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.image import imsave

    kept = BytesIO()
    # `savefig` would draw twice, the first time for the layout, which `_put` has made already.
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    imsave(kept, canvas.buffer_rgba(), dpi=figure.dpi, pil_kwargs={"compress_level": 1})
    return b64encode(kept.getvalue()).decode("ascii")
