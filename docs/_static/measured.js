/* In a measured picture, Tab stops once, and the arrows go from one square or dot to the next. */
for (const picture of document.querySelectorAll('.measured')) {
  const links = [...picture.querySelectorAll('a')];
  const stop = (link) => links.forEach((other) => other.setAttribute('tabindex', other === link ? 0 : -1));
  const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
  stop(links[0]);
  picture.addEventListener('focusin', (event) => stop(event.target));
  picture.addEventListener('keydown', (event) => {
    const next = links[links.indexOf(event.target) + steps[event.key]];
    if (!next) return;
    event.preventDefault();
    next.focus();
  });
}
