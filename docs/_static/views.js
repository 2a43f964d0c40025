/* Lets a reader move the views of the lessons on a page without a kernel. The numbers of every position
   are in the page: `View.positions` of `distlab/course/view.py` writes them, and plot.js draws them.
   The address keeps the position: page.html#explore_ring/ring/4/3. */
(() => {
  'use strict';
  const PLOT = new URL('plot.js', document.currentScript.src).href;
  const sum = numbers => numbers.reduce((total, number) => total + number, 0);
  const decimal = number => number.toLocaleString('en', { maximumFractionDigits: 1 });

  function make(tag, className, ...children) {
    const node = document.createElement(tag);
    node.className = className;
    node.append(...children);
    return node;
  }

  /* For each view: its words and its figures, of the numbers and the values at its controls. */
  const DRAW = {
    explore_batch_plan({ batch, steps, rate, full, last }, { per_replica: most }, colours, Plot, width) {
      const panels = [[`a full batch: ${sum(full)}`, full], [`the last batch: ${sum(last)}`, last]];
      const bars = panels.flatMap(([panel, shares]) => shares.map((share, replica) => ({ panel, share, replica })));
      const place = { y: 'replica', fx: 'panel', x: 'share' };
      const words = `Global batch ${batch}, ${steps} steps an epoch, learning rate ${rate}. `
        + `Shares of the last batch: ${last.join(', ')}.`;
      return [words, Plot.plot({
        width, height: 270, marginLeft: 50, marginBottom: 45,
        x: { domain: [0, 1.15 * most], label: 'examples', ticks: 4, labelAnchor: 'center' },
        y: { type: 'band', label: 'replica' },
        fx: { domain: panels.map(([panel]) => panel), label: null, padding: 0.25 },
        marks: [
          Plot.barX(bars, { ...place, fill: ({ replica }) => colours.replicas[replica % 4] }),
          Plot.text(bars, { ...place, text: ({ share }) => `${share || 'empty'}`, dx: 5, textAnchor: 'start' }),
        ],
      })];
    },

    explore_ring({ steps, moves, counts }, { algorithm, step }, colours, Plot) {
      const ranks = counts.length;
      const angle = rank => Math.PI / 2 - (2 * Math.PI * rank) / ranks;
      const nodes = counts.map((chunks, rank) => ({
        rank, x: Math.cos(angle(rank)), y: Math.sin(angle(rank)), done: chunks.every(count => count === ranks),
      }));
      const arrows = moves.map(({ source, target, chunks, adds }) => {
        const [a, b] = [nodes[source], nodes[target]];
        const middle = { x: (a.x + b.x) / 2 + 0.16 * (a.y - b.y), y: (a.y + b.y) / 2 + 0.16 * (b.x - a.x) };
        return { a, b, middle, adds, text: chunks.length === ranks ? 'all' : `${chunks[0]}` };
      });
      const colour = ({ adds }) => (adds ? colours.reference : colours.categories[3]);
      const ends = { x1: ({ a }) => a.x, y1: ({ a }) => a.y, x2: ({ b }) => b.x, y2: ({ b }) => b.y };
      const line = { ...ends, stroke: colour, strokeWidth: 1.8, bend: 17, inset: 17, headLength: 9 };
      const square = { domain: [-1.3, 1.3], axis: null };
      const words = `${algorithm}, step ${step} of ${steps}: ${moves.length ? '' : 'nothing has been sent yet'}`
        + moves.map(({ source, target, chunks, adds }) => `rank ${source} sends `
          + `${chunks.length === ranks ? 'the whole vector' : `chunk ${chunks[0]}`} to rank ${target}`
          + `${adds ? '' : ', which keeps it'}`).join('; ');
      const cells = counts.flatMap((chunks, rank) => chunks.map((count, chunk) => ({ rank, chunk, count })));
      const arrived = moves.flatMap(({ target, chunks }) => chunks.map(chunk => ({ rank: target, chunk })));
      const place = { x: 'chunk', y: 'rank' };
      return [`${words}.`, Plot.plot({
        width: 330, height: 330, margin: 8, x: square, y: square,
        marks: [
          Plot.arrow(arrows.filter(({ adds }) => adds), line),
          Plot.arrow(arrows.filter(({ adds }) => !adds), { ...line, strokeDasharray: '5 3' }),
          Plot.dot(nodes, { x: 'x', y: 'y', r: 14, fill: ({ done }) => (done ? colours.right : colours.replicas[0]) }),
          Plot.text(nodes, { x: 'x', y: 'y', text: ({ rank }) => `${rank}`, fill: 'white', fontWeight: 'bold', fontSize: 13 }),
          Plot.text(arrows, { x: ({ middle }) => middle.x, y: ({ middle }) => middle.y, text: 'text', fill: colour, stroke: 'white', strokeWidth: 5, fontSize: 13 }),
        ],
      }), Plot.plot({
        width: 330, height: 330, marginLeft: 40, marginBottom: 40, marginTop: 8, marginRight: 8,
        x: { type: 'band', label: 'chunk', tickSize: 0, padding: 0.05 },
        y: { type: 'band', label: 'rank', tickSize: 0, padding: 0.05 },
        color: { type: 'linear', domain: [0, ranks], range: ['#ffffff', colours.right] },
        marks: [
          Plot.cell(cells, { ...place, fill: 'count' }),
          Plot.cell(arrived, { ...place, fill: 'none', stroke: colours.reference, strokeWidth: 2 }),
          Plot.text(cells, { ...place, text: 'count', fill: ({ count }) => (count === ranks ? 'white' : 'black') }),
        ],
      })];
    },

    explore_cost({ efficiency, published, network }, _, colours, Plot, width) {
      const points = efficiency.map((part, power) => ({ gpus: 2 ** power, percent: 100 * part }));
      const place = { x: 'gpus', y: 'percent' };
      const last = points.at(-1);
      const known = published.map(([count, part]) => ({ gpus: count, percent: 100 * part }));
      const words = `${network} parameters: ${last.percent.toFixed(0)} % on ${decimal(last.gpus)} GPUs.`
        + known.map(point => ` Published: ${point.percent.toFixed(0)} % on ${point.gpus}.`).join('');
      return [words, Plot.plot({
        width, height: 340, marginLeft: 45, marginRight: 45, marginBottom: 45,
        x: { type: 'log', base: 2, label: 'replicas', labelAnchor: 'center', ticks: points.filter((_, power) => power % (width < 450 ? 4 : 2) === 0).map(({ gpus }) => gpus), tickFormat: decimal },
        y: { domain: [0, 105], label: 'efficiency (%)', grid: true },
        marks: [
          Plot.line(points, { ...place, stroke: colours.categories[0], strokeWidth: 2.5, tip: true }),
          Plot.dot(known, { ...place, stroke: colours.wrong, strokeWidth: 2.5, r: 6 }),
          Plot.text(known.slice(-1), { ...place, text: () => 'published', dx: 11, dy: 8, textAnchor: 'start', fill: colours.wrong }),
          Plot.text([last], { ...place, text: ({ percent }) => `${percent.toFixed(0)} %`, dx: 8, textAnchor: 'start' }),
        ],
      })];
    },

    explore_pipeline({ lanes, kept, ticks, idle }, { schedule }, colours, Plot, width) {
      const [forward, , backward, weights] = colours.categories;
      const fill = { F: forward, B: backward, W: weights };
      const works = lanes.flatMap((spans, device) => spans.map(([start, end, item]) => {
        const [number, piece = '0'] = item.slice(1).split('.');
        return { device, start, end, number, colour: fill[item[0]], pale: piece % 2 === 1 };
      }));
      const room = ({ start, end, number }) => ((width - 80) * (end - start)) / ticks > 8 * number.length + 2;
      const words = `${schedule}: ${decimal(ticks)} ticks, ${decimal(100 * idle)} % idle, `
        + `micro-batches kept by device: ${kept.map(decimal).join(', ')}.`;
      const place = { x1: 'start', x2: 'end', y: 'device' };
      return [words, Plot.plot({
        width, height: 40 * lanes.length + 45, marginLeft: 60, marginRight: 20, marginBottom: 40,
        x: { domain: [0, ticks], label: 'ticks', labelAnchor: 'center' },
        y: { type: 'band', label: null, domain: lanes.map((_, device) => device), tickFormat: device => `device ${device}`, tickSize: 0, padding: 0.15 },
        marks: [
          Plot.barX(lanes, { x1: 0, x2: ticks, y: (_, device) => device, fill: '#E5E7EB' }),
          Plot.barX(works, { ...place, fill: ({ colour, pale }) => (pale ? 'white' : colour), stroke: ({ colour, pale }) => (pale ? colour : 'white'), inset: 0.5 }),
          Plot.text(works.filter(room), { x: ({ start, end }) => (start + end) / 2, y: 'device', text: 'number', fill: ({ colour, pale }) => (pale ? colour : 'white') }),
        ],
      })];
    },

    explore_memory({ held, sent }, { sharding }, colours, Plot, width) {
      const limit = 80;
      const names = ['mirrored', sharding].map((kind, index) => `${kind}: sends ${decimal(sent[index])} GB a step`);
      const parts = ['weights', 'gradients', 'optimizer state'];
      const bars = held.flatMap((sizes, index) => sizes.map((size, part) => ({ name: names[index], part: parts[part], size })));
      const totals = held.map((sizes, index) => ({ name: names[index], total: sum(sizes) }));
      const verdict = ({ total }) => (total <= limit ? 'fits' : 'too large');
      const said = bar => `${decimal(bar.total)} GB, ${verdict(bar)}`;
      const room = (width - 20) / (width - 150); // of 130 pixels, for what is said behind a bar
      return [`${totals.map(bar => `${bar.name}: ${said(bar)}`).join('. ')}.`, Plot.plot({
        width, height: 230, marginLeft: 10, marginRight: 10, marginTop: 25, marginBottom: 45,
        x: { domain: [0, room * Math.max(limit, ...totals.map(({ total }) => total))], label: 'memory on each device (GB)', labelAnchor: 'center' },
        y: { type: 'band', axis: null, padding: 0.4, domain: names },
        color: { domain: parts, range: colours.categories, legend: true },
        marks: [
          Plot.ruleX([limit], { stroke: colours.reference, strokeWidth: 1.5 }),
          Plot.barX(bars, { x: 'size', y: 'name', fill: 'part' }),
          Plot.text([limit], { x: limit, frameAnchor: 'top', dy: -12, text: () => `one device: ${limit} GB` }),
          Plot.text(totals, { x: 0, y: 'name', text: 'name', textAnchor: 'start', dy: -32, fontSize: 12, stroke: 'white', strokeWidth: 5, fill: 'black' }),
          Plot.text(totals, { x: 'total', y: 'name', text: said, textAnchor: 'start', dx: 6, stroke: 'white', strokeWidth: 5,
            fill: bar => (bar.total <= limit ? colours.right : colours.wrong) }),
        ],
      })];
    },
    explore_flops({ flops }, { width: size, length, batch, layers }, colours, Plot, width) {
      const parts = ['attention\'s weights', 'attention\'s two products', 'layers behind it', 'head'];
      const total = sum(flops);
      const bars = parts.map((part, index) => ({ part, index, share: 100 * flops[index] / total }));
      const step = Math.min(5, Math.floor(Math.log10(total) / 3));
      const words = `${decimal(total / 1000 ** step)} ${['', 'k', 'M', 'G', 'T', 'P'][step]}FLOP in a step. `
        + `Width ${size}, ${layers} layers, ${batch} texts of ${length} tokens: `
        + `${bars.map(({ part, share }) => `${part} ${Math.round(share)} %`).join(', ')}.`;
      return [words, Plot.plot({
        width, height: 210, marginLeft: 150, marginRight: 45, marginBottom: 45,
        x: { domain: [0, 100], label: 'part of the FLOPs (%)', labelAnchor: 'center' },
        y: { type: 'band', domain: parts, label: null },
        marks: [
          Plot.barX(bars, { x: 'share', y: 'part', fill: ({ index }) => colours.categories[index] }),
          Plot.text(bars, { x: 'share', y: 'part', text: ({ share }) => `${Math.round(share)} %`, dx: 5, textAnchor: 'start' }),
        ],
      })];
    },
  };

  class View {
    constructor(block, data, Plot) {
      Object.assign(this, data, { name: block.dataset.name, Plot });
      this.state = this.controls.map(control => control.start);
      this.words = make('p', 'view-words');
      this.words.setAttribute('aria-live', 'polite');
      this.figure = make('div', 'view-figure');
      const rows = this.controls.map((control, index) => this.row(control, index));
      block.replaceChildren(make('p', 'view-title', this.title), ...rows, this.figure, this.words);
      this.width = Math.max(280, this.figure.clientWidth - 24);
      block.setAttribute('role', 'group');
      block.setAttribute('aria-label', this.title);
      this.block = block;
      this.show();
      addEventListener('hashchange', () => this.follow());
      this.follow();
    }

    /** A slider, or a button for each value if the values are words. */
    row(control, index) {
      const row = make('div', 'view-control', make('span', 'view-label', control.label));
      if (control.words) {
        control.inputs = control.values.map((_, place) => {
          const input = make('input', '');
          Object.assign(input, { type: 'radio', name: `${this.name}-${control.name}` });
          input.addEventListener('change', () => this.move(index, place));
          row.append(make('label', '', input, make('span', '', control.said[place])));
          return input;
        });
        row.setAttribute('role', 'radiogroup');
        row.setAttribute('aria-label', control.label);
        return row;
      }
      control.input = make('input', '');
      Object.assign(control.input, { type: 'range', min: 0, max: control.values.length - 1 });
      control.input.setAttribute('aria-label', control.label);
      control.input.addEventListener('input', () => this.move(index, Number(control.input.value)));
      control.output = make('output', '');
      row.append(control.input, control.output);
      if (this.plays === control.name) row.append(this.player(control, index));
      return row;
    }

    player(control, index) {
      const player = make('button', '', 'Play');
      player.type = 'button';
      let timer = null;
      const stop = () => {
        clearInterval(timer);
        timer = null;
        player.textContent = 'Play';
      };
      const step = () => {
        this.move(index, this.state[index] + 1);
        if (this.state[index] === Number(control.input.max)) stop();
      };
      player.addEventListener('click', () => {
        if (timer) return stop();
        if (this.state[index] === Number(control.input.max)) this.move(index, 0);
        timer = setInterval(step, 1000);
        player.textContent = 'Pause';
      });
      return player;
    }

    /** The numbers of a position; null if the view does not offer it. */
    at(state) {
      return this.positions[this.controls.reduce((row, { values }, index) => row * values.length + state[index], 0)];
    }

    move(index, place) {
      this.state[index] = place;
      this.show();
      const values = this.controls.map(({ values: all }, which) => encodeURIComponent(all[this.state[which]]));
      history.replaceState(null, '', `#${[this.name, ...values].join('/')}`);
    }

    /** Takes the position of the address, if it is one of this view. */
    follow() {
      const [name, ...values] = location.hash.slice(1).split('/').map(decodeURIComponent);
      const state = this.controls.map((control, index) => control.values.map(String).indexOf(values[index]));
      if (name !== this.name || state.includes(-1)) return;
      this.state = state;
      this.show();
      this.block.scrollIntoView();
    }

    show() {
      this.controls.forEach((control, index) => {
        if (!control.limited) return;
        const offered = control.values.filter((_, place) => this.at(this.state.with(index, place)));
        control.input.max = offered.length - 1;
        this.state[index] = Math.min(this.state[index], offered.length - 1);
      });
      this.controls.forEach((control, index) => {
        const place = this.state[index];
        if (control.words) {
          control.inputs[place].checked = true;
          return;
        }
        control.input.value = place;
        control.output.textContent = control.said[place];
        control.input.setAttribute('aria-valuetext', control.said[place]);
      });
      const chosen = Object.fromEntries(this.controls.map(({ name, values }, index) => [name, values[this.state[index]]]));
      const [words, ...figures] = DRAW[this.name](this.at(this.state), chosen, this.colours, this.Plot, this.width);
      for (const figure of figures) figure.setAttribute('aria-hidden', 'true'); // the words say it
      this.words.textContent = words;
      this.figure.replaceChildren(...figures);
    }
  }

  const blocks = [...document.querySelectorAll('.view')].filter(block => block.dataset.name in DRAW);
  if (!blocks.length) return;
  const script = document.createElement('script');
  script.src = PLOT;
  script.addEventListener('load', () => {
    for (const block of blocks) {
      const data = JSON.parse(block.querySelector('script').textContent);
      const picture = block.previousElementSibling?.querySelector('.cell_output');
      if (picture) picture.hidden = true;
      new View(block, data, window.Plot);
    }
  });
  document.head.append(script);
})();
