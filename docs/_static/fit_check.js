// "Is your fit right?": questions, and a card of what was measured for the answers. The address keeps the answers.
(() => {
  'use strict';
  const place = document.querySelector('.fit-check');
  if (!place) return;
  const data = JSON.parse(document.getElementById('fit-check-data').textContent);
  const { questions, measured, versions } = data;
  const names = Object.keys(questions);
  const plain = Object.fromEntries(names.map((name) => [name, Object.keys(questions[name].answers)[0]]));
  const key = (answers) => names.map((name) => answers[name]).join(' ');
  const answerOf = (answers, name) => questions[name].answers[answers[name]];
  // Texts come from this site, and a backtick marks code in them.
  const marked = (text) => text.replace(/&/g, '&amp;').replace(/</g, '&lt;').replace(/`([^`]+)`/g, '<code>$1</code>');

  // What a cell says: how bad it is, and how far off.
  const KINDS = ['equal', 'log', 'off', 'stops'];
  function read(cell) {
    if (cell === 'equal') return { kind: 'equal', size: 0 };
    const [, log, size] = cell.match(/^(weights equal, log )?off by (\S+)$/) ?? [];
    if (size) return { kind: log ? 'log' : 'off', size: Number(size) };
    return { kind: 'stops', size: 0, words: cell.replace('crashes: ', '') };
  }
  const rank = ({ kind, size }) => KINDS.indexOf(kind) + size / 1000;
  const fitOf = (answers) => (measured[key(answers)] ? read(measured[key(answers)][0]) : null);
  const inWords = ({ kind, size }) =>
    ({ equal: 'equal', log: `weights equal, log off by ${size}`, off: `off by ${size}`, stops: 'stops' })[kind];

  /** The measured answers that have the most of these, and plain ones for the others; of several, the worst. */
  function nearestMeasured(answers) {
    const given = names.filter((name) => answers[name] !== plain[name]);
    const parts = Array.from({ length: 2 ** given.length }, (_, bits) => given.filter((_, place) => bits & (1 << place)))
      .map((kept) => ({ ...plain, ...Object.fromEntries(kept.map((name) => [name, answers[name]])) }))
      .filter(fitOf);
    const same = (part) => given.filter((name) => part[name] === answers[name]).length;
    // A strategy is never left out: under another, everything may be different.
    const under = parts.filter((part) => part.strategy === answers.strategy);
    return under.sort((one, other) => same(other) - same(one) || rank(fitOf(other)) - rank(fitOf(one)))[0];
  }

  /** The answers that make a difference alone, the largest first, each with what was measured for it alone. */
  function causes(answers) {
    const base = { ...plain, strategy: answers.strategy };
    return names.filter((name) => answers[name] !== plain[name] && answerOf(answers, name).why).map((name) => {
      const alone = fitOf({ ...plain, [name]: answers[name] });
      const there = fitOf({ ...base, [name]: answers[name] });
      const worse = name !== 'strategy' && KINDS.indexOf(there.kind) > KINDS.indexOf(fitOf(base).kind);
      return { name, alone, makes: alone.kind !== 'equal' || worse };
    }).filter(({ makes }) => makes).sort((one, other) => rank(other.alone) - rank(one.alone));
  }

  /** What plain Keras can do about it: its lines, and the answers that they lead to. */
  function cured(answers) {
    const [lines, after] = [[], { ...answers }];
    for (const name of names) {
      const { cure, code } = answerOf(after, name);
      if (!cure) continue;
      after[name] = cure;
      lines.push(code);
    }
    const fit = fitOf(after);
    return lines.length && fit && fit.kind !== 'stops' ? { lines, fit } : null;
  }

  function nearestInZoo(answers) {
    const same = (has) => names.filter((name) => has[name] === answers[name] || (name === 'norm' && has[name] !== 'none' && answers[name] !== 'none')).length;
    return Object.entries(data.nearest).sort(([, one], [, other]) => same(other.answers) - same(one.answers))[0];
  }

  // The card.
  const HEADLINES = {
    equal: 'Your weights are those of one device.',
    log: 'Your weights are right, and your log is wrong.',
    off: 'Your weights differ from one device.',
    stops: '<code>fit</code> stops with an error.',
  };
  const MARKS = { equal: '✓', log: '!', off: '✗', stops: '✗', unknown: '?' };
  const list = (answers) => names.filter((name) => name === 'strategy' || answers[name] !== plain[name])
    .map((name) => described(answers, name)).join(' · ');
  const described = (answers, name) => marked(answerOf(answers, name).named);
  const without = (answers, part) => names.filter((name) => answers[name] !== part[name]).map((name) => described(answers, name)).join(' and ');

  function size({ kind, size, words }) {
    const found = {
      equal: 'no weight is off by more than 0.000001',
      log: `the logged loss is off by up to <strong>${size}</strong>`,
      off: `a weight is off by up to <strong>${size}</strong>, and rounding stays below 0.000001`,
    }[kind];
    const [TensorFlow, Keras] = [versions.TensorFlow, versions.Keras];
    return `Measured with TensorFlow ${TensorFlow} and Keras ${Keras}: ${found ? `after two epochs of a small model, ${found}.` : `Keras's own <code>fit</code> stopped, <strong>${words}</strong>.`}`;
  }

  function whys(answers, fit) {
    if (fit.kind === 'equal') return '';
    if (fit.kind === 'stops' && data.crashes[fit.words]) return `<p><strong>Why.</strong> ${marked(data.crashes[fit.words])}</p>`;
    const found = causes(answers);
    if (!found.length) return '<p><strong>Why.</strong> Each of your answers alone makes no difference. Together they do.</p>';
    const said = new Set();
    const one = found.length === 1;
    const items = found.map(({ name, alone }) => {
      const { why, read } = answerOf(answers, name);
      const words = said.has(why) ? 'As above.' : marked(why);
      said.add(why);
      if (one) return `${words} <a href="${read}">Read more</a>`;
      return `<li><a href="${read}">${described(answers, name)}</a>${alone.kind === 'equal' ? '' : ` (alone: ${inWords(alone)})`}. ${words}</li>`;
    });
    return `<p><strong>Why.</strong> ${one ? `${items[0]}</p>` : `Each of these makes a difference, the largest first:</p><ul>${items.join('')}</ul>`}`;
  }

  function repairs(answers, fit, ours) {
    if (fit.kind === 'equal') {
      return `<p><strong>Nothing to repair.</strong> To compare your own model's first steps:</p>
        ${code(['import distlab as dl', made(answers), 'print(dl.check_parity(', '    build, train, strategy=strategy, train="keras"))'])}`;
    }
    const refused = ours === 'named error';
    const repaired = refused ? { ...answers, strategy: 'mirrored' } : answers;
    const why = refused ? '<code>distribute</code> refuses these answers, and its error says to take a strategy whose replicas step together. ' : '';
    const lines = ['import distlab as dl', made(repaired), 'model = dl.distribute(build, strategy)', 'model.fit(train, epochs=3)'];
    if (repaired.strategy !== 'parameter_server') lines.push('print(dl.check_parity(build, train, strategy=strategy))');
    return `<p><strong>Repair it with distlab.</strong> ${why}Measured: ${measured[key(repaired)][1]}.
      <code>build()</code> returns your compiled model.</p>${code(lines)}${inPlainKeras(answers)}`;
  }

  const made = ({ strategy }) => `strategy = dl.make_strategy("${strategy}")`;

  function inPlainKeras(answers) {
    const found = cured(answers);
    if (found) {
      const { kind, size } = found.fit;
      const leaves = { equal: 'equal to one device', log: `the weights are equal, and the log stays off by ${size}`, off: `a weight stays off by ${size}` };
      return `<p><strong>In plain Keras.</strong> Measured: ${leaves[kind]}.</p>${code(found.lines)}`;
    }
    const strategyAlone = names.every((name) => name === 'strategy' || answers[name] === plain[name]);
    return `<p><strong>In plain Keras</strong> ${strategyAlone ? 'a loop of your own was equal in <a href="support_matrix.html">the support matrix</a>.' : 'no cure was measured.'}</p>`;
  }

  const code = (lines) => `<pre tabindex="0">${lines.map((line) => line.replace(/</g, '&lt;')).join('\n')}</pre>`;

  function zooLine(answers) {
    const [name, { cells: [like, ours, theirs] }] = nearestInZoo(answers);
    return `<p class="fit-small"><strong>Nearest model of the zoo:</strong> <a href="zoo.html#row-${name.replaceAll('_', '-')}">${name}</a>
      (${like}), with a partial last batch, under <code>MirroredStrategy</code>. Keras's <code>fit</code>: ${theirs.replace(/(?<=off by )\S+/, Number)}. <code>distribute</code>: ${ours}.</p>`;
  }

  /** The verdict, and what follows from it. */
  function card(answers) {
    const exact = fitOf(answers);
    const about = exact ? answers : nearestMeasured(answers);
    const fit = fitOf(about);
    const kind = exact ? fit.kind : 'unknown';
    const unknown = exact ? '' : `<p>Without ${without(answers, about)}, it was: <strong>${HEADLINES[fit.kind]}</strong></p>`;
    return [`<p class="fit-verdict ${kind}"><span aria-hidden="true">${MARKS[kind]}</span> ${exact ? HEADLINES[kind] : 'This combination was not measured.'}</p>
      ${unknown}<p>${size(fit)}</p>`, `${whys(about, fit)}${repairs(about, fit, measured[key(about)][1])}${zooLine(answers)}`];
  }

  // The form, the address and the link.
  const form = document.createElement('form');
  form.className = 'fit-questions';
  form.innerHTML = names.map((name) => `<fieldset><legend>${marked(questions[name].asks)}</legend><div>${
    Object.entries(questions[name].answers).map(([value, { label }]) =>
      `<label><input type="radio" name="${name}" value="${value}"><span>${marked(label)}</span></label>`).join('')}</div></fieldset>`).join('');
  const shown = document.createElement('section');
  shown.className = 'fit-card';
  shown.setAttribute('aria-label', 'The card');
  shown.innerHTML = `<p class="fit-link"><span class="fit-answers"></span><button type="button">Copy link</button>
    <span class="fit-copied" role="status"></span></p><div class="fit-said" role="status"></div><div class="fit-then"></div>`;
  const hasAnswers = () => location.hash.includes('='); // else it is a link to a place of the page
  const asAddress = (answers) => `#${new URLSearchParams(answers)}`;
  place.replaceChildren(...(hasAnswers() ? [shown, form] : [form, shown])); // a link is to the card

  /** The answers of the address, and what in it the page does not know. */
  function fromAddress() {
    const [answers, unknown] = [{ ...data.start }, []];
    for (const [name, value] of new URLSearchParams(hasAnswers() ? location.hash.slice(1) : '')) {
      if (Object.hasOwn(questions, name) && Object.hasOwn(questions[name].answers, value)) answers[name] = value;
      else unknown.push(`${name}=${value}`);
    }
    return [answers, unknown];
  }

  function show() {
    const [answers, unknown] = fromAddress();
    for (const name of names) form.elements[name].value = answers[name];
    const [verdict, then] = card(answers);
    shown.querySelector('.fit-said').innerHTML = verdict;
    shown.querySelector('.fit-then').innerHTML = then;
    shown.querySelector('.fit-answers').innerHTML = list(answers);
    shown.querySelector('.fit-copied').textContent = '';
    if (!unknown.length) return;
    const note = document.createElement('p');
    note.textContent = `The link says ${unknown.join(', ')}, which this page doesn't know: check the answers.`;
    shown.querySelector('.fit-said').prepend(note);
  }

  form.addEventListener('change', () => { location.hash = asAddress(Object.fromEntries(new FormData(form))); });
  form.addEventListener('submit', (event) => event.preventDefault());
  addEventListener('hashchange', () => { if (hasAnswers() || !location.hash) show(); });
  shown.querySelector('.fit-link button').onclick = async () => {
    const address = location.href.split('#')[0] + asAddress(Object.fromEntries(new FormData(form)));
    const status = shown.querySelector('.fit-copied');
    try {
      await navigator.clipboard.writeText(address);
      status.textContent = 'Copied.';
    } catch {
      status.innerHTML = '<label>Copy it from here: <input readonly></label>';
      status.querySelector('input').value = address;
      status.querySelector('input').select();
    }
  };
  show();
})();
