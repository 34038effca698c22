// A long table gets a field: only the rows that have what is typed there are shown.
document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("table.docutils")) {
    const rows = [...table.querySelectorAll("tbody tr")];
    if (rows.length <= 20) continue;
    const field = document.createElement("input");
    field.type = "search";
    field.className = "table-filter";
    field.placeholder = `Filter ${rows.length} rows`;
    field.setAttribute("aria-label", field.placeholder);
    field.addEventListener("input", () => {
      const wanted = field.value.toLowerCase();
      for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
    });
    (table.closest(".table-wrapper") ?? table).before(field);
  }
});
