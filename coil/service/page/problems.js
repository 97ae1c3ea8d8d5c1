// Problems that belong to a field: they are told beside it.

import { byId } from "./dom.js";

/** Whether the server objects to the filter. */
export const isAboutFilter = ({ status, detail }, asked) =>
  Boolean(asked.filter) && status >= 400 && status < 500 && /filter/i.test(detail ?? "");

/** Whether it objects to how the query is written. */
export const isAboutQuery = (problem, asked) =>
  problem.status === 422 && !isAboutFilter(problem, asked) && /\b(query|operators?)\b/.test(`${problem.detail} ${problem.remedy}`);

/** Tell what is wrong with the filter; null for nothing. */
export function problemInFilter(problem) {
  const line = byId("filter-problem");
  line.hidden = !problem;
  line.textContent = problem ? problem.detail : "";
  if (problem) byId("filter").setAttribute("aria-invalid", "true");
  else byId("filter").removeAttribute("aria-invalid");
}

/** Tell what is wrong with the query; `before` is the query whose hits stay. */
export function problemInQuery(problem, before = "") {
  const line = byId("query-problem");
  line.hidden = !problem;
  const remedy = problem?.remedy ? `: ${problem.remedy}` : "";
  const left = before ? ` The hits below are those of “${before}”.` : "";
  line.textContent = problem ? `${problem.detail}${remedy}.${left}` : "";
  if (problem) byId("q").setAttribute("aria-invalid", "true");
  else byId("q").removeAttribute("aria-invalid");
}
