/* Tables that can be sorted by any column, and the leaderboard's filters. Without them all of it is plain HTML. */

/* A cell's value: a number (NaN where blank) in columns of figures, text in columns of names. */
function valueOf(row, column, named) {
  const cell = row.cells[column];
  if (!cell) return named ? "" : NaN;
  if (named) return [...cell.childNodes].map((part) => (part.className ? "" : part.textContent)).join("").trim();
  return parseFloat(cell.dataset.v ?? cell.textContent.replace("(", ""));
}

function compare(left, right, sign, named) {
  if (named) return sign * left.localeCompare(right, undefined, { numeric: true });
  if (Number.isNaN(left) || Number.isNaN(right)) return Number.isNaN(left) - Number.isNaN(right); // blanks stay last
  return sign * (left - right);
}

function sort(table, header, sign) {
  const body = table.tBodies[0];
  const column = header.cellIndex;
  const named = header.classList.contains("name");
  const rows = [...body.rows].map((row) => ({ row, value: valueOf(row, column, named) }));
  rows.sort((left, right) => compare(left.value, right.value, sign, named));
  body.append(...rows.map((entry) => entry.row));
  for (const other of header.parentElement.cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
}

/* A link of the contents opens what is folded below its heading. */
function unfold() {
  const fold = location.hash && document.querySelector(`${CSS.escape(location.hash).replace("\\#", "#")} > .fold`);
  if (fold) fold.open = true;
}

/* The header's text becomes a button; figures begin with the largest, names with A. */
function makeSortable(table) {
  if (!table.tBodies[0] || table.tBodies[0].rows.length < 2) return;
  for (const header of table.tHead.rows[0].cells) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.append(...header.childNodes);
    header.append(button);
    button.addEventListener("click", () => {
      const first = header.classList.contains("name") ? 1 : -1;
      const now = header.getAttribute("aria-sort");
      const again = now === (first > 0 ? "ascending" : "descending");
      sort(table, header, again ? -first : first);
    });
  }
}

function filterBoard(filters) {
  const wanted = [...filters.querySelectorAll("select")].map((select) => [select.dataset.filter, select.value]);
  let shown = 0;
  for (const row of document.querySelectorAll("table.board tbody tr")) {
    row.hidden = !wanted.every(([name, value]) => value === "" || row.dataset[name] === value);
    shown += !row.hidden;
  }
  document.getElementById("board-status").textContent = `${shown} ${shown === 1 ? "row" : "rows"}`;
}

document.querySelectorAll("table.sortable").forEach(makeSortable);
addEventListener("hashchange", unfold);
unfold();
const filters = document.getElementById("board-filters");
if (filters && filters.querySelector("select")) {
  filters.hidden = false;
  filters.addEventListener("change", () => filterBoard(filters));
  filterBoard(filters);
}
