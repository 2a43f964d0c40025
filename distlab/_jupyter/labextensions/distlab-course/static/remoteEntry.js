/* The course on JupyterLab's left side: titles, minutes and progress; a click opens the notebook.
   A lesson's tab has its name, and it ends in a button to the exercise; a conclusion waits for its answer.
   A prediction is a card that is answered by keyboard and kept in the notebook.

   Written by hand in the form in which JupyterLab loads prebuilt extensions, so that nothing has to be
   built. Data come from distlab/course/course_page.py, on this machine. */
(() => {
  'use strict';
  const ID = 'distlab-course';
  let shared = null;

  const style = make('link');
  style.rel = 'stylesheet';
  style.href = new URL('course.css', document.currentScript.src).href;

  async function sharedModule(name) {
    const versions = Object.values(shared[name]);
    return (await versions[0].get())();
  }

  function make(tag, className = '', text = '') {
    const node = document.createElement(tag);
    node.className = className;
    if (text) node.textContent = text;
    return node;
  }

  // As on a phone, where the panel would leave nothing to the notebook beside it.
  const isNarrow = () => window.innerWidth <= 760; // as in course.css

  function link(app, className, text, path) {
    const node = make('a', className, text);
    node.href = '#';
    node.dataset.path = path;
    node.addEventListener('click', event => {
      event.preventDefault();
      void app.commands.execute('docmanager:open', { path });
      if (isNarrow()) app.shell.collapseLeft?.();
    });
    return node;
  }

  // A lesson has two: with its folds closed, and with all of them open.
  const minutes = count => (count ? `${[count].flat().join('–')} min` : '');

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

  // The page with the next step was written at this save, and JupyterLab doesn't look at files again.
  function renewPage(app, course) {
    for (const { context } of app.shell.widgets('main')) {
      if (!course.page || context?.path !== course.page || !context.isReady || context.model.dirty) continue;
      if (context.model.toString() !== course.text) void context.revert();
    }
  }

  // Leads on at the end of a notebook of the course, in the place of JupyterLab's "Click to add a cell".
  function leadOn(app, Widget, { content }, course, path) {
    const at = course.lessons.findIndex(({ lesson, exercise }) => path && (path === lesson || path === exercise));
    if (at < 0) return;
    const [here, following] = course.lessons.slice(at);
    const steps = [[following?.lesson, `Lesson ${following?.number}`, following?.lesson_minutes]];
    if (path === here.lesson) steps.unshift([here.exercise, `Exercise ${here.number}`, here.exercise_minutes]);
    const [to, name, count] = steps.find(([target]) => target) ?? [course.page, 'The course', 0];
    const footer = new Widget();
    footer.addClass('distlab-end');
    footer.node.append(link(app, 'distlab-start', [name, minutes(count)].filter(Boolean).join(', '), to));
    content.layout.footer?.dispose();
    content.layout.footer = footer;
  }

  const tagsOf = cell => cell.model.getMetadata('tags') ?? [];
  const sourceOf = cell => cell.model.sharedModel.source;
  const isCode = cell => cell.model.type === 'code';
  const asks = cell => isCode(cell) && /\bdl\.predict\(/.test(sourceOf(cell));
  const reveals = cell => isCode(cell) && /^\s*\w+\.reveal\(/m.test(sourceOf(cell));
  const checks = cell => isCode(cell) && /\bdl\.check\(/.test(sourceOf(cell));

  function outputsOf(cell) {
    const { outputs } = cell.model;
    return Array.from({ length: outputs.length }, (_, at) => outputs.get(at));
  }

  const saidBy = cell => outputsOf(cell).map(({ data }) => String(data?.['text/plain'] ?? ''));

  // Answers that a reader unfolded without a prediction.
  const unfolded = new WeakSet();

  // A cell with the tag `after-reveal` says what a prediction's answer is, so it waits for that answer,
  // and what a reader can try next tells of a solution, so it waits until the task is passed.
  function markCells(notebook) {
    let answered = true;
    let passed = true;
    for (const cell of notebook.widgets) {
      const question = asks(cell);
      const reveal = !question && reveals(cell);
      const said = question || reveal ? (saidBy(cell)[0] ?? '') : '';
      if (reveal) answered = /^[✓✗]/.test(said) || (said !== '' && unfolded.has(cell.model));
      if (checks(cell)) passed = saidBy(cell).some(text => /^\w+: passed /.test(text));
      cell.toggleClass('distlab-question', question);
      cell.toggleClass('distlab-card', said !== '');
      cell.toggleClass('distlab-right', said.startsWith('✓'));
      cell.toggleClass('distlab-wrong', said.startsWith('✗'));
      const early = (!answered && tagsOf(cell).includes('after-reveal'))
        || (!passed && cell.model.type === 'markdown' && sourceOf(cell).startsWith('**Try next:**'));
      cell.toggleClass('distlab-hidden', early);
    }
  }

  // Shift+Enter leads to the next cell that can be seen.
  function skipHidden(notebook, cell) {
    const ran = notebook.widgets.indexOf(cell);
    if (notebook.activeCellIndex !== ran + 1 || notebook.mode !== 'command') return;
    const seen = notebook.widgets.findIndex((next, at) => at > ran && !next.hasClass('distlab-hidden'));
    if (seen > ran) notebook.activeCellIndex = seen;
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

  function placeOf(notebooks, part) {
    const panel = notebooks.find(({ content }) => content.node.contains(part));
    return { panel, cell: panel?.content.widgets.find(({ node }) => node.contains(part)) };
  }

  const guessOf = control => (control.matches('input') ? control.value : control.textContent).trim();

  function guessIn(cell) {
    const chosen = cell.node.querySelector('.widget-vbox :is(input, .mod-active)');
    return chosen ? guessOf(chosen) : '';
  }

  // What is typed may be no number; the control says so.
  function isAnswered(cell) {
    const guess = guessIn(cell);
    return guess !== '' && (!cell.node.querySelector('.widget-vbox input') || Number.isFinite(Number(guess)));
  }

  // JupyterLab sends a cell's metadata with each run, so `dl.predict` finds the guess there after a
  // restart, and the file has it when the notebook is opened again.
  function keepGuess(event, notebooks) {
    const control = event.target.closest?.(CONTROL);
    const { panel, cell } = control ? placeOf(notebooks, control) : {};
    if (!cell || event.type !== (control.matches('input') ? 'change' : 'click')) return;
    const guess = guessOf(control);
    if (guess) cell.model.setMetadata('distlab', { guess });
    else cell.model.deleteMetadata('distlab');
    cell.node.querySelector('.distlab-warning')?.remove();
    save(panel.context);
  }

  // Shift+Enter that is held down would run through the questions. Before the kernel is there JupyterLab
  // would ask which one to take, so the cell runs then, however often the reader presses.
  const early = new WeakSet();

  function holdRun(app, event, notebooks) {
    if (event.key !== 'Enter' || !event.shiftKey) return;
    const { panel } = placeOf(notebooks, event.target);
    if (!panel || (panel.sessionContext.isReady && !event.repeat)) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    if (panel.sessionContext.isReady || early.has(panel)) return;
    early.add(panel);
    note(panel.content.activeCell, '', 'Python starts, and then runs this cell.');
    void panel.sessionContext.ready.then(() => app.commands.execute('notebook:run-cell-and-select-next'));
  }

  const ARROWS = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 };

  // Widgets keep keys for themselves. In a question Enter and Escape lead back to the notebook, and
  // Shift+Enter leads on; without an answer only when it is pressed again. An arrow leads to the answer
  // beside this one, where JupyterLab would go to another cell.
  function moveInQuestion(event, notebooks) {
    const step = event.ctrlKey || event.altKey || event.metaKey ? undefined : ARROWS[event.key];
    const control = (step || event.key === 'Enter' || event.key === 'Escape') && event.target.closest?.(CONTROL);
    const { panel, cell } = control ? placeOf(notebooks, control) : {};
    if (!cell || (step && control.matches('input'))) return;
    event.stopPropagation();
    if (step) {
      event.preventDefault();
      const answers = [...control.closest('.widget-vbox').querySelectorAll('.widget-toggle-button')];
      answers[answers.indexOf(control) + step]?.focus();
      return;
    }
    const on = event.key === 'Enter' && event.shiftKey;
    if (event.key === 'Enter' && !on && control.matches('button')) return; // the browser clicks it
    event.preventDefault();
    control.blur(); // so a typed number is kept
    const box = control.closest('.widget-vbox');
    if (event.key === 'Enter' && !isAnswered(cell) && !(on && box.querySelector('.distlab-warning'))) {
      if (on) {
        const warning = make('div', 'distlab-warning', 'Not yet answered. Shift+Enter goes on without an answer.');
        warning.setAttribute('role', 'alert');
        box.append(warning);
      }
      control.focus();
      control.select?.(); // what is typed next replaces a wrong number
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
    const { node } = cell.outputArea;
    const show = (part, control) => {
      const skipped = notebook.widgets.slice(0, notebook.activeCellIndex).filter(each => each.hasClass('distlab-hidden'));
      const ahead = notebook.activeCellIndex - notebook.widgets.indexOf(cell);
      if (ahead < 0 || ahead > 1 + skipped.length || notebook.mode !== 'command') return;
      control?.focus({ preventScroll: true });
      const fits = part.clientHeight <= notebook.node.clientHeight;
      part.scrollIntoView({ block: fits ? 'nearest' : 'start' });
    };
    const question = asks(cell);
    if (!question && !reveals(cell)) {
      if (!outputsOf(cell).some(({ data }) => data?.['application/vnd.jupyter.widget-view+json'])) return;
      await (await drawn(node, '.distlab-view img')).decode().catch(() => {});
      show(node.querySelector('.distlab-view'));
      return;
    }
    await drawn(node, '.jp-RenderedMarkdown > *');
    await new Promise(requestAnimationFrame); // JupyterLab scrolls at the end of a run
    show(node);
    if (!question) return;
    const control = await drawn(node, '.widget-vbox :is(input, .widget-toggle-button)');
    show(node, guessIn(cell) ? null : control); // the answer can be typed at once
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
    if (folded.has(cell.model) || !asks(cell)) return;
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
    const loads = /^\s*(import|from) (tensorflow|keras|distlab)\b/m.test(sourceOf(cell));
    note(cell, 'distlab-loading', loads ? 'TensorFlow loads. It does so once in each notebook.' : '');
  }

  // After a restart the names of cells above are gone, and Python doesn't say where they come from.
  function noteLostName(notebook, cell, error) {
    const [, name] = /^name '(\w+)' is not defined/.exec(error?.errorValue ?? '') ?? [];
    const makes = new RegExp(`^\\s*([\\w, ]*\\b${name}\\b[\\w, ]*=(?!=)|(def|class) ${name}\\b|(import|from)\\b.*\\b${name}\\b)`, 'm');
    const above = notebook.widgets.slice(0, notebook.widgets.indexOf(cell));
    const lost = name && above.some(each => isCode(each) && makes.test(sourceOf(each)));
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
    const small = make('div', 'distlab-small');
    small.append(make('span', 'distlab-lesson-state', lesson.read ? '✓ read' : minutes(lesson.lesson_minutes)));
    body.append(small);
    if (lesson.exercise) {
      const extra = lesson.extra_tasks.length;
      const text = `exercise ${minutes(lesson.exercise_minutes)}`.trim();
      small.append(' · ', link(app, 'distlab-exercise', extra ? `${text}, ${extra} extra` : text, lesson.exercise));
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

  const ICON = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24" width="18" height="18">'
    + '<path class="jp-icon3" fill="#616161" d="M4 4h7v16H6a2 2 0 0 0-2 1zm16 0h-7v16h5a2 2 0 0 1 2 1z"/></svg>';

  async function activate(app, notebooks, restorer) {
    const { Widget } = await sharedModule('@lumino/widgets');
    const { LabIcon } = await sharedModule('@jupyterlab/ui-components');
    const { NotebookActions } = await sharedModule('@jupyterlab/notebook');
    document.head.append(style);
    const panel = new Widget();
    panel.id = ID;
    panel.addClass('distlab-course');
    panel.title.caption = 'The course: lessons, exercises and your progress';
    panel.title.icon = new LabIcon({ name: `${ID}:icon`, svgstr: ICON });
    app.shell.add(panel, 'left', { rank: 50 });
    if (restorer) restorer.add(panel, ID);

    const settings = app.serviceManager.serverSettings;
    let course = { lessons: [] };
    const end = notebook => leadOn(app, Widget, notebook, course, pathOf(notebook));
    const refresh = async () => {
      const answer = await fetch(`${settings.baseUrl}distlab/course`, { credentials: 'same-origin' });
      if (!answer.ok) return;
      course = await answer.json();
      draw(app, panel.node, course);
      renewPage(app, course);
      notebooks.forEach(end);
    };
    app.serviceManager.contents.fileChanged.connect((_, change) => {
      if (change.type === 'save' || change.type === 'new' || change.type === 'delete') void refresh();
    });
    NotebookActions.executionScheduled.connect((_, { cell }) => noteLoading(cell));
    NotebookActions.executed.connect((_, { notebook, cell, success, error }) => {
      noteLostName(notebook, cell, error);
      // A cell that is run before its kernel is there is dropped, and called a success.
      if (success && isCode(cell) && cell.model.executionCount !== null) {
        foldQuestion(cell);
        skipHidden(notebook, cell);
        void showOutput(notebook, cell);
      }
      // Progress is read from the saved notebook, so that is saved as soon as a check or the recap has run.
      const counts = checks(cell) || (isCode(cell) && /^recap\(\)/m.test(sourceOf(cell)));
      if (counts && /^(notebooks|exercises)\//.test(pathOf(notebook.parent))) save(notebook.parent.context);
    });
    notebooks.widgetAdded.connect((_, notebook) => {
      const { content, context } = notebook;
      void context.ready.then(() => {
        end(notebook);
        markCells(content);
        content.model.contentChanged.connect(() => markCells(content));
      });
    });
    window.addEventListener('toggle', ({ target }) => {
      const { panel: notebook, cell } = placeOf(notebooks, target);
      if (!cell || !target.open || !reveals(cell)) return;
      unfolded.add(cell.model);
      markCells(notebook.content);
    }, true);
    // In the window and first: neither JupyterLab nor the widget has seen the key.
    window.addEventListener('keydown', event => holdRun(app, event, notebooks), true);
    window.addEventListener('keydown', event => moveInQuestion(event, notebooks), true);
    for (const type of ['click', 'change']) window.addEventListener(type, event => keepGuess(event, notebooks));
    app.shell.currentChanged.connect(() => mark(panel.node, pathOf(app.shell.currentWidget)));
    // Notebook 7 shows one notebook, and has no tabs.
    app.shell.layoutModified?.connect(() => {
      for (const widget of app.shell.widgets('main')) nameTab(widget);
    });
    // Not awaited: JupyterLab waits for this function before it restores anything.
    void refresh();
    void app.restored.then(() => {
      if (isNarrow()) app.shell.collapseLeft?.();
      else if (!app.shell.leftCollapsed) app.shell.activateById(ID);
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
