"""The diagram of lesson 10: every task has a box, and nothing connects two workers."""

from distlab.pictures.server_roles import draw_roles


def test_every_task_has_a_box_with_its_number():
    (axes,) = draw_roles(workers=3, servers=2).axes
    texts = {text.get_text().partition("\n")[0] for text in axes.texts}
    assert {"coordinator", *(f"worker {n}" for n in range(3))} <= texts
    assert {"parameter server 0", "parameter server 1"} <= texts


def test_arrows_go_both_ways_between_columns_and_never_between_workers():
    (axes,) = draw_roles(workers=2, servers=2).axes
    arrows = [text for text in axes.texts if getattr(text, "arrow_patch", None)]
    assert len(arrows) == 2 * (2 + 2 * 2)
    assert all(arrow.xy[0] - arrow.xyann[0] > 1 for arrow in arrows)


def test_the_alternative_text_counts_the_tasks():
    assert (
        "4 workers in the middle, 1 parameter server on the right"
        in draw_roles(workers=4, servers=1).alt
    )
