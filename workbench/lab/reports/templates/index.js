(() => {
  "use strict";
  const table = document.getElementById("runs"), body = table.tBodies[0], rows = [...body.rows];
  const text = document.getElementById("filter-text"), state = document.getElementById("filter-state");
  const count = document.getElementById("filter-count");
  const content = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));

  const filter = () => {
    const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const fits = (!state.value || row.dataset.state === state.value) && words.every((w) => content.get(row).includes(w));
      row.hidden = !fits;
      shown += fits;
    }
    count.textContent = `${shown} of ${rows.length} runs shown`;
  };

  const compare = (a, b) => {
    if (a === "" || b === "") return (a === "") - (b === "");
    const numbers = [Number(a), Number(b)];
    return numbers.some(Number.isNaN) ? a.localeCompare(b, "en", { numeric: true }) : numbers[0] - numbers[1];
  };

  const sort = (column, heading) => {
    const descending = heading.getAttribute("aria-sort") === "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
    const keys = new Map(rows.map((row) => {
      const cell = row.cells[column];
      return [row, cell.dataset.sort ?? cell.textContent.trim()];
    }));
    rows.sort((a, b) => {
      const order = compare(keys.get(a), keys.get(b));
      const empty = keys.get(a) === "" || keys.get(b) === "";
      return descending && !empty ? -order : order; // what has no value stays at the end
    });
    body.append(...rows);
  };

  [...table.tHead.rows[0].cells].forEach((heading, column) => {
    if (heading.dataset.plain !== undefined) return; // a curve has no order
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = heading.textContent;
    button.addEventListener("click", () => sort(column, heading));
    heading.replaceChildren(button);
  });
  document.querySelector(".filters").hidden = false;
  text.addEventListener("input", filter);
  state.addEventListener("change", filter);
  filter();
})();
