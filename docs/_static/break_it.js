/* "Break it yourself": makes switches of the list of mistakes, trains with those that are on, a few steps in
   each frame, and draws the loss and the distance from one device. digits_network.js trains, plot.js draws.
   The address keeps the switches: break_it.html#same-shard+lost-replica. */
(() => {
  'use strict';
  const MILLISECS = 1400; // for all steps; none where the reader wants no motion
  const ROUNDING = 1e-5; // what is closer to one device took the same steps
  const isStill = matchMedia('(prefers-reduced-motion: reduce)').matches;
  const page = document.querySelector('.break-it');
  const data = readDigits(JSON.parse(document.getElementById('break-it-data').textContent));

  function make(tag, className, ...children) {
    const node = document.createElement(tag);
    node.className = className;
    node.append(...children);
    return node;
  }

  const oneDevice = new Training(data, 1);
  const reference = []; // its weights after each step
  while (!oneDevice.done) {
    oneDevice.step();
    reference.push(oneDevice.copies[0].slice());
  }
  const { steps, stepsOfEpoch } = oneDevice;
  const lastEpoch = losses => losses.slice(-stepsOfEpoch).reduce((sum, loss) => sum + loss, 0) / stepsOfEpoch;
  const one = { loss: lastEpoch(oneDevice.losses), accuracy: oneDevice.accuracy() };

  // --- the switches, of the list: its bold words, the line, the line with the mistake, and what is said of it

  const list = page.querySelector('.break-it-mistakes');
  list.setAttribute('role', 'group');
  list.setAttribute('aria-label', 'Mistakes');
  const switches = [...list.querySelectorAll('li')].map(item => {
    const why = item.querySelector('p');
    const parts = [...why.querySelectorAll('strong, code')].slice(0, 3);
    const [name, right, wrong] = parts.map(part => part.textContent.replace(/\.$/, ''));
    while (parts.some(part => why.contains(part))) why.firstChild.remove();
    why.firstChild.textContent = why.firstChild.textContent.replace(/^\.\s/, '');
    const input = make('input', '');
    Object.assign(input, { type: 'checkbox', value: name.toLowerCase().replaceAll(' ', '-') });
    input.addEventListener('change', () => {
      const on = chosen().join('+');
      history.pushState(null, '', on ? `#${on}` : location.pathname + location.search);
      train();
    });
    const code = make('code', '', right);
    code.id = `code-of-${input.value}`;
    input.setAttribute('aria-describedby', code.id);
    item.replaceChildren(make('label', '', input, name), code, why);
    const show = () => {
      code.textContent = input.checked ? wrong : right;
      why.hidden = !input.checked;
    };
    return { input, show };
  });
  const chosen = () => switches.filter(({ input }) => input.checked).map(({ input }) => input.value);

  /** Takes the switches of the address, unless it names something else on the page. */
  function follow() {
    const names = location.hash.slice(1).split('+').filter(Boolean);
    if (!names.every(name => switches.some(({ input }) => input.value === name))) return;
    for (const { input } of switches) input.checked = names.includes(input.value);
    train();
  }

  // --- the charts

  const loss = make('div', 'break-it-chart'), distance = make('div', 'break-it-chart');
  const key = make('span', 'break-it-key', 'four replicas');
  const charts = make('div', 'break-it-charts',
    make('figure', '', make('figcaption', '', make('strong', '', 'The logged loss'), make('span', 'break-it-key', 'one device'), key), loss),
    make('figure', '', make('figcaption', '', make('strong', '', 'How far the weights are from one device’s')), distance));
  charts.setAttribute('aria-hidden', 'true'); // the sentence below says it

  function draw() {
    const isWrong = distances.some(far => far > ROUNDING);
    const colour = isWrong ? 'var(--wrong-words)' : 'var(--right-words)';
    key.className = `break-it-key ${isWrong ? 'wrong' : 'right'}`;
    const points = values => values.map((value, step) => ({ step: step + 1, value }));
    const place = { x: 'step', y: 'value' };
    const run = { ...place, stroke: colour, strokeWidth: 2.5 };
    const size = { width: loss.clientWidth, height: loss.clientHeight, marginTop: 10, marginBottom: 24, marginLeft: 46, marginRight: 14 };
    const ticks = Array.from({ length: data.epochs + 1 }, (_, epoch) => epoch * stepsOfEpoch);
    const isLow = size.height < 120;
    const x = { domain: [0, steps], label: null, ticks, tickFormat: step => (step ? `${step}` : 'step 0') };
    loss.replaceChildren(Plot.plot({
      ...size, x,
      y: { domain: [0, 2.6], label: null, grid: true, ticks: isLow ? [0, 1, 2] : 5 },
      marks: [
        Plot.line(points(oneDevice.losses), { ...place, stroke: 'var(--pst-color-text-muted)', strokeWidth: 5, strokeOpacity: 0.45 }),
        Plot.line(points(training.losses), run),
      ],
    }));
    const limit = [{ step: 0, value: 1e-6 }, { step: steps, value: 1e-6 }];
    const last = points(distances).slice(-1);
    distance.replaceChildren(Plot.plot({
      ...size, x,
      y: { type: 'log', domain: [1e-9, 4], clamp: true, label: null, grid: true, ticks: isLow ? [1e-8, 1e-4, 1] : [1e-8, 1e-6, 1e-4, 1e-2, 1], tickFormat: power },
      marks: [
        Plot.line(limit, { ...place, stroke: 'currentColor', strokeDasharray: '4 4' }),
        Plot.text([limit[isLow ? 0 : 1]], { ...place, text: () => 'rounding stays below', dy: -8, textAnchor: isLow ? 'start' : 'end' }),
        Plot.line(points(distances.map(far => Math.max(far, 1e-9))), run),
        Plot.dot(last, { ...place, fill: colour, r: 4 }),
        Plot.text(last, { ...place, text: ({ value }) => short(value), fill: colour, fontSize: 14, fontWeight: 600, dx: -4, dy: isWrong ? 14 : isLow ? -12 : 16, textAnchor: 'end' }),
      ],
    }));
  }

  const power = number => (number >= 0.01 ? `${number}` : number.toExponential(0).replace('e-', 'e−'));
  const short = number => (number >= 0.001 ? `${Number(number.toPrecision(2))}` : power(number));

  // --- what it comes to

  const words = make('p', ''), again = make('button', '', 'Train again');
  words.setAttribute('aria-live', 'polite');
  again.type = 'button';
  again.addEventListener('click', () => train());
  const goals = [...page.querySelectorAll('.break-it-goals li')];
  page.querySelector('.break-it-goals ul').setAttribute('aria-live', 'polite');
  const GOALS = [
    result => result.loss < one.loss - 0.005,
    result => Math.abs(result.loss - one.loss) < 0.001,
    result => result.accuracy > one.accuracy,
  ];

  function say() {
    const result = { loss: lastEpoch(training.losses), accuracy: training.accuracy(), distance: distances.at(-1) };
    const isWrong = result.distance > ROUNDING;
    const percent = part => `${(100 * part).toFixed(1)} %`;
    GOALS.forEach((isReached, index) => {
      const goal = goals[index];
      if (!isWrong || !isReached(result) || goal.classList.contains('found')) return;
      goal.classList.add('found');
      goal.textContent = goal.textContent.replace('?', ': found');
    });
    words.classList.remove('is-training');
    words.replaceChildren(
      make('b', isWrong ? 'wrong' : 'right', isWrong ? 'Another model. ' : 'The model of one device. '),
      `After ${steps} steps the last epoch’s loss is ${result.loss.toFixed(3)} (one device: ${one.loss.toFixed(3)}), ${percent(result.accuracy)} of the test digits `
      + `are right (one device: ${percent(one.accuracy)}), and the weights are up to ${short(result.distance)} from one device’s${isWrong ? '' : ', which is rounding'}.`);
  }

  // --- the training

  let training, distances, frame;

  function train() {
    for (const { show } of switches) show();
    [training, distances] = [new Training(data, data.replicas, chosen()), []];
    cancelAnimationFrame(frame);
    words.classList.add('is-training');
    let begin;
    const advance = now => {
      begin ??= now;
      const target = isStill ? steps : Math.max(1, Math.min(steps, Math.ceil((steps * (now - begin)) / MILLISECS)));
      while (training.losses.length < target) {
        training.step();
        distances.push(training.distanceFrom(reference[distances.length]));
      }
      draw();
      if (training.done) say();
      else frame = requestAnimationFrame(advance);
    };
    frame = requestAnimationFrame(advance);
  }

  page.querySelector('.break-it-recorded').remove();
  page.append(make('div', 'break-it-stage', charts, make('div', 'break-it-said', words, again)));
  page.classList.add('is-live');
  addEventListener('popstate', follow);
  addEventListener('resize', draw);
  follow();
  if (!training) train();
})();
