/* Turns each prediction of a lesson into a card that answers without a kernel. All words are in the
   page already: `tools/site_notebooks.py` puts the question, what the kernel says to each answer and
   the folded answer there. What was answered stays in this browser. */
(() => {
  'use strict';
  const KEY = 'distlab-predictions';
  const cards = [];

  function load() {
    try {
      return JSON.parse(localStorage.getItem(KEY)) ?? {};
    } catch {
      return {}; // no storage here, or not ours
    }
  }

  function store(name, guess) {
    try {
      localStorage.setItem(KEY, JSON.stringify({ ...load(), [name]: guess }));
    } catch { /* the answer is shown all the same */ }
  }

  function make(tag, className, ...children) {
    const node = document.createElement(tag);
    node.className = className;
    node.append(...children);
    return node;
  }

  function button(className, ...children) {
    const node = make('button', className, ...children);
    node.type = 'button';
    return node;
  }

  class Card {
    constructor(block) {
      this.name = block.dataset.name;
      this.words = [...block.querySelectorAll(':scope > .said')];
      this.results = []; // folded until the answer
      this.hidden = []; // what would give the answer away
      const list = block.querySelector(':scope > ul');
      const question = block.querySelector(':scope > p');
      const answers = list ? this.choices(list) : this.number();
      const reveal = button('quiet', 'Show the answer');
      reveal.addEventListener('click', () => this.answer(''));
      this.again = button('quiet', 'Answer again');
      this.again.addEventListener('click', () => this.reset());
      answers.append(reveal, this.again);
      this.reveal = reveal;
      this.said = make('div', 'prediction-said');
      this.said.setAttribute('aria-live', 'polite');
      const legend = make('legend', '', ...question.childNodes);
      block.replaceChildren(make('fieldset', '', legend, answers), this.said);
    }

    choices(list) {
      this.buttons = [...list.children].map((item, index) => {
        const choice = button('', ...(item.querySelector('p') ?? item).childNodes);
        choice.addEventListener('click', () => this.answer(this.words[index].dataset.guess));
        return choice;
      });
      return make('div', 'prediction-answers', ...this.buttons);
    }

    number() {
      this.buttons = [];
      this.input = make('input', '');
      Object.assign(this.input, { type: 'text', inputMode: 'decimal', required: true });
      this.input.setAttribute('aria-label', 'Your prediction, a number');
      const form = make('form', 'prediction-answers', this.input, make('button', '', 'Predict'));
      form.addEventListener('submit', event => {
        event.preventDefault();
        const guess = this.input.value.trim().replace(',', '.');
        const valid = guess !== '' && Number.isFinite(Number(guess));
        this.input.setCustomValidity(valid ? '' : 'Write digits only, as in 1000 or 0.25.');
        if (this.input.reportValidity()) this.answer(guess);
      });
      this.input.addEventListener('input', () => this.input.setCustomValidity(''));
      return form;
    }

    /** What the kernel says to a guess. */
    wordsTo(guess) {
      if (this.buttons.length) return this.words.find(words => words.dataset.guess === guess);
      return this.words.find(({ dataset }) => dataset.guess === undefined
        || Math.abs(guess - dataset.guess) <= Math.max(Number(dataset.within), 1e-9 * Math.abs(guess)));
    }

    answer(guess) {
      if (this.given !== undefined) return;
      this.given = guess;
      store(this.name, guess);
      if (guess === '') {
        const fold = this.answerBlock.firstElementChild;
        fold.open = true;
        this.said.replaceChildren(fold.cloneNode(true));
      } else {
        const words = this.wordsTo(guess);
        this.right = words.dataset.right === 'true';
        this.said.replaceChildren(...[...words.childNodes].map(node => node.cloneNode(true)));
        const typed = this.input && this.said.querySelector('p:first-child em');
        if (typed) typed.textContent = typed.textContent.replace(/^\S+/, guess);
      }
      this.show();
    }

    reset() {
      this.given = this.right = undefined;
      store(this.name, undefined);
      this.said.replaceChildren();
      this.show();
      (this.buttons[0] ?? this.input).focus();
    }

    /** Shows whether the card is answered, and with what. */
    show() {
      const answered = this.given !== undefined;
      this.buttons.forEach((choice, index) => {
        const { guess, right } = this.words[index].dataset;
        choice.setAttribute('aria-disabled', answered);
        choice.classList.toggle('right', answered && right === 'true');
        choice.classList.toggle('wrong', answered && right !== 'true' && guess === this.given);
      });
      if (this.input) {
        this.input.readOnly = answered;
        if (answered) this.input.value = this.given;
        this.input.nextElementSibling.hidden = answered;
      }
      this.reveal.hidden = answered;
      this.again.hidden = !answered;
      for (const fold of this.results) fold.open = answered;
      for (const block of this.hidden) block.hidden = !answered;
      count();
    }
  }

  /** Says at the lesson's end how many predictions came true. */
  function count() {
    const block = document.querySelector('.recap');
    const given = cards.filter(card => card.given !== undefined);
    if (!block) return;
    block.hidden = given.length === 0;
    const right = cards.filter(card => card.right).length;
    const again = button('', 'Answer all again');
    again.addEventListener('click', () => {
      for (const card of given) card.reset();
      cards[0].buttons[0]?.focus();
    });
    const summary = `On this page, ${right} of ${cards.length} predictions came true.`;
    block.replaceChildren(make('p', '', summary), again);
  }

  let open = []; // asked, and not yet answered, in the order of the page
  let last = null;
  const blocks = '.prediction, .reveal, .tag_hide-output details.hide, .after-reveal, .cell.tag_after-reveal';
  for (const block of document.querySelectorAll(blocks)) {
    if (block.matches('.prediction')) {
      open.push(new Card(block));
    } else if (block.matches('.reveal')) {
      last = open.find(card => card.name === block.dataset.name);
      open = open.filter(card => card !== last);
      last.answerBlock = block;
      block.hidden = true;
      cards.push(last);
    } else if (block.matches('details')) {
      open.at(-1)?.results.push(block);
    } else {
      last?.hidden.push(block);
    }
  }
  const answers = load();
  for (const card of cards) {
    if (answers[card.name] === undefined) card.show();
    else card.answer(answers[card.name]);
  }
})();
