"""The one way results are printed in lessons: rounded, beside what they should be.

The same text then holds on any processor.

    show("loss", 0.69314, digits=3)                        # loss: 0.693
    show("mean gradient", 0.5, expected=0.5)               # mean gradient: 0.5 = 0.5 expected
    show("weights apart by", 1.2e-7, below=1e-6)           # weights apart by: less than 1e-06
"""

from __future__ import annotations

from typing import Any


def show(
    label: str,
    value: Any,
    *,
    digits: int = 4,
    expected: Any = None,
    below: float | None = None,
) -> None:
    """Prints a value rounded, beside the value or the bound that it should have.

    What it prints is the same on any processor, so outputs can be stored and compared.

    Args:
        label: What the value is.
        value: A number, text, array, tensor, a list or tuple of these, or a `PerReplica`, which
            is shown as the list of its values.
        digits: Decimal places that are printed, and to which `expected` is compared.
        expected: What the value should be. The text says whether the two agree to `digits` places.
        below: A bound for a number. The text says whether it holds and leaves the number itself
            out, because that differs from processor to processor.

    Example:
        >>> dl.show("loss", 0.69314, digits=3)
        loss: 0.693
        >>> dl.show("shares", [8, 8, 8, 5], expected=[8, 8, 8, 8])
        shares: [8, 8, 8, 5] is NOT [8, 8, 8, 8] expected
        >>> dl.show("max difference", 1.2e-7, below=1e-6)
        max difference: less than 1e-06
    """
    if below is not None:
        amount = float(value)
        held = f"less than {below:g}" if amount < below else f"{amount:.3g}, NOT below {below:g}"
        print(f"{label}: {held}")  # noqa: T201
        return
    text = _text(value, digits)
    if expected is not None:
        sign = "=" if _equal(value, expected, digits) else "is NOT"
        text += f" {sign} {_text(expected, digits)} expected"
    print(f"{label}: {text}")  # noqa: T201


def _equal(value: Any, expected: Any, digits: int) -> bool:
    import numpy as np

    try:
        shown, reference = np.asarray(value), np.asarray(expected)
        return shown.shape == reference.shape and bool(
            np.allclose(shown, reference, rtol=0, atol=0.5 * 10**-digits)
        )
    except (TypeError, ValueError):  # text, and lists of unequal lengths
        return bool(value == expected)


def _text(value: Any, digits: int) -> str:
    if isinstance(value, str | bool | int | None):
        return str(value)
    if isinstance(value, float):
        fixed = f"{round(value, digits) + 0.0:.{digits}f}"  # adding 0.0 turns -0.0 into 0.0
        return fixed.rstrip("0").rstrip(".") if "." in fixed else fixed
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(item, digits)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_text(item, digits) for item in value) + "]"
    if type(value).__name__ == "PerReplica":
        return _text(list(value.values), digits)
    import numpy as np

    array = np.asarray(value)
    if array.dtype == object:  # nothing that NumPy knows
        return str(value)
    if array.ndim == 0:
        return _text(array.item(), digits)
    if array.ndim == 1:
        return _text(array.tolist(), digits)
    return "\n" + "\n".join(_text(row, digits) for row in array.tolist())
