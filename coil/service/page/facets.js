// Facets: fields with few values among the displayed hits, with counts; a click narrows to one value.

import { byId, make } from "./dom.js";
import { condition, valuesOf } from "./hits.js";

const FIELDS = 3; // that are shown
const VALUES = 8; // a field with more says little,
const HITS = 1.75; // and so does one whose values have fewer hits each, on average

/** The fields worth choosing from: `[{ field, values: [{ value, written, hits }] }]`, the most frequent values first. */
export function facetsOf(hits) {
  const fields = new Map();
  for (const hit of hits) {
    for (const [field, value] of valuesOf(hit)) {
      const written = condition(field, value);
      if (written === null) continue;
      if (!fields.has(field)) fields.set(field, new Map());
      const values = fields.get(field);
      values.set(written, { value, written, hits: (values.get(written)?.hits ?? 0) + 1 });
    }
  }
  return [...fields]
    .map(([field, values]) => ({ field, values: [...values.values()].sort((a, b) => b.hits - a.hits) }))
    .filter(({ values }) => values.length > 1 && values.length <= VALUES && mean(values) >= HITS)
    .sort((a, b) => a.values.length - b.values.length)
    .slice(0, FIELDS);
}

const mean = (values) => values.reduce((sum, { hits }) => sum + hits, 0) / values.length;

/** The line above the hits. */
export function showFacets(hits, narrow) {
  const facets = facetsOf(hits);
  const place = byId("facets");
  place.hidden = !facets.length;
  place.replaceChildren(
    ...facets.map(({ field, values }) =>
      make(
        "div",
        { role: "group", "aria-label": field },
        make("span", { class: "facet-name", "aria-hidden": "true" }, field),
        values.map(({ value, written, hits: n }) =>
          make(
            "button",
            {
              type: "button",
              class: "field facet",
              title: `Only ${written} (${n} of the displayed hits)`,
              on: { click: () => narrow(written) },
            },
            `${value} `,
            make("span", {}, String(n)),
          ),
        ),
      ),
    ),
  );
}
