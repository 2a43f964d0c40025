// Sorts a table of learners by the column whose heading is pressed, and back if pressed again.
for (const table of document.querySelectorAll('.learners')) {
  const [body] = table.tBodies;
  for (const head of table.tHead.rows[0].cells) {
    const compare = (one, other) => {
      const [first, second] = [one, other].map((row) => row.cells[head.cellIndex]);
      const byPoints = (first.dataset.points ?? 0) - (second.dataset.points ?? 0);
      return byPoints || first.innerText.localeCompare(second.innerText);
    };
    head.querySelector('button').addEventListener('click', () => {
      const isAgain = head.ariaSort === 'ascending';
      for (const other of table.tHead.rows[0].cells) other.removeAttribute('aria-sort');
      head.setAttribute('aria-sort', isAgain ? 'descending' : 'ascending');
      const rows = [...body.rows].sort(compare);
      body.append(...(isAgain ? rows.reverse() : rows));
    });
  }
}
