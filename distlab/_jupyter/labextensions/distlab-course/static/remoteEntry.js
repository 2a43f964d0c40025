/* The course on JupyterLab's left side: titles, minutes and progress; a click opens the notebook.
   Notebooks get a readable width, and tabs named after the lesson; a conclusion waits for its answer.
   A prediction is a card that is answered by keyboard and kept in the notebook.

   Written by hand in the form in which JupyterLab loads prebuilt extensions, so that nothing has to be
   built. Data come from distlab/course/course_page.py, on this machine. */
(() => {
  'use strict';
  const ID = 'distlab-course';
  let shared = null;

  async function sharedModule(name) {
    const versions = Object.values(shared[name]);
    return (await versions[0].get())();
  }

  function make(tag, className, text) {
    const node = document.createElement(tag);
    node.className = className;
    if (text) node.textContent = text;
    return node;
  }

  function link(app, className, text, path) {
    const node = make('a', className, text);
    node.href = '#';
    node.dataset.path = path;
    node.addEventListener('click', event => {
      event.preventDefault();
      void app.commands.execute('docmanager:open', { path });
    });
    return node;
  }

  const minutes = (name, count) => (count ? `${name}, ${count} min` : name);

  function draw(app, node, course) {
    const scrolled = node.scrollTop;
    node.replaceChildren();
    const head = make('div', 'distlab-head');
    if (course.page) head.append(link(app, 'distlab-page', 'The course', course.page));
    head.append(make('span', 'distlab-total', course.total));
    node.append(head);
    const pages = make('div', 'distlab-small');
    for (const [title, path] of Object.entries(course.pages)) {
      if (pages.hasChildNodes()) pages.append(' · ');
      pages.append(link(app, '', title, path));
    }
    node.append(pages);
    let part = '';
    let list = null;
    for (const lesson of course.lessons) {
      if (lesson.part !== part) {
        part = lesson.part;
        node.append(make('h3', 'distlab-part', part));
        list = make('ul', 'distlab-list');
        node.append(list);
      }
      list.append(row(app, lesson, course.next));
    }
    node.scrollTop = scrolled;
    mark(node, pathOf(app.shell.currentWidget));
  }

  const pathOf = widget => widget?.context?.path ?? '';

  // Marks the lesson whose notebook is in front, and the link to the notebook.
  function mark(node, path) {
    for (const anchor of node.querySelectorAll('a')) {
      if (anchor.dataset.path === path) anchor.setAttribute('aria-current', 'page');
      else anchor.removeAttribute('aria-current');
    }
    const lesson = node.querySelector('.distlab-lesson [aria-current]')?.closest('.distlab-lesson');
    for (const item of node.querySelectorAll('.distlab-open')) item.classList.remove('distlab-open');
    if (!lesson) return;
    lesson.classList.add('distlab-open');
    lesson.scrollIntoView({ block: 'nearest' });
  }

  // A tab's label can't say it: a document whose label changes renames its file.
  function nameTab(widget) {
    const path = pathOf(widget);
    const [, folder, number] = /^(notebooks|exercises)\/(\d\d)_[^/.]*\.ipynb$/.exec(path) ?? [];
    const { 'distlab-name': old, ...dataset } = widget.title.dataset;
    if (path === 'course.md') dataset['distlab-name'] = 'Start';
    if (number) dataset['distlab-name'] = `${folder === 'notebooks' ? 'Lesson' : 'Exercise'} ${number}`;
    if (dataset['distlab-name'] !== old) widget.title.dataset = dataset;
  }

  const tagsOf = cell => cell.model.getMetadata('tags') ?? [];

  // A cell with the tag `after-reveal` says what a prediction's answer is, so it waits for that answer.
  function markPredictions(notebook) {
    let answered = true;
    for (const cell of notebook.widgets) {
      const tags = tagsOf(cell);
      const [asks, reveals] = ['predict', 'reveal'].map(tag => tags.includes(tag));
      if (reveals) answered = cell.model.outputs.length > 0;
      const output = asks || reveals ? cell.model.outputs.get(0) : undefined;
      const said = String(output?.data['text/plain'] ?? '');
      cell.toggleClass('distlab-question', asks);
      cell.toggleClass('distlab-card', output?.type === 'display_data');
      cell.toggleClass('distlab-right', said.startsWith('✓'));
      cell.toggleClass('distlab-wrong', said.startsWith('✗'));
      cell.toggleClass('distlab-hidden', !answered && tags.includes('after-reveal'));
    }
  }

  // Waits until something inside a node is drawn, which JupyterLab does after a cell has run.
  function drawn(node, selector) {
    return new Promise(resolve => {
      const look = () => {
        const part = node.querySelector(selector);
        if (!part) return;
        observer.disconnect();
        resolve(part);
      };
      const observer = new MutationObserver(look);
      observer.observe(node, { childList: true, subtree: true });
      look();
    });
  }

  // A question's control: the box for a number, or one of its buttons.
  const CONTROL = '.distlab-question .widget-vbox :is(input, .widget-toggle-button)';

  function questionOf(notebooks, control) {
    const panel = notebooks.find(({ content }) => content.node.contains(control));
    return { panel, cell: panel?.content.widgets.find(({ node }) => node.contains(control)) };
  }

  const guessOf = control => (control.matches('input') ? control.value : control.textContent).trim();

  function guessIn(cell) {
    const chosen = cell.node.querySelector('.widget-vbox :is(input, .mod-active)');
    return chosen ? guessOf(chosen) : '';
  }

  // JupyterLab sends a cell's metadata with each run, so `dl.predict` finds the guess there after a
  // restart, and the file has it when the notebook is opened again.
  function keepGuess(event, notebooks) {
    const control = event.target.closest?.(CONTROL);
    const { panel, cell } = control ? questionOf(notebooks, control) : {};
    if (!cell || event.type !== (control.matches('input') ? 'change' : 'click')) return;
    const guess = guessOf(control);
    if (guess) cell.model.setMetadata('distlab', { guess });
    else cell.model.deleteMetadata('distlab');
    cell.node.querySelector('.distlab-warning')?.remove();
    save(panel.context);
  }

  // Widgets keep keys for themselves. In a question Enter and Escape lead back to the notebook, and
  // Shift+Enter leads on; without an answer only when it is pressed again.
  function leaveQuestion(event, notebooks) {
    const control = (event.key === 'Enter' || event.key === 'Escape') && event.target.closest?.(CONTROL);
    const { panel, cell } = control ? questionOf(notebooks, control) : {};
    if (!cell) return;
    event.stopPropagation();
    const on = event.key === 'Enter' && event.shiftKey;
    if (event.key === 'Enter' && !on && control.matches('button')) return; // the browser clicks it
    event.preventDefault();
    control.blur(); // so a typed number is kept
    const box = control.closest('.widget-vbox');
    if (on && !guessIn(cell) && !box.querySelector('.distlab-warning')) {
      const warning = make('div', 'distlab-warning', 'Not yet answered. Shift+Enter goes on without an answer.');
      warning.setAttribute('role', 'alert');
      box.append(warning);
      control.focus();
      return;
    }
    const notebook = panel.content;
    notebook.activeCellIndex = notebook.widgets.indexOf(cell) + (on ? 1 : 0);
    notebook.deselectAll();
    notebook.mode = 'command';
    notebook.activate();
    notebook.activeCell.node.scrollIntoView({ block: 'nearest' });
  }

  // JupyterLab brings the next cell into sight, before there is an output that moves it down. A reader
  // who has gone on, or runs all cells, is left alone.
  async function showOutput(notebook, cell) {
    const tags = tagsOf(cell);
    const show = part => {
      const ahead = notebook.activeCellIndex - notebook.widgets.indexOf(cell);
      if ((ahead !== 0 && ahead !== 1) || notebook.mode !== 'command') return;
      part?.focus({ preventScroll: true });
      cell.outputArea.node.scrollIntoView({ block: 'nearest' });
    };
    if (!tags.includes('predict') && !tags.includes('reveal')) return;
    await drawn(cell.outputArea.node, '.jp-RenderedMarkdown > *');
    await new Promise(requestAnimationFrame); // JupyterLab scrolls at the end of a run
    show();
    if (!tags.includes('predict')) return;
    const control = await drawn(cell.outputArea.node, '.widget-vbox :is(input, .widget-toggle-button)');
    show(guessIn(cell) ? null : control); // the answer can be typed at once
  }

  // One save after another: to a second one, what the first has written is a change by somebody else,
  // and JupyterLab asks the reader what to do.
  const saves = new WeakMap();

  function save(context) {
    const last = saves.get(context) ?? Promise.resolve();
    saves.set(context, last.then(() => context.save()).catch(() => {}));
  }

  // The question stands in the output, so its source folds once; a reader who opens it again keeps it open.
  const folded = new WeakSet();

  function foldQuestion(cell) {
    if (folded.has(cell.model) || !tagsOf(cell).includes('predict')) return;
    folded.add(cell.model);
    cell.inputHidden = true;
  }

  // A line below a cell, until it is run again.
  function note(cell, className, text) {
    for (const old of cell.node.querySelectorAll('.distlab-note')) old.remove();
    if (!text) return;
    const line = make('div', `distlab-note ${className}`, text);
    line.setAttribute('role', 'status');
    cell.node.append(line);
  }

  // TensorFlow takes seconds to load, and JupyterLab's only sign is a star. Shown after a second: if
  // TensorFlow is there already, the cell has run by then.
  function noteLoading(cell) {
    const loads = /^\s*(import|from) (tensorflow|keras|distlab)\b/m.test(cell.model.sharedModel.source);
    note(cell, 'distlab-loading', loads ? 'TensorFlow loads. It does so once in each notebook.' : '');
  }

  // After a restart the names of cells above are gone, and Python doesn't say where they come from.
  function noteLostName(notebook, cell, error) {
    const [, name] = /^name '(\w+)' is not defined/.exec(error?.errorValue ?? '') ?? [];
    const makes = new RegExp(`^\\s*([\\w, ]*\\b${name}\\b[\\w, ]*=(?!=)|(def|class) ${name}\\b|(import|from)\\b.*\\b${name}\\b)`, 'm');
    const above = notebook.widgets.slice(0, notebook.widgets.indexOf(cell));
    const lost = name && above.some(({ model }) => model.type === 'code' && makes.test(model.sharedModel.source));
    note(cell, '', lost ? `${name} is made in a cell above. Choose Run, then Run All Above Selected Cell.` : '');
  }

  function row(app, lesson, next) {
    const item = make('li', lesson.lesson ? 'distlab-lesson' : 'distlab-lesson distlab-coming');
    item.title = lesson.question;
    item.append(make('span', 'distlab-number', lesson.number));
    const body = make('div', 'distlab-body');
    item.append(body);
    if (!lesson.lesson) {
      body.append(make('span', 'distlab-title', lesson.title), make('span', 'distlab-small', 'coming'));
      return item;
    }
    body.append(link(app, 'distlab-title', lesson.title, lesson.lesson));
    const small = make('div', 'distlab-small', minutes('lesson', lesson.lesson_minutes));
    body.append(small);
    if (lesson.exercise) {
      small.append(' · ', link(app, 'distlab-exercise', minutes('exercise', lesson.exercise_minutes), lesson.exercise));
    }
    if (lesson.state) {
      const bar = make('div', 'distlab-bar');
      const full = make('div', 'distlab-full');
      full.style.width = `${Math.round(100 * lesson.share)}%`;
      bar.append(full);
      body.append(bar, make('div', 'distlab-small', `${lesson.state} passed`));
    }
    if (next && (next === lesson.lesson || next === lesson.exercise)) item.classList.add('distlab-next');
    return item;
  }

  const STYLE = `
    .distlab-course { overflow-y: auto; padding: 10px 12px 24px; color: var(--jp-ui-font-color1);
      background: var(--jp-layout-color1); font-size: var(--jp-ui-font-size1); line-height: 1.4; }
    .distlab-head { display: flex; justify-content: space-between; gap: 8px; align-items: baseline; }
    .distlab-page { font-weight: 600; font-size: var(--jp-ui-font-size2); }
    .distlab-total, .distlab-small { color: var(--jp-ui-font-color2); font-size: var(--jp-ui-font-size0); }
    .distlab-part { margin: 16px 0 4px; font-size: var(--jp-ui-font-size1); font-weight: 600; }
    .distlab-list { list-style: none; margin: 0; padding: 0; }
    .distlab-lesson { display: flex; gap: 10px; padding: 5px 6px; border-left: 3px solid transparent; }
    .distlab-next { border-left-color: var(--jp-brand-color1); }
    .distlab-open { background: var(--jp-layout-color2); }
    .distlab-course .distlab-lesson [aria-current] { text-decoration: underline; }
    .distlab-course .distlab-title[aria-current] { font-weight: 600; }
    .distlab-number { font-variant-numeric: tabular-nums; color: var(--jp-ui-font-color2); }
    .distlab-body { flex: 1; min-width: 0; }
    .distlab-coming .distlab-title { color: var(--jp-ui-font-color2); margin-right: 8px; }
    .distlab-course a { color: var(--jp-content-link-color, #00629b); text-decoration: none; }
    .distlab-course a:hover, .distlab-course a:focus-visible { text-decoration: underline; }
    .distlab-bar { height: 4px; margin: 4px 0 2px; background: var(--jp-border-color2); }
    .distlab-full { height: 100%; background: #008a6b; }
    /* Without a box it would stand at the notebook's top, and JupyterLab scrolls to the cell that it selects next. */
    .jp-Notebook .distlab-hidden { visibility: hidden; height: 0; min-height: 0; margin: 0; padding-block: 0; overflow: hidden; }
    /* The site's card of a prediction (docs/_static/site.css). It hangs out to the left: its text is in the column. */
    body { --distlab-right: #00765c; --distlab-wrong: #c93a00; --distlab-ask: #00629b; }
    body[data-jp-theme-light='false'] { --distlab-right: #4dc9a6; --distlab-wrong: #ff8f66; --distlab-ask: #6db7e8; }
    .distlab-card { --distlab-edge: var(--distlab-ask); position: relative; }
    .distlab-card.distlab-right { --distlab-edge: var(--distlab-right); }
    .distlab-card.distlab-wrong { --distlab-edge: var(--distlab-wrong); }
    .distlab-card .jp-Cell-outputArea { margin: 4px 0 4px calc(var(--jp-cell-prompt-width) - 14px); padding: 12px 16px;
      border: 1px solid var(--jp-border-color2); border-left: 4px solid var(--distlab-edge); border-radius: 8px;
      background: color-mix(in srgb, var(--jp-layout-color2) 50%, var(--jp-layout-color1)); }
    .distlab-card:is(.distlab-right, .distlab-wrong) .jp-Cell-outputArea {
      background: color-mix(in srgb, var(--distlab-edge) 9%, var(--jp-layout-color1)); }
    .distlab-card:is(.distlab-right, .distlab-wrong) .jp-RenderedMarkdown > p:first-child::first-letter { color: var(--distlab-edge); font-weight: 700; }
    .distlab-card .jp-OutputPrompt { display: none; }
    .distlab-card .jp-OutputArea-output { padding: 0; background: none; }
    .distlab-card .jp-OutputArea-child:last-child .jp-RenderedMarkdown > :last-child { margin-bottom: 0; }
    .distlab-card :is(.jp-OutputArea-child, .jp-OutputArea-output, .jupyter-widgets) { overflow: visible; }
    .distlab-question .jp-OutputArea-child:first-child .jp-RenderedMarkdown p { font-weight: 600; }
    /* Once the output says it, the folded source is three dots in the card's corner. */
    .distlab-card .jp-Cell-inputWrapper:has(.jp-InputPlaceholder) { position: absolute; z-index: 1; top: 14px; right: 8px; margin: 0; }
    .distlab-card :is(.jp-InputPlaceholder, .jp-Placeholder-content) { border: 0; background: none; }
    .distlab-card :is(.jp-InputCollapser, .jp-InputPlaceholder .jp-Placeholder-prompt, .jp-PlaceholderText) { display: none; }
    .distlab-card .jupyter-widgets { font-size: inherit; }
    .distlab-card .widget-toggle-buttons { height: auto; }
    .distlab-card .widget-toggle-button, .distlab-card input { height: auto; min-height: 36px; margin: 4px 8px 4px 0; padding: 4px 14px;
      border: 1.5px solid var(--jp-border-color1); border-radius: 8px; color: var(--jp-ui-font-color1);
      background: var(--jp-layout-color0); box-shadow: none; }
    .distlab-card .widget-toggle-button:hover { border-color: var(--distlab-ask); }
    .distlab-card :is(.widget-toggle-button, input):focus-visible { outline: 3px solid var(--distlab-ask); outline-offset: 2px; }
    .distlab-note { margin-left: calc(var(--jp-cell-prompt-width) + 6px); color: var(--jp-ui-font-color1); }
    .distlab-loading { animation: distlab-appear 0s 1s both; }
    @keyframes distlab-appear { from { visibility: hidden; } to { visibility: visible; } }
    .distlab-warning { color: var(--distlab-wrong); font-weight: 600; }
    .widget-toggle-buttons .jupyter-button { font-size: 14px; }
    .widget-toggle-buttons .jupyter-button.mod-active { background: #00629b; color: #fff; }
    .jp-RenderedText[data-mime-type='application/vnd.jupyter.stderr'] pre { word-break: normal; overflow-wrap: anywhere; }
    .lm-TabBar-tab[data-distlab-name] .lm-TabBar-tabLabel { display: none; }
    .lm-DockPanel-tabBar.lm-TabBar .lm-TabBar-tab[data-distlab-name][data-type]::after {
      content: attr(data-distlab-name); order: 1; flex: 1 1 auto; position: static; width: auto; border: 0; }
    .lm-TabBar-tab[data-distlab-name] .lm-TabBar-tabCloseIcon { order: 2; }
    .jp-Notebook .jp-WindowedPanel-inner { max-width: 58rem; margin-inline: auto; }
    .jp-RenderedMarkdown { --jp-content-font-size1: 16px; line-height: 1.6; }
    .jp-RenderedMarkdown :is(p, li) { max-width: 44rem; }
    .jp-RenderedMarkdown :is(h1, h2, h3) { font-weight: 650; letter-spacing: -.01em; }
    .jp-RenderedHTMLCommon a.distlab-start { display: inline-block; margin-top: 8px; padding: 10px 20px; border-radius: 6px;
      background: #00629b; color: #fff; font-weight: 600; text-decoration: none; }
    .jp-RenderedHTMLCommon a.distlab-start:is(:hover, :focus-visible) { background: #004a75; color: #fff; }
  `;

  const ICON = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24" width="18" height="18">'
    + '<path class="jp-icon3" fill="#616161" d="M4 4h7v16H6a2 2 0 0 0-2 1zm16 0h-7v16h5a2 2 0 0 1 2 1z"/></svg>';

  async function activate(app, notebooks, restorer) {
    const { Widget } = await sharedModule('@lumino/widgets');
    const { LabIcon } = await sharedModule('@jupyterlab/ui-components');
    const { NotebookActions } = await sharedModule('@jupyterlab/notebook');
    document.head.append(make('style', '', STYLE));
    const panel = new Widget();
    panel.id = ID;
    panel.addClass('distlab-course');
    panel.title.caption = 'The course: lessons, exercises and your progress';
    panel.title.icon = new LabIcon({ name: `${ID}:icon`, svgstr: ICON });
    app.shell.add(panel, 'left', { rank: 50 });
    if (restorer) restorer.add(panel, ID);

    const settings = app.serviceManager.serverSettings;
    const refresh = async () => {
      const answer = await fetch(`${settings.baseUrl}distlab/course`, { credentials: 'same-origin' });
      if (answer.ok) draw(app, panel.node, await answer.json());
    };
    app.serviceManager.contents.fileChanged.connect((_, change) => {
      if (change.type === 'save' || change.type === 'new' || change.type === 'delete') void refresh();
    });
    NotebookActions.executionScheduled.connect((_, { cell }) => noteLoading(cell));
    NotebookActions.executed.connect((_, { notebook, cell, success, error }) => {
      noteLostName(notebook, cell, error);
      // A cell that is run before its kernel is there is dropped, and called a success.
      if (success && cell.model.executionCount !== null) {
        foldQuestion(cell);
        void showOutput(notebook, cell);
      }
      // Progress is read from the saved notebook, so an exercise is saved as soon as a check has run.
      const path = pathOf(notebook.parent);
      if (path.startsWith('exercises/') && /\bdl\.check\(/.test(cell.model.sharedModel.source)) {
        save(notebook.parent.context);
      }
    });
    notebooks.widgetAdded.connect((_, { content, context }) => {
      void context.ready.then(() => {
        markPredictions(content);
        content.model.contentChanged.connect(() => markPredictions(content));
      });
    });
    // In the window and first: neither JupyterLab nor the widget has seen the key.
    window.addEventListener('keydown', event => leaveQuestion(event, notebooks), true);
    for (const type of ['click', 'change']) window.addEventListener(type, event => keepGuess(event, notebooks));
    app.shell.currentChanged.connect(() => mark(panel.node, pathOf(app.shell.currentWidget)));
    // Notebook 7 shows one notebook, and has no tabs.
    app.shell.layoutModified?.connect(() => {
      for (const widget of app.shell.widgets('main')) nameTab(widget);
    });
    // Not awaited: JupyterLab waits for this function before it restores anything.
    void refresh();
    void app.restored.then(() => {
      if (!app.shell.leftCollapsed) app.shell.activateById(ID);
    });
  }

  async function plugins() {
    const { ILayoutRestorer } = await sharedModule('@jupyterlab/application');
    const { INotebookTracker } = await sharedModule('@jupyterlab/notebook');
    const description = 'The course on the left side.';
    const tokens = { requires: [INotebookTracker], optional: [ILayoutRestorer] };
    return [{ id: `${ID}:panel`, description, autoStart: true, ...tokens, activate }];
  }

  window._JUPYTERLAB = window._JUPYTERLAB || {};
  window._JUPYTERLAB[ID] = {
    init: scope => { shared = scope; },
    get: async () => {
      const made = await plugins();
      return () => ({ __esModule: true, default: made });
    },
  };
})();
