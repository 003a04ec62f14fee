"use strict";
// Everything is readable without this script: it only chooses, filters, sorts and points.

// -- which axis the convergence charts are drawn against
const axis = document.getElementById("axis");
axis.addEventListener("change", () => {
  for (const panel of document.querySelectorAll(".charts[data-axis]")) panel.hidden = panel.dataset.axis !== axis.value;
});

// -- charts: the nearest point says what it is, under the pointer or by the arrow keys
const tip = document.getElementById("tip");
for (const title of document.querySelectorAll("svg.chart circle > title")) {
  title.parentNode.dataset.text = title.textContent;
  title.remove();
}
for (const title of document.querySelectorAll("svg.chart > title")) title.remove();
function point(chart, circle) {
  for (const old of chart.querySelectorAll(".near")) old.classList.remove("near");
  tip.hidden = !circle;
  if (!circle) return;
  circle.classList.add("near");
  tip.textContent = circle.dataset.text;
  const at = circle.getBoundingClientRect();
  const left = Math.min(at.right + 10, window.innerWidth - tip.offsetWidth - 8);
  tip.style.left = Math.max(8, left) + "px";
  tip.style.top = Math.max(8, at.top - tip.offsetHeight - 8) + "px";
}
for (const chart of document.querySelectorAll("svg.chart")) {
  const circles = [...chart.querySelectorAll("circle")];
  chart.addEventListener("pointermove", (event) => {
    let best = null, least = Infinity;
    for (const circle of circles) {
      const box = circle.getBoundingClientRect();
      const away = Math.hypot(box.x + box.width / 2 - event.clientX, box.y + box.height / 2 - event.clientY);
      if (away < least) [best, least] = [circle, away];
    }
    point(chart, best);
  });
  chart.addEventListener("pointerleave", () => point(chart, null));
  chart.addEventListener("blur", () => point(chart, null));
  chart.addEventListener("keydown", (event) => {
    const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") return point(chart, null);
    if (!move || !circles.length) return;
    event.preventDefault();
    const now = circles.findIndex((circle) => circle.classList.contains("near"));
    point(chart, circles[(now + move + circles.length) % circles.length]);
  });
}

// -- coefficients: filter and sort
const filter = document.getElementById("filter");
const weights = document.getElementById("weights");
if (filter && weights) {
  const body = weights.tBodies[0];
  const rows = [...body.rows];
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const count = document.getElementById("filter-count");
  const show = () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, i) => {
      row.hidden = !words.every((word) => texts[i].includes(word));
      shown += !row.hidden;
    });
    count.textContent = shown.toLocaleString("en") + " of " + rows.length.toLocaleString("en");
  };
  filter.addEventListener("input", show);
  show();
  const heads = [...weights.querySelectorAll(".sort")];
  heads.forEach((button, column) => button.addEventListener("click", () => {
    const again = button.getAttribute("aria-pressed") === "true" && button.dataset.way !== "up";
    heads.forEach((head) => head.removeAttribute("aria-pressed"));
    button.setAttribute("aria-pressed", "true");
    button.dataset.way = again ? "up" : "down";
    const value = (row) => row.cells[column].dataset.value;
    const key = (row) => value(row) === undefined ? row.cells[column].textContent : value(row) === "" ? null : Number(value(row));
    const way = again ? -1 : 1;
    const order = (a, b) => typeof a === "string" ? way * a.localeCompare(b) : way * ((b ?? -Infinity) - (a ?? -Infinity) || 0);
    body.append(...rows.slice().sort((a, b) => order(key(a), key(b))));
  }));
}

// -- copying, light and dark, and opening everything before it is printed
for (const button of document.querySelectorAll(".copy")) {
  button.addEventListener("click", () => {
    const text = button.nextElementSibling;
    const range = document.createRange();
    range.selectNodeContents(text);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    if (navigator.clipboard) navigator.clipboard.writeText(text.textContent).then(() => { button.textContent = "Copied"; }, () => {});
  });
}
document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const is = root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  root.dataset.theme = is === "dark" ? "light" : "dark";
});
addEventListener("beforeprint", () => { for (const details of document.querySelectorAll("details")) details.open = true; });
