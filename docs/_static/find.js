/* Finds words: in the entries of a long page as you type, and in the sections of all pages. */
(() => {
  'use strict';
  const NAME = document.currentScript.dataset.entries; // what an entry of this page is called
  const SHOWN = 60; // results of a search

  /** Where a text has the phrase, or else each of its words; with `some`, those of its words that are there. */
  function find(text, phrase, some = false) {
    const words = phrase.trim().split(/\s+/).map((word) => word.replace(/[^\w\s]/g, '\\$&'));
    const all = (pattern) => [...text.matchAll(new RegExp(`(?<![A-Za-z0-9])(?:${pattern})`, 'gi'))];
    const whole = all(words.join('\\s+'));
    return whole.length || (!some && words.some((word) => !all(word).length)) ? whole : all(words.join('|'));
  }

  /** Shows what is found for the input now and at each change, and keeps the words in the address. */
  function follow(input, key, show) {
    const change = () => {
      const address = new URL(location);
      if (input.value.trim()) address.searchParams.set(key, input.value.trim());
      else address.searchParams.delete(key);
      history.replaceState(null, '', address);
      show(input.value.trim());
    };
    input.value = new URLSearchParams(location.search).get(key) ?? '';
    input.addEventListener('input', change);
    show(input.value.trim());
    return change;
  }

  function filter() {
    const article = document.querySelector('.bd-article');
    const entries = [...article.querySelectorAll('dl.py:not(dl.py dl.py), section:not(:has(section, dl.py))')];
    const around = [...article.querySelectorAll('section > *')].filter((part) =>
      !part.matches('h1, h2, h3') && !entries.some((entry) => entry.contains(part)));
    const box = document.createElement('form');
    box.className = 'find';
    box.setAttribute('role', 'search');
    box.innerHTML = `<label for="filter">Filter ${entries.length} ${NAME}</label>
      <input type="search" id="filter" autocomplete="off" spellcheck="false"><p role="status"></p>`;
    box.addEventListener('submit', (event) => event.preventDefault());
    article.querySelector('h1').after(box);
    const input = box.querySelector('input');
    const target = (link) => document.getElementById(decodeURIComponent(link.hash.slice(1)));

    const change = follow(input, 'filter', (phrase) => {
      const found = new Map(entries.map((entry) => [entry, phrase ? find(entry.textContent, phrase) : []]));
      for (const [entry, places] of found) entry.hidden = phrase !== '' && !places.length;
      for (const part of around) part.hidden = phrase !== '' && !part.querySelector(':is(section, dl.py):not([hidden], [hidden] *)');
      for (const link of document.querySelectorAll('.page-toc a')) link.parentElement.hidden = Boolean(target(link)?.closest('[hidden]'));
      const shown = entries.filter((entry) => !entry.hidden).length;
      box.querySelector('p').textContent = phrase && `${shown} of ${entries.length} ${NAME} have “${phrase}”.`;
      mark(found);
    });
    // A link to an entry that the filter hides ends the filter.
    const arrive = () => {
      if (!target(location)?.closest('[hidden]')) return;
      input.value = '';
      change();
      target(location).scrollIntoView();
    };
    addEventListener('hashchange', arrive);
    arrive();
  }

  /** Marks what is found without a change to the page, where the browser can. */
  function mark(found) {
    if (!globalThis.Highlight) return;
    const marks = new Highlight();
    for (const [entry, places] of found) {
      const texts = [];
      const walker = document.createTreeWalker(entry, NodeFilter.SHOW_TEXT);
      for (let begin = 0; walker.nextNode(); begin += walker.currentNode.length) texts.push([begin, walker.currentNode]);
      const at = (place) => {
        const [begin, text] = texts.findLast(([begin]) => begin <= place);
        return [text, place - begin];
      };
      for (const place of places) {
        const range = new Range();
        range.setStart(...at(place.index));
        range.setEnd(...at(place.index + place[0].length));
        marks.add(range);
      }
    }
    CSS.highlights.set('found', marks);
  }

  function search() {
    const [form, list] = [document.querySelector('form.find'), document.querySelector('.results')];
    const sections = Object.entries(SECTIONS).flatMap(([page, parts]) =>
      parts.map(([id, title, words]) => ({ page, id, title, words, of: parts[0][1] })));
    const loose = (text) => text.toLowerCase().replace(/\s+/g, ' ');
    follow(form.querySelector('input'), 'q', (phrase) => {
      const has = (text) => loose(text).includes(loose(phrase));
      const rank = ({ title, words }) => 2 * has(title) + has(words);
      const found = sections.filter(({ title, words }) => phrase && find(`${title}\n${words}`, phrase).length)
        .sort((one, other) => rank(other) - rank(one));
      const first = found.length > SHOWN ? `; the first ${SHOWN} are here` : '';
      form.querySelector('p').textContent = phrase && `${found.length} sections have “${phrase}”${first}.`;
      list.replaceChildren(...found.slice(0, SHOWN).map((section) => result(section, phrase)));
    });
  }

  function result({ page, id, title, words, of }, phrase) {
    const [item, link, excerpt] = ['li', 'a', 'p'].map((tag) => document.createElement(tag));
    const first = find(words, phrase, true)[0]?.index ?? 0;
    const begin = first < 90 ? 0 : words.indexOf(' ', first - 90) + 1;
    const end = words.length < begin + 240 ? words.length : words.lastIndexOf(' ', begin + 240);
    link.href = `${page}#${id}`;
    link.append(...marked(title, phrase));
    excerpt.append(begin ? '… ' : '', ...marked(words.slice(begin, end), phrase), end < words.length ? ' …' : '');
    item.append(link, of === title ? '' : ` in ${of}`, excerpt);
    return item;
  }

  function marked(text, phrase) {
    const parts = [];
    let end = 0;
    for (const place of find(text, phrase, true)) {
      const mark = document.createElement('mark');
      mark.textContent = place[0];
      parts.push(text.slice(end, place.index), mark);
      end = place.index + place[0].length;
    }
    return [...parts, text.slice(end)];
  }

  if (NAME) filter();
  else search();
})();
