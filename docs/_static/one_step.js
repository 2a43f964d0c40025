/* "One step in slow motion": a figure that follows the reader's scroll through the sections of a page.
   All numbers are in the page: `tools/one_step.py` has recorded them. The address keeps the step and
   the mistake: one_step.html#losses/mean-of-means. */
(() => {
  'use strict';
  const story = document.querySelector('.one-step');
  if (!story) return;
  const DATA = JSON.parse(document.getElementById('one-step-data').textContent);
  const RIGHT = 'right';
  const REPLICAS = [0, 1, 2, 3];
  const SHARE = 3; // digits of a replica
  const calm = matchMedia('(prefers-reduced-motion: reduce)');

  // The figure's places, in units of its viewBox.
  const WIDTH = 400, HEIGHT = 332, GUTTER = 24, COLUMN = 94, INNER = 91, CELL = 8, MAP = 8 * CELL, BAND = MAP / 4;
  const Y = { kind: 12, lane: 38, batch: 16, top: 58, name: 73, digits: 79, says: 119, each: 132, loss: 150, gradient: 157, weights: 243 };
  const left = replica => GUTTER + COLUMN * replica;
  const mapX = replica => left(replica) + 22;

  const number = thousandths => (thousandths ? (thousandths / 1000).toFixed(3).replace('-', '−') : '0');

  function make(tag, attributes = {}, parent = null) {
    const node = document.createElementNS('http://www.w3.org/2000/svg', tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    parent?.append(node);
    return node;
  }

  const place = (node, x, y, scale = 1) => { node.style.transform = `translate(${x}px, ${y}px) scale(${scale})`; };
  const show = (node, shown) => node.classList.toggle('off', !shown);
  const own = replica => `--own: var(--own-${replica})`;

  /** Squares of a picture with signs: violet or olive, and pale near 0. All pictures have one scale. */
  function squares(parent, count) {
    const group = make('g', { class: 'picture' }, parent);
    return Array.from({ length: count }, (_, n) => make('rect', {
      x: CELL * (n % 8), y: CELL * Math.floor(n / 8), width: CELL, height: CELL,
    }, group));
  }

  function paint(rects, values) {
    rects.forEach((rect, n) => {
      const value = values[n] ?? 0;
      rect.setAttribute('class', value > 0 ? 'plus' : 'minus');
      rect.style.fillOpacity = Math.min(1, Math.abs(value) / 280) ** 0.65;
    });
  }

  /** After each hop: what every replica holds of each weight, and whose gradients a chunk contains. */
  function ring(gradients) {
    const size = gradients[0].length / REPLICAS.length;
    let now = { held: gradients, has: REPLICAS.map(replica => REPLICAS.map(() => [replica])) };
    return [now, ...DATA.ring.map(sends => {
      const held = now.held.map(row => [...row]);
      const has = now.has.map(row => [...row]);
      for (const [source, target, chunk, adds] of sends) {
        for (let n = chunk * size; n < (chunk + 1) * size; n += 1) held[target][n] = now.held[source][n] + (adds ? held[target][n] : 0);
        has[target][chunk] = [...now.has[source][chunk], ...(adds ? has[target][chunk] : [])];
      }
      now = { held, has };
      return now;
    })];
  }

  class Figure {
    constructor(parent) {
      this.svg = make('svg', { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, 'aria-hidden': true }); // the text says it
      parent.append(this.svg);
      this.kind = this.text('kind', WIDTH / 2, Y.kind);
      this.lane = this.text('lane', WIDTH / 2, Y.lane);
      this.labels = { says: this.label('p', Y.says), each: this.label('each', Y.each), loss: this.label('loss', Y.loss),
        gradient: this.label('gradient', Y.gradient + MAP / 2, true) };
      this.label('weights', Y.weights + MAP / 2, true);
      this.columns = REPLICAS.map(replica => this.column(replica));
      this.digits = DATA.digits.map((pixels, n) => this.digit(pixels, n));
      this.arrows = REPLICAS.map(() => make('path', { class: 'arrow' }, this.svg));
      this.heads = REPLICAS.map(() => make('path', { class: 'head', d: 'M0 -3L5 0L0 3z' }, this.svg));
      this.frames = REPLICAS.map(() => make('rect', { class: 'arrived', width: MAP, height: BAND }, this.svg));
      this.flyers = REPLICAS.map(() => {
        const group = make('g', { class: 'off' }, this.svg);
        return { group, ground: make('rect', { class: 'ground', width: MAP }, group), rects: squares(group, 64) };
      });
    }

    text(kind, x, y, parent = this.svg, words = '') {
      const node = make('text', { class: kind, x, y }, parent);
      node.textContent = words;
      return node;
    }

    label(words, y, upright = false) {
      const node = this.text('label', upright ? 0 : 11, upright ? 0 : y, this.svg, words);
      if (upright) node.setAttribute('transform', `translate(12 ${y}) rotate(-90)`);
      return node;
    }

    column(replica) {
      const group = make('g', { style: own(replica), 'data-replica': replica }, this.svg);
      const middle = left(replica) + INNER / 2;
      make('rect', { class: 'replica', x: left(replica), y: Y.top, width: INNER, height: HEIGHT - Y.top, rx: 7 }, group);
      this.text('name', middle, Y.name, group, `replica ${replica}`);
      const loss = this.text('number loss', middle, Y.loss, group);
      const none = this.text('label', middle, Y.digits + 17, group, SHARE * replica < DATA.digits.length ? '' : 'no digit');
      const gradient = this.map(group, replica, Y.gradient, 'gradient');
      const weights = this.map(group, replica, Y.weights, 'weight');
      gradient.ticks = REPLICAS.map(chunk => REPLICAS.map(other => make('rect', {
        class: 'has', style: own(other), width: 5.5, height: 5.5,
        x: left(replica) + 5 + 7 * (other % 2), y: Y.gradient + BAND * chunk + 1.5 + 7 * (other >> 1),
      }, gradient.group)));
      return { none, loss, gradient, weights };
    }

    map(parent, replica, y, kind) {
      const group = make('g', {}, parent);
      const moved = make('g', { transform: `translate(${mapX(replica)} ${y})` }, group);
      make('rect', { class: 'ground', width: MAP, height: MAP }, moved);
      const rects = squares(moved, 64);
      make('rect', { class: 'followed', x: CELL * (DATA.marked % 8), y: CELL * (DATA.marked >> 3), width: CELL, height: CELL }, moved);
      return { group, rects, number: this.text(`number ${kind}`, mapX(replica) + MAP / 2, y + MAP + 13, group) };
    }

    digit(pixels, n) {
      const group = make('g', {}, this.svg);
      const picture = make('g', { class: DATA.labels[n] === 3 ? 'framed' : '' }, group);
      make('rect', { class: 'ground', width: 8, height: 8 }, picture);
      pixels.forEach((ink, at) => ink && make('rect', {
        class: 'ink', x: at % 8, y: at >> 3, width: 1, height: 1, 'fill-opacity': ink / 16,
      }, picture));
      const x = left(Math.floor(n / SHARE)) + 2 + 29.5 * (n % SHARE);
      return { picture, x, says: this.text('says', x + 14, Y.says, group), each: this.text('each', x + 14, Y.each, group, DATA.losses[n]) };
    }

    /** Draws a step of a run; `forward` if the reader has come from the step before it. */
    draw(step, name, forward) {
      const run = DATA.runs[name];
      const { values } = run;
      const at = ORDER.indexOf(step);
      const after = other => at >= ORDER.indexOf(other);
      const hop = Math.min(6, Math.max(0, at - ORDER.indexOf('hop-1') + 1));
      const states = ring(run.gradients);
      const { held, has } = states[hop];
      const reference = run.one ?? DATA.runs[RIGHT].after; // one device's weights
      const isEnd = step === 'equal';
      const isUpdated = after('update');

      this.kind.textContent = NAMES[name];
      this.lane.textContent = LANES[step](values);
      show(this.lane, step !== 'batch');
      show(this.labels.says, after('forward'));
      for (const label of [this.labels.each, this.labels.loss]) show(label, after('losses') && !isUpdated);
      show(this.labels.gradient, after('gradients'));
      this.labels.gradient.textContent = isEnd ? 'off by' : after('hop-6') ? 'sum' : 'gradient';
      this.digits.forEach(({ picture, x, says, each }, n) => {
        if (after('cut')) place(picture, x, Y.digits, 3.5);
        else place(picture, GUTTER + 16 + 39 * n, Y.batch, 4);
        says.textContent = (isUpdated ? run : DATA).says[n];
        show(says, after('forward'));
        show(each, after('losses') && !isUpdated);
      });
      this.columns.forEach(({ none, loss, gradient, weights }, replica) => {
        show(none, after('cut'));
        loss.textContent = values[`loss${replica}`];
        loss.classList.toggle('bad', values[`loss${replica}`] === 'NaN');
        show(loss, after('losses') && !isUpdated);
        const copy = isUpdated ? run.after : DATA.start;
        const shown = isEnd ? run.after.map((weight, n) => weight - reference[n]) : held[replica];
        gradient.group.classList.toggle('late', hop > 0 && !isUpdated);
        paint(gradient.rects, shown);
        gradient.number.textContent = number(shown[DATA.marked]);
        show(gradient.group, after('gradients'));
        gradient.ticks.forEach((chunk, n) => chunk.forEach((tick, other) => show(tick, has[replica][n].includes(other) && !isUpdated)));
        weights.group.classList.toggle('late', step === 'update');
        paint(weights.rects, copy);
        weights.number.textContent = number(copy[DATA.marked]);
      });
      this.send(step.startsWith('hop-') ? hop : 0, states, forward);
      if (step === 'update' && forward) this.subtract(held);
    }

    /** Arrows of a hop, and chunks on their way if the reader has come from the hop before it. */
    send(hop, states, forward) {
      REPLICAS.forEach(n => {
        for (const part of [this.arrows[n], this.heads[n], this.frames[n]]) show(part, hop);
        if (!hop) return;
        const [source, target, chunk] = DATA.ring[hop - 1][n];
        const y = Y.gradient + BAND * chunk;
        const wraps = target < source; // leaves on the right, and comes back on the left
        this.arrows[n].setAttribute('d', wraps
          ? `M${mapX(source) + MAP} ${y + BAND / 2}H${WIDTH}M${GUTTER - 6} ${y + BAND / 2}H${mapX(target) - 5}`
          : `M${mapX(source) + MAP} ${y + BAND / 2}H${mapX(target) - 5}`);
        this.heads[n].setAttribute('transform', `translate(${mapX(target) - 6} ${y + BAND / 2})`);
        this.frames[n].setAttribute('x', mapX(target));
        this.frames[n].setAttribute('y', y);
        const sent = states[hop - 1].held[source].slice(16 * chunk, 16 * chunk + 16);
        this.fly(this.flyers[n], sent, [mapX(source), y], [mapX(target), y], forward);
      });
      if (!hop) this.flyers.forEach(({ group }) => show(group, false));
    }

    /** The sums sink onto the weights. */
    subtract(held) {
      REPLICAS.forEach(replica => {
        this.fly(this.flyers[replica], held[replica], [mapX(replica), Y.gradient], [mapX(replica), Y.weights], true);
      });
    }

    fly({ group, ground, rects }, values, from, to, moves) {
      group.classList.add('set', 'off');
      if (!moves || calm.matches) return;
      paint(rects, values);
      ground.setAttribute('height', values.length / 8 * CELL);
      place(group, ...from);
      show(group, true);
      group.getBoundingClientRect(); // it starts from there
      group.classList.remove('set');
      place(group, ...to);
      setTimeout(() => show(group, false), 900);
    }
  }

  const NAMES = { [RIGHT]: '' };
  for (const cell of story.querySelectorAll('[data-replay]')) NAMES[cell.dataset.replay] = `with a mistake: ${cell.textContent}`;
  const sections = [...story.querySelectorAll('.step')];
  const ORDER = sections.map(({ id }) => id);
  const LANES = {
    batch: () => '',
    cut: () => '9 digits: 3 + 3 + 3 + 0',
    forward: () => 'p: how likely is it a 3?',
    losses: ({ weight, plus, logged }) => `loss = ${weight} of each${plus && ' + penalty'}, together ${logged}`,
    gradients: () => 'four gradients',
    'hop-1': () => 'reduce-scatter, hop 1 of 3',
    'hop-2': () => 'reduce-scatter, hop 2 of 3',
    'hop-3': () => 'reduce-scatter, hop 3 of 3',
    'hop-4': () => 'all-gather, hop 1 of 3',
    'hop-5': () => 'all-gather, hop 2 of 3',
    'hop-6': () => 'all-gather, hop 3 of 3',
    update: () => 'weights − sum',
    equal: ({ off }) => `off from one device: ${off}`,
  };

  const figure = new Figure(story.querySelector('.one-step-figure'));
  let step = ORDER[0];
  let run = RIGHT;

  // --- the controls below the figure

  const html = (tag, properties, ...children) => {
    const node = Object.assign(document.createElement(tag), properties);
    node.append(...children);
    return node;
  };
  const back = html('button', { type: 'button', onclick: () => go(-1) }, 'Back');
  const next = html('button', { type: 'button', onclick: () => go(1) }, 'Next');
  const counter = html('span', {});
  const choice = html('select', { onchange: () => replay(choice.value) },
    html('option', { value: RIGHT }, 'without a mistake'),
    ...[...story.querySelectorAll('[data-replay]')].map(cell => html('option', { value: cell.dataset.replay }, cell.textContent)));
  const choose = html('label', {}, html('span', { className: 'visually-hidden' }, 'Take this step '), choice);
  const said = html('p', { className: 'visually-hidden' });
  said.setAttribute('role', 'status');
  figure.svg.parentElement.setAttribute('role', 'group');
  figure.svg.parentElement.setAttribute('aria-label', 'The step as a figure');
  figure.svg.after(html('div', { className: 'one-step-controls' }, back, next, counter, choose), said);
  for (const cell of story.querySelectorAll('[data-replay]')) {
    const button = html('button', { type: 'button', onclick: () => { replay(cell.dataset.replay); bring(document.getElementById('losses')); } }, cell.textContent);
    cell.replaceChildren(button);
  }

  const isReached = section => section.checkVisibility();
  const openCard = () => [...story.querySelectorAll('.prediction')].find(card => card.checkVisibility() && !card.querySelector('.prediction-said')?.hasChildNodes());

  /** Where on the screen a step begins to be the one that the figure shows. */
  function line() {
    const box = figure.svg.parentElement.getBoundingClientRect();
    const header = document.querySelector('.bd-header').offsetHeight;
    story.style.setProperty('--header', `${header}px`);
    const isAbove = getComputedStyle(story).display === 'block';
    return isAbove ? header + box.height + 0.3 * (innerHeight - header - box.height) : 0.42 * innerHeight;
  }

  function bring(element) {
    asked = sections.includes(element) && element !== begunLast() ? element : null;
    element.scrollIntoView({ behavior: calm.matches ? 'instant' : 'smooth' });
  }

  function go(by) {
    const target = sections[ORDER.indexOf(step) + by];
    if (target && isReached(target)) {
      enter(target.id);
      bring(target);
      said.textContent = `${target.querySelector('h2').textContent}. ${target.querySelector('.shown').textContent}`;
      return;
    }
    const card = openCard(); // it stops the story until it's answered
    bring(card);
    card.querySelector('button').focus({ preventScroll: true });
  }

  function replay(name) {
    run = name;
    update(false);
    const section = document.getElementById(step);
    said.textContent = `${NAMES[run] || 'without a mistake'}. ${section.querySelector('.shown').textContent}`;
  }

  function enter(id) {
    if (id === step) return;
    const forward = ORDER.indexOf(id) === ORDER.indexOf(step) + 1;
    step = id;
    update(forward);
  }

  function update(forward, keeps = true) {
    figure.draw(step, run, forward);
    story.classList.toggle('wrong', run !== RIGHT);
    for (const section of sections) section.classList.toggle('now', section.id === step);
    for (const value of story.querySelectorAll('[data-value]:not([data-run])')) {
      value.textContent = DATA.runs[run].values[value.dataset.value];
      value.classList.toggle('differs', value.textContent !== DATA.runs[RIGHT].values[value.dataset.value]);
    }
    choice.value = run;
    count();
    if (keeps) history.replaceState(null, '', `#${step}${run === RIGHT ? '' : `/${run}`}`);
  }

  /** Says which step it is, or why the next one doesn't come. */
  function count() {
    const at = ORDER.indexOf(step);
    const isHeld = at + 1 < ORDER.length && !isReached(sections[at + 1]);
    counter.textContent = isHeld ? 'Answer first, or show the answer' : `${at + 1} of ${ORDER.length}`;
    for (const [button, ends, other] of [[back, ORDER[0], next], [next, ORDER.at(-1), back]]) {
      const hadFocus = button === document.activeElement;
      button.disabled = step === ends;
      if (hadFocus && button.disabled) other.focus({ preventScroll: true });
    }
  }

  /** Takes step and mistake of the address. */
  function follow() {
    const [id, name = RIGHT] = location.hash.slice(1).split('/');
    if (!ORDER.includes(id) || !(name in DATA.runs)) return update(false, false);
    run = name;
    asked = null;
    const target = sections.slice(0, ORDER.indexOf(id) + 1).filter(isReached).at(-1);
    step = target.id;
    update(false, false);
    target.scrollIntoView({ behavior: 'instant' });
  }

  let observer;
  let begun = new Set(); // sections whose first line is above the line
  let asked = null; // the section that the page scrolls to, until it's there: those on the way aren't shown
  const begunLast = () => sections.filter(section => begun.has(section)).at(-1) ?? sections[0];

  function watch() {
    observer?.disconnect();
    asked = null;
    const top = Math.round(line());
    const padding = parseFloat(getComputedStyle(document.documentElement).scrollPaddingTop) || 0;
    story.style.setProperty('--place', `${top - 0.08 * innerHeight - padding}px`); // where a step goes that is asked for
    begun = new Set();
    // All that is above the line, however far: so a jump over many steps is noticed, too.
    observer = new IntersectionObserver(entries => {
      for (const { isIntersecting, target } of entries) begun[isIntersecting ? 'add' : 'delete'](target);
      if (asked && asked !== begunLast()) return;
      asked = null;
      enter(begunLast().id);
    }, { rootMargin: `1000000px 0px ${top - innerHeight}px 0px` });
    for (const section of sections) observer.observe(section);
  }

  watch();
  figure.svg.classList.add('set'); // nothing moves before the reader does
  follow();
  figure.svg.getBoundingClientRect();
  figure.svg.classList.remove('set');
  addEventListener('hashchange', follow);
  new MutationObserver(count).observe(story, { subtree: true, attributeFilter: ['hidden'] }); // an answer goes on with the story
  for (const kind of ['wheel', 'touchmove', 'keydown']) {
    addEventListener(kind, ({ key }) => { // a reader who scrolls takes over
      if (!asked || key === 'Enter' || key === ' ') return;
      asked = null;
      enter(begunLast().id);
    }, { passive: true });
  }
  addEventListener('resize', watch);
})();
