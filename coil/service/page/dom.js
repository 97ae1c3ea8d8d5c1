// Creates elements from values. Texts become text nodes, never HTML: documents may contain anything.

/** Make an element: `make("p", { class: "note", title: "…", on: { click } }, "text", child)`. */
export function make(tag, options = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (name === "vars") {
      // Through the CSSOM: the content security policy forbids style attributes.
      for (const [variable, of] of Object.entries(value)) element.style.setProperty(`--${variable}`, String(of));
    } else {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** The element with this id. */
export const byId = (id) => document.getElementById(id);

/** Text for screen readers only. */
export const unseen = (text) => make("span", { class: "unseen" }, text);

const whole = new Intl.NumberFormat("en-GB");
const percent = new Intl.NumberFormat("en-GB", { style: "percent", maximumFractionDigits: 0 });
const smallPercent = new Intl.NumberFormat("en-GB", { style: "percent", maximumSignificantDigits: 2 });

export const count = (number) => whole.format(number);
/** Per cent without decimals; below one per cent, with two significant digits. */
export const share = (part) => (part !== 0 && Math.abs(part) < 0.01 ? smallPercent : percent).format(part);
/** A score: two decimals and a real minus sign. */
export const number = (value) => value.toFixed(2).replace(/^-(?=0\.00$)/, "").replace("-", "−");
/** A difference, always with its sign. */
export const signed = (value) => (value >= 0.005 ? `+${number(value)}` : number(value));
export const milliseconds = (value) => `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`;
export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;
/** Bytes in a readable unit. */
export function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (value >= 1000 && at < units.length - 1) [value, at] = [value / 1000, at + 1];
  return `${at && value < 100 ? value.toFixed(1) : Math.round(value)} ${units[at]}`;
}
