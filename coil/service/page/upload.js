// Uploading documents: a file of JSON lines, sent with the server's token.

import { sendDocuments } from "./api.js";
import { bytes, make, plural } from "./dom.js";

const LONGEST_TOKEN = 60_000; // bytes; the server accepts 64 KiB of headers

let token = ""; // kept only while the page is open

/** A form for adding documents to an index; `added` is called when the index has changed. */
export function uploadForm(index, added, open = false) {
  const file = make("input", { id: "upload-file", type: "file", accept: ".jsonl,.ndjson,.json,application/x-ndjson", required: true });
  const secret = make("input", { id: "upload-token", type: "password", autocomplete: "off", spellcheck: "false", required: true });
  const send = make("button", { type: "submit", class: "load" }, "Upload");
  const bar = make("progress", { max: 1, value: 0, hidden: true, "aria-label": "Sent" });
  const told = make("p", { class: "told", role: "status" });
  secret.value = token;
  const form = make(
    "form",
    { class: "upload" },
    make(
      "p",
      { class: "aside" },
      "One JSON object per line, such as ",
      make("code", {}, '{"id": "1", "text": "…", "year": 2024}'),
      ". A document replaces an existing one with the same id.",
    ),
    make("label", { for: "upload-file" }, "JSON lines file"),
    file,
    make("label", { for: "upload-token" }, "Server token"),
    secret,
    make("div", { class: "upload-line" }, send, bar),
    told,
  );
  const tell = (words, wrong = false) => {
    told.classList.toggle("problem-line", wrong);
    told.textContent = words;
  };
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (send.getAttribute("aria-disabled") === "true") return;
    token = secret.value.trim();
    const wrong = wrongIn(token);
    if (wrong) return void tell(wrong, true);
    send.setAttribute("aria-disabled", "true");
    [bar.hidden, bar.value] = [false, 0];
    tell(`Sending ${bytes(file.files[0].size)}…`);
    const sent = (share) => {
      bar.value = share;
      if (share === 1) tell("Sent. The documents are being indexed…");
    };
    try {
      const answer = await sendDocuments(index, file.files[0], token, sent);
      tell(result(answer));
      file.value = "";
      added();
    } catch (error) {
      tell(problem(error), true);
    } finally {
      bar.hidden = true;
      send.setAttribute("aria-disabled", "false");
    }
  });
  return make("details", { class: "adding", open }, make("summary", {}, "Add documents"), form);
}

/** What is wrong with a token before it is sent; null for nothing. `coil serve` accepts no spaces in it either. */
function wrongIn(given) {
  const paste = "paste only the token from the file that coil serve was started with (--token-file)";
  if (new TextEncoder().encode(given).length > LONGEST_TOKEN) {
    return `The token has ${plural(Array.from(given).length, "character")}, which is too long: ${paste}.`;
  }
  if (/[\s\p{Cc}]/u.test(given)) return `The token contains a space or a control character: ${paste}.`;
  return null;
}

function result({ added, empty, documents }) {
  const without = empty.length ? ` ${plural(empty.length, "document")} without text skipped: ${empty.slice(0, 5).join(", ")}${empty.length > 5 ? ", …" : ""}.` : "";
  return `${plural(added, "document")} added.${without} The index now has ${plural(documents, "document")}.`;
}

function problem(error) {
  const detail = error.detail ?? error.message;
  const remedy = error.status === 401 ? "paste the one in the file that coil serve was started with (--token-file)" : error.remedy;
  return `${detail}${remedy ? `: ${remedy}` : ""}.`;
}
