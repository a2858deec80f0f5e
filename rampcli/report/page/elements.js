"use strict";
// Builds elements. Text from a run only ever becomes a text node, never markup.

/** Returns an element. Attributes whose value is null are left out; functions are listeners. */
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") made.addEventListener(name, value);
    else if (name === "swatch") made.style.setProperty("--swatch", value);
    else if (name === "width") made.style.width = value;
    else if (name === "checked" || name === "open" || name === "value") made[name] = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

/** Replaces the content of an element. */
function fill(target, ...children) {
  target.replaceChildren(...children.flat().filter((child) => child !== null));
}

/**
 * Returns a table. Columns have a `name` and a function `cell` of a row. Columns of `text` are
 * aligned to the left, and those that `wrap` may have several lines.
 */
function table(columns, rows, label) {
  const heads = columns.map((column) => element("th", { scope: "col", class: column.text ? "text" : null }, ...[column.name].flat()));
  const lines = rows.map((row) => element("tr", {}, columns.map((column) => {
    const cell = column.cell(row);
    const kinds = [column.text && "text", column.wrap && "wrap"];
    return element("td", { class: kinds.filter(Boolean).join(" ") || null }, ...[cell].flat());
  })));
  return element("table", { "aria-label": label }, element("thead", {}, element("tr", {}, heads)), element("tbody", {}, lines));
}

let probe = null;

/** Returns a colour of the style sheet, as it is in the present theme. */
function colour(name, opacity = 1) {
  probe ??= document.body.appendChild(element("span", { hidden: true }));
  probe.style.color = `var(--${name})`;
  const found = getComputedStyle(probe).color;
  if (opacity === 1) return found;
  const [red, green, blue] = found.match(/[\d.]+/g);
  return `rgba(${red}, ${green}, ${blue}, ${opacity})`;
}

/** Returns the name of the colour of a run by its place. */
function runColour(slot) {
  return `run-${slot % 8}`;
}
