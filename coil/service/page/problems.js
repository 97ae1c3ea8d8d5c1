// Problems of a field, shown next to it.

import { byId } from "./dom.js";

/** Whether the server objects to the filter. */
export const isAboutFilter = ({ status, detail }, asked) =>
  Boolean(asked.filter) && status >= 400 && status < 500 && /filter/i.test(detail ?? "");

/** Whether the server objects to the syntax of the query. */
export const isAboutQuery = (problem, asked) =>
  problem.status === 422 && !isAboutFilter(problem, asked) && /\b(query|operators?)\b/.test(`${problem.detail} ${problem.remedy}`);

/** Whether the server objects to the field to sort by. */
export const isAboutSort = ({ status, detail, remedy }, asked) =>
  Boolean(asked.sort) && status === 422 && /\bsort\b/.test(`${detail} ${remedy}`);

/** Show what is wrong with the filter; null for nothing. */
export function problemInFilter(problem) {
  const line = byId("filter-problem");
  line.hidden = !problem;
  line.textContent = problem ? problem.detail : "";
  if (problem) byId("filter").setAttribute("aria-invalid", "true");
  else byId("filter").removeAttribute("aria-invalid");
}

/** Show what is wrong with the query; `before` is the query whose hits stay. */
export function problemInQuery(problem, before = "") {
  const line = byId("query-problem");
  line.hidden = !problem;
  const remedy = problem?.remedy ? `: ${problem.remedy}` : "";
  const left = before ? ` The hits below are for “${before}”.` : "";
  line.textContent = problem ? `${problem.detail}${remedy}.${left}` : "";
  if (problem) byId("q").setAttribute("aria-invalid", "true");
  else byId("q").removeAttribute("aria-invalid");
}
