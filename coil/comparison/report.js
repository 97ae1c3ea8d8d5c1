// Sorts a table by the column whose heading is pressed; rows without a value come last.
for (const table of document.querySelectorAll("table[data-sorts]")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = head.querySelector("button");
    if (!button) return;
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      for (const other of heads) if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = (row) => row.cells[column].dataset.value;
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => {
        const x = value(a), y = value(b);
        if (x === undefined || y === undefined) return (x === undefined) - (y === undefined);
        return down ? y - x : x - y;
      });
      table.tBodies[0].append(...rows);
    });
  });
}
