// "Which run is right?" on the first page: buttons in place of the picture, then the distance of the run
// that was picked, and of all when the right one is found.
const whichRun = document.querySelector(".which-run");
if (whichRun) {
  const runs = Object.entries(JSON.parse(document.getElementById("which-run-data").textContent));
  const steps = runs[0][1].losses.length;
  const highest = Math.max(...runs.flatMap(([, run]) => run.losses));
  const draw = (width, height, shapes) => `<svg viewBox="0 0 ${width} ${height}" aria-hidden="true">${shapes}</svg>`;
  const curve = (values, x, y, kind = "") => {
    const points = values.map((value, step) => `${x(step).toFixed(1)},${y(value).toFixed(1)}`);
    return `<polyline class="${kind}" points="${points.join(" ")}"/>`;
  };
  const verdict = (run) => (run.right ? "right" : "wrong");

  const choices = document.createElement("div");
  const answer = document.createElement("div");
  choices.className = "which-run-choices";
  choices.setAttribute("role", "group");
  choices.setAttribute("aria-label", "Five runs");
  answer.setAttribute("aria-live", "polite");
  let solved = false;
  for (const [letter, run] of runs) {
    const button = document.createElement("button");
    const losses = curve(run.losses, (step) => (120 * step) / (steps - 1), (loss) => 80 * (1 - loss / highest));
    button.type = "button";
    button.innerHTML = `<span class="name">${letter} <span class="verdict"></span></span>${draw(120, 80, losses)}`;
    button.onclick = () => show(letter, run, button);
    choices.append(button);
  }
  whichRun.querySelector("img").closest("p").replaceWith(choices, answer);

  function show(letter, run, button) {
    for (const other of choices.children) other.setAttribute("aria-pressed", other === button);
    solved ||= run.right;
    button.classList.add(verdict(run));
    button.querySelector(".verdict").textContent = verdict(run);
    answer.innerHTML = `<p><strong>Run ${letter} is ${verdict(run)}.</strong> ${run.why} It names ${run.accuracy} of the
      test digits right, and in the end its weights are up to ${run.distance} from one device's.</p>
      <figure>${distances(letter)}<figcaption>The largest difference of a weight from one device after each step,
      of run ${letter}${solved ? " and the others" : ""}.</figcaption></figure>`;
  }

  function distances(chosen) {
    const [width, height, left, right, low] = [Math.min(answer.clientWidth, 720), 230, 52, 24, -9];
    const x = (step) => left + ((width - left - right) * step) / (steps - 1);
    const y = (power) => 10 + ((height - 20) * power) / low;
    const ticks = { 0: "1", "-2": "0.01", "-4": "0.0001", "-6": "1e-6", "-8": "1e-8" };
    const grid = Object.entries(ticks).map(([power, text]) =>
      `<path d="M${left} ${y(power)}H${width - right}"/><text x="0" y="${y(power) + 4}">${text}</text>`);
    const order = runs.filter(([letter]) => solved || letter === chosen).sort(([, one], [, other]) => other.distances.at(-1) - one.distances.at(-1));
    let above = 0;
    const curves = order.map(([letter, run]) => {
      above = Math.max(y(run.distances.at(-1)) + 5, above + 15); // names keep apart where curves meet
      const kind = `${verdict(run)}${letter === chosen ? " chosen" : ""}`;
      return `${curve(run.distances, x, y, kind)}<text class="${kind}" x="${width - right + 6}" y="${above}">${letter}</text>`;
    });
    return draw(width, height, [...grid, ...curves].join(""));
  }
}
