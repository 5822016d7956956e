// Search and sort for the tables of many clients. The page works without: then it shows all rows in their order.
for (const box of document.querySelectorAll("input[data-search]")) {
  const table = document.getElementById(box.dataset.search), body = table.tBodies[0];
  const shown = document.getElementById(box.dataset.search + "-shown");
  const rows = [...body.rows];
  const search = () => {
    const words = box.value.trim().toLowerCase();
    for (const row of rows) row.hidden = !row.cells[0].textContent.toLowerCase().includes(words);
    shown.textContent = rows.filter(row => !row.hidden).length + " of " + rows.length + " clients";
  };
  const value = (row, column) => {
    const text = row.cells[column].textContent.trim(), number = parseFloat(text.replaceAll(",", ""));
    return column && text !== "" ? (Number.isNaN(number) ? -Infinity : number) : text.toLowerCase();
  };
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") === "descending" || (!column && !head.hasAttribute("aria-sort"));
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const order = [...rows].sort((a, b) => {
        const x = value(a, column), y = value(b, column);
        return (x < y ? -1 : x > y ? 1 : 0) * (up ? 1 : -1);
      });
      body.append(...order);
    });
  });
  box.addEventListener("input", search);
  search();
}
