/* The token view's data and what it says of a token: its text, the step that emitted it, and who drafted it. The data
   is made by token_data.py; all recorded text enters the page as text alone. */

const embedded = document.getElementById("token-data");
const data = embedded ? JSON.parse(embedded.textContent) : null;
const OWN = -1; // the source of the target's own tokens, and of those whose source is not known
const PREFILL = -1; // the step of the prefill's token
const turnsOf = new Map(); // an answer -> its turns, token by token

function make(name, className = "", text = "") {
  const node = document.createElement(name);
  if (className) node.className = className;
  if (text !== "") node.textContent = text;
  return node;
}

function choice(title, options, value) {
  const label = make("label", "", `${title} `);
  const select = make("select");
  options.forEach(([key, text]) => select.append(new Option(text, key, false, String(key) === String(value))));
  label.append(select);
  return { label, select };
}

function total(values) {
  return values.reduce((sum, value) => sum + value, 0);
}

/* White space is made visible where it is all that a token holds. */
function shown(number) {
  const piece = data.pieces[number];
  if (piece === "") return "\u2205";
  const visible = piece.trim() === "" ? piece.replaceAll(" ", "\u00b7") : piece;
  return visible.replaceAll("\t", "\u21e5").replace(/\r?\n/g, "\u21b5\n");
}

function quoted(number) {
  return `\u201c${shown(number).replaceAll("\n", "")}\u201d`;
}

function readTurn(turn) {
  const before = turn.ids.length - total(turn.accept);
  const blank = { step: PREFILL, position: 0, source: OWN, drafted: false, late: false };
  const tokens = turn.ids.map((number) => ({ number, ...blank }));
  const lates = new Set(turn.late); // steps whose last token was drafted while the target ran
  let next = before;
  turn.accept.forEach((count, step) => {
    for (let position = 1; position <= count; position += 1) {
      const source = turn.by.length ? turn.by[next - before] : OWN;
      const late = position === count && lates.has(step);
      Object.assign(tokens[next], { step, position, source, drafted: position < count || late, late });
      next += 1;
    }
  });
  return tokens;
}

function readAnswer(answer) {
  if (!turnsOf.has(answer)) turnsOf.set(answer, answer.turns.map(readTurn));
  return turnsOf.get(answer);
}

function mat(answer) {
  const steps = total(answer.turns.map((turn) => turn.accept.length));
  return steps ? total(answer.turns.map((turn) => total(turn.accept))) / steps : NaN;
}

function origin(answer, token) {
  if (token.step === PREFILL) return "the target, in the prefill";
  if (!token.drafted) return "the target's own";
  if (token.late) return "drafted late, while the target ran";
  if (token.source !== OWN) return `drafted by ${data.sources[token.source]}`;
  return answer.kind === "peer" ? "drafted in the method's own loop" : "drafted";
}

/* [label, value] of everything known about a token and its step. */
function factsOf(answer, turn, index) {
  const entry = answer.turns[turn];
  const token = readAnswer(answer)[turn][index];
  const facts = [
    ["Token", `${index}: ${quoted(token.number)}`],
    ["Id", `${data.ids[token.number]}`],
    ["From", origin(answer, token)],
  ];
  if (token.step === PREFILL) return facts;
  const accepted = entry.accept[token.step];
  facts.splice(2, 0, ["Step", `${token.step}`], ["Position", `${token.position} of ${accepted}`]);
  if (answer.kind === "peer") return facts;
  const proposed = entry.proposed[token.step];
  const deep = proposed ? `, ${entry.depth[token.step]} deep` : "";
  facts.push(["Proposed", `${proposed}${deep}`], ["Accepted", `${accepted - 1}${entry.late.includes(token.step) ? ", and 1 late" : ""}`]);
  facts.push(["Rows fed", `${entry.fed[token.step]}`]);
  return facts;
}
