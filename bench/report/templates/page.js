"use strict";
// Sorting, filtering and words for what is pointed at.  Without it the page is whole, only still.

const value = (text) => {
  const found = text.replace(/−/g, "-").replace(/,/g, "").match(/^[~<$+\s]*(-?\d+(\.\d+)?)/);
  return found ? Number(found[1]) : null;
};

function sort(table, index, header) {
  const down = header.getAttribute("aria-sort") === "ascending";
  table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
  header.setAttribute("aria-sort", down ? "descending" : "ascending");
  const rows = [...table.tBodies[0].rows];
  const keyed = rows.map((row) => {
    const text = row.cells[index].textContent.trim();
    return { row, text, number: value(text) };
  });
  const numbers = header.classList.contains("n");
  keyed.sort((a, b) => {
    if (numbers) {
      // What is unknown stays below, whichever way.
      if (a.number === null || b.number === null) return (a.number === null) - (b.number === null);
      return down ? b.number - a.number : a.number - b.number;
    }
    return (down ? -1 : 1) * a.text.localeCompare(b.text);
  });
  table.tBodies[0].append(...keyed.map((key) => key.row));
}

function sortable(table) {
  table.querySelectorAll("th").forEach((header, index) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = header.textContent;
    button.addEventListener("click", () => sort(table, index, header));
    header.replaceChildren(button);
  });
}

function filterable(table) {
  if (table.tBodies[0].rows.length < 6) return;
  const label = document.createElement("label");
  label.className = "filter";
  const input = document.createElement("input");
  input.type = "search";
  const shown = document.createElement("span");
  shown.setAttribute("role", "status");
  label.append("Filter (words, all must occur): ", input, " ", shown);
  const rows = [...table.tBodies[0].rows];
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      count += !row.hidden;
    }
    shown.textContent = words.length ? `${count} of ${rows.length}` : "";
  });
  table.closest(".scroll").before(label);
}

// A folded table is made sortable when it is opened: pages of thousands of lines stay quick.
const ready = new WeakSet();
function prepare(table) {
  if (ready.has(table)) return;
  ready.add(table);
  sortable(table);
  filterable(table);
}
document.querySelectorAll("table").forEach((table) => {
  const folded = table.closest("details");
  if (folded) folded.addEventListener("toggle", () => prepare(table));
  else prepare(table);
});

const said = document.getElementById("said");
function say(tip) {
  const words = tip.querySelector("title");
  if (words) {
    tip.dataset.words = words.textContent;
    words.remove(); // else the browser shows its own as well
  }
  said.textContent = tip.dataset.words;
  said.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = Math.min(box.right + 8, innerWidth - said.offsetWidth - 8);
  said.style.left = `${Math.max(8, left)}px`;
  said.style.top = `${Math.max(8, box.top - said.offsetHeight - 6)}px`;
}
document.querySelectorAll(".tip").forEach((tip) => {
  tip.setAttribute("tabindex", "0");
  tip.setAttribute("role", "img");
  tip.setAttribute("aria-label", tip.querySelector("title").textContent);
  for (const event of ["mouseenter", "focus"]) tip.addEventListener(event, () => say(tip));
  for (const event of ["mouseleave", "blur"])
    tip.addEventListener(event, () => { said.hidden = true; });
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") said.hidden = true;
});

// A link into a folded part opens it; a print shows everything.
function open() {
  const place = location.hash && document.getElementById(location.hash.slice(1));
  const folded = place && place.closest("details");
  if (folded) folded.open = true;
}
addEventListener("hashchange", open);
open();
let closed = [];
addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("details:not([open])")];
  if (closed.length < 40) closed.forEach((part) => { part.open = true; });
});
addEventListener("afterprint", () => closed.forEach((part) => { part.open = false; }));
