"""A picture that a reader moves: a slider for each value, and the figure follows.

    def draw(replicas):
        ...
        return finish(figure, alt=f"{replicas} replicas: ...")

    View("Shares of a batch", {"replicas": Choices("replicas", [1, 2, 4, 8], start=2)}, draw)

In a notebook with a reader in front of it the last line of a cell shows sliders and figure. Where
no widget can answer (on the site, on GitHub, in a regression run), it shows the first figure.
"""

from __future__ import annotations

import gc
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
    from matplotlib.backends.backend_agg import RendererAgg
    from matplotlib.figure import Figure

_WIDGET = "application/vnd.jupyter.widget-view+json"


@dataclass(frozen=True)
class Choices:
    """What one slider offers.

    Args:
        label: Beside the slider, with the unit if there is one: "link (Gbit/s)".
        values: In order from left to right; each is passed to `draw` as it is.
        start: Where the slider stands at first; None for the first value.
        say: Turns a value into the words beside the slider.
    """

    label: str
    values: Sequence[Any]
    start: Any = None
    say: Callable[[Any], str] = str

    def __post_init__(self) -> None:
        if not self.values or self.first not in self.values:
            raise InvalidArgument(
                asked=f"Choices({self.label!r}, {list(self.values)}, start={self.start!r})",
                found="a start that is not among the values" if self.values else "no values",
                do="pass at least one value, and one of them as the start",
            )

    @property
    def first(self) -> Any:
        """The value at which the slider starts."""
        return self.values[0] if self.start is None and self.values else self.start


class View:
    """A figure with a slider for each value that it depends on.

    Args:
        title: Above the sliders, and the name by which a screen reader finds them.
        choices: For each argument of `draw`, what its slider offers.
        draw: Takes one value for each of `choices` by keyword, and returns a figure that ended in
            `distlab.course.palette.finish`. It is called at every move of a slider.
    """

    def __init__(
        self, title: str, choices: Mapping[str, Choices], draw: Callable[..., Figure]
    ) -> None:
        self.title = title
        self.choices = dict(choices)
        self._draw = draw

    def draw_now(self, **chosen: Any) -> Figure:
        """Returns the figure for the given values; sliders that are not named stand at the start.

        Args:
            chosen: A value that its slider offers, for any of `choices`.
        """
        for name, value in chosen.items():
            if name not in self.choices or value not in self.choices[name].values:
                offered = {key: list(choice.values) for key, choice in self.choices.items()}
                raise InvalidArgument(
                    asked=f"draw_now({name}={value!r})",
                    found=f"the sliders of {self.title!r} offer {offered}",
                    do="pass one of these values",
                )
        return self._draw(**{name: choice.first for name, choice in self.choices.items()} | chosen)

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
        self._renderer: RendererAgg | None = None
        self._sliders = {name: _slider(choice) for name, choice in view.choices.items()}
        for slider in self._sliders.values():
            slider.observe(lambda _: self._follow(), names="value")
        self._picture = ipywidgets.HTML()
        title = ipywidgets.HTML(f"<strong>{escape(view.title)}</strong>")
        self._box = ipywidgets.VBox([title, *self._sliders.values(), self._picture])
        self._follow()

    @property
    def bundle(self) -> dict[str, Any]:
        """The widgets as an output, with the words of the first figure where there are none."""
        shown = {"version_major": 2, "version_minor": 0, "model_id": self._box.model_id}
        return {_WIDGET: shown, "text/plain": f"{self._view.title}. {self._words}"}

    def _follow(self) -> None:
        """Shows the figure of the sliders' values, and forgets it."""
        import matplotlib.pyplot as plt

        # In interactive mode a notebook would keep every figure until the next cell runs.
        with _collected_at_once(), plt.ioff():
            self._show()

    def _show(self) -> None:
        figure: Any = self._view.draw_now(
            **{name: slider.value for name, slider in self._sliders.items()}
        )
        self._words = figure.alt
        self._renderer = _renderer_for(figure, self._renderer)
        self._places = _put(figure, self._places, self._renderer)
        self._picture.value = (
            f'<div aria-live="polite">{image_tag(figure, _png(figure, self._renderer))}</div>'
        )


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


def _renderer_for(figure: Figure, renderer: RendererAgg | None) -> RendererAgg:
    """Returns the renderer of the move before, which knows the sizes of texts, if it fits."""
    from matplotlib.backends.backend_agg import RendererAgg

    wide, high = (int(size) for size in figure.bbox.size)
    if renderer and (renderer.width, renderer.height, renderer.dpi) == (wide, high, figure.dpi):
        return renderer
    return RendererAgg(wide, high, figure.dpi)


def _put(figure: Any, places: list[Any], renderer: RendererAgg | None = None) -> list[Any]:
    """Puts axes where they were: laying out takes as long as drawing, and nothing may jump."""
    engine = figure.get_layout_engine()
    if engine is None:  # `draw` has placed the axes
        return []
    if len(places) == len(figure.axes):
        figure.set_layout_engine("none")
        for axes, place in zip(figure.axes, places, strict=True):
            axes.set_position(place)
        labels = (axes.yaxis.get_tightbbox(renderer) for axes in figure.axes)
        if all(box is None or box.x0 >= 0 for box in labels):
            return places
        for axes in figure.axes:
            axes.set_in_layout(True)
        figure.set_layout_engine(engine)
    figure.draw_without_rendering()
    return [axes.get_position() for axes in figure.axes]


def _slider(choices: Choices) -> Any:
    import ipywidgets

    return ipywidgets.SelectionSlider(
        description=choices.label,
        options=[(choices.say(value), value) for value in choices.values],
        value=choices.first,
        style={"description_width": "14em"},
        layout={"width": "34em"},
    )


def _png(figure: Figure, renderer: RendererAgg) -> str:
    from matplotlib.image import imsave

    kept = BytesIO()
    # `savefig` would draw twice, the first time for the layout, which `_put` has made already.
    renderer.clear()
    figure.draw(renderer)
    imsave(kept, renderer.buffer_rgba(), dpi=figure.dpi, pil_kwargs={"compress_level": 1})
    return b64encode(kept.getvalue()).decode("ascii")
