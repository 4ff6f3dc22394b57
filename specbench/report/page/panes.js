/* Answers side by side: the tokens of each, the facts of the chosen one, and the draft of its step. Every pane follows
   the same place in the answer. */

const MOST_PANES = 4;
const state = { case: 0, turn: 0, token: 0, panes: [] };

function drawTokens(answer, pane) {
  const box = make("div", "tokens");
  box.setAttribute("role", "listbox");
  box.setAttribute("aria-orientation", "horizontal");
  box.setAttribute("aria-label", `Tokens of ${answer.name}`);
  readAnswer(answer).forEach((tokens, turn) => {
    const entry = answer.turns[turn];
    const steps = entry.accept.length;
    const part = make("div", "turn");
    part.setAttribute("role", "group");
    const title = make("p", "soft", `Turn ${turn}: ${tokens.length} tokens, ${steps} steps, ended by ${entry.finish}`);
    title.setAttribute("role", "presentation");
    part.append(title);
    let group = null;
    tokens.forEach((token, index) => {
      if (!group || index === 0 || token.step !== tokens[index - 1].step) {
        group = make("span", `step ${token.step % 2 ? "odd" : "even"}`);
        group.setAttribute("role", "presentation");
        part.append(group);
      }
      group.append(drawToken(answer, turn, index, pane));
    });
    box.append(part);
  });
  return box;
}

function drawToken(answer, turn, index, pane) {
  const token = readAnswer(answer)[turn][index];
  const kind = token.late ? "drafted late" : token.drafted ? "drafted" : "own";
  const node = mark(make("span", `token ${kind}`, shown(token.number)), token.source);
  node.setAttribute("role", "option");
  node.setAttribute("aria-selected", "false");
  node.setAttribute("aria-label", factsOf(answer, turn, index).map((fact) => fact.join(" ")).join(", "));
  node.dataset.turn = turn;
  node.dataset.index = index;
  node.tabIndex = -1;
  pane.nodes[turn] ??= [];
  pane.nodes[turn].push(node);
  return node;
}

function showFacts(pane, turn, index) {
  const list = make("dl", "facts");
  for (const [name, value] of factsOf(pane.answer, turn, index)) {
    const pair = make("div");
    pair.append(make("dt", "", name), make("dd", "", value));
    list.append(pair);
  }
  pane.facts.replaceChildren(list);
}

/* Show the chosen token in a pane: the same place in every answer, or its last one. */
function choose(pane) {
  if (!pane.answer) return;
  const turn = Math.min(state.turn, pane.nodes.length - 1);
  const index = Math.min(state.token, pane.nodes[turn].length - 1);
  const node = pane.nodes[turn][index];
  if (pane.chosen) {
    pane.chosen.setAttribute("aria-selected", "false");
    pane.chosen.tabIndex = -1;
    pane.chosen.parentElement.classList.remove("chosen");
  }
  pane.chosen = node;
  node.setAttribute("aria-selected", "true");
  node.tabIndex = 0;
  node.parentElement.classList.add("chosen");
  showFacts(pane, turn, index);
  const tree = drawTree(pane.answer, turn, index);
  pane.tree.replaceChildren(tree);
  reveal(tree, tree.querySelector(".taken"));
  reveal(pane.box, node);
}

/* Scroll a box, and nothing around it, until something inside is seen. */
function reveal(box, node) {
  if (!node) return;
  const [outer, inner] = [box.getBoundingClientRect(), node.getBoundingClientRect()];
  if (inner.top < outer.top || inner.bottom > outer.bottom) box.scrollTop += inner.top - outer.top - box.clientHeight / 3;
}

function chooseAt(turn, token, pane) {
  Object.assign(state, { turn, token });
  state.panes.forEach(choose);
  if (pane && document.activeElement !== pane.chosen) pane.chosen.focus();
}

/* The place before or after a token, across turns; at either end the token itself. */
function neighbour(pane, turn, index, by) {
  const sizes = pane.nodes.map((nodes) => nodes.length);
  if (index + by >= 0 && index + by < sizes[turn]) return [turn, index + by];
  if (turn + by < 0 || turn + by >= sizes.length) return [turn, index];
  return by > 0 ? [turn + 1, 0] : [turn - 1, sizes[turn - 1] - 1];
}

/* The first token of the step that a place belongs to. */
function beginning(pane, [turn, index]) {
  const tokens = readAnswer(pane.answer)[turn];
  return [turn, tokens.findIndex((token) => token.step === tokens[index].step)];
}

function nextStep(pane, turn, index) {
  const tokens = readAnswer(pane.answer)[turn];
  const last = tokens.findLastIndex((token) => token.step === tokens[index].step);
  const [there, place] = neighbour(pane, turn, last, 1);
  return there === turn && place === last ? [turn, index] : [there, place];
}

/* The place that a key leads to: [turn, index], or null for other keys. */
function destination(pane, key) {
  const turn = Number(pane.chosen.dataset.turn);
  const index = Number(pane.chosen.dataset.index);
  const last = pane.nodes.length - 1;
  switch (key) {
    case "ArrowRight": return neighbour(pane, turn, index, 1);
    case "ArrowLeft": return neighbour(pane, turn, index, -1);
    case "ArrowDown": return nextStep(pane, turn, index);
    case "ArrowUp": return beginning(pane, neighbour(pane, ...beginning(pane, [turn, index]), -1));
    case "Home": return [0, 0];
    case "End": return [last, pane.nodes[last].length - 1];
    default: return null;
  }
}

function listen(pane) {
  const at = (event) => event.target.closest(".token");
  pane.box.addEventListener("focusin", (event) => {
    const node = at(event);
    if (node) chooseAt(Number(node.dataset.turn), Number(node.dataset.index), null);
  });
  pane.box.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || !at(event)) return;
    const found = destination(pane, event.key);
    if (!found) return;
    event.preventDefault();
    chooseAt(...found, pane);
  });
  pane.box.addEventListener("mouseover", (event) => {
    const node = at(event);
    if (node) showFacts(pane, Number(node.dataset.turn), Number(node.dataset.index));
  });
  pane.box.addEventListener("mouseleave", () => {
    showFacts(pane, Number(pane.chosen.dataset.turn), Number(pane.chosen.dataset.index));
  });
}

function fillPane(pane) {
  const answers = data.cases[state.case].answers;
  pane.answer = answers.find((answer) => answer.name === pane.name) ?? null;
  Object.assign(pane, { nodes: [], chosen: null });
  if (!pane.answer) {
    pane.body.replaceChildren(make("p", "soft", "This method has no finished answer to this case."));
    return;
  }
  const tokens = total(pane.answer.turns.map((turn) => turn.ids.length));
  const kind = pane.answer.kind && pane.answer.kind !== "peer" ? `${pane.answer.kind}, ` : "";
  const summary = make("p", "soft", `${kind}${tokens} tokens, MAT ${mat(pane.answer).toFixed(2)}`);
  pane.box = drawTokens(pane.answer, pane);
  pane.facts = make("div", "detail");
  pane.tree = make("div");
  pane.body.replaceChildren(summary, pane.box, pane.facts, pane.tree);
  listen(pane);
}

/* ---- the view ---- */

function drawPane(name) {
  const pane = { name, element: make("section", "pane"), body: make("div") };
  const bar = make("div", "controls");
  const { label, select } = choice("Method", methodNames().map((known) => [known, known]), name);
  const remove = make("button", "", "\u2715");
  remove.type = "button";
  remove.title = "Remove this answer";
  bar.append(label, remove);
  pane.element.append(bar, pane.body);
  pane.rename = (chosen) => {
    pane.name = select.value = chosen;
    remove.setAttribute("aria-label", `Remove ${pane.name}`);
    pane.element.setAttribute("aria-label", `Answer of ${pane.name}`);
  };
  select.addEventListener("change", () => {
    pane.rename(select.value);
    fillPane(pane);
    choose(pane);
  });
  remove.addEventListener("click", () => {
    state.panes.splice(state.panes.indexOf(pane), 1);
    arrange();
  });
  pane.rename(name);
  pane.remove = remove;
  return pane;
}

function methodNames() {
  return [...new Set(data.cases.flatMap((entry) => entry.answers.map((answer) => answer.name)))];
}

/* Who answered a case, lossless methods that emit most a step first, vanilla last. */
function ranked(entry) {
  const rank = (answer) => (answer.kind === "reference" ? 0 : answer.kind === "lossy" ? 1 : 1 + mat(answer));
  return [...entry.answers].sort((left, right) => rank(right) - rank(left)).map((answer) => answer.name);
}

/* A pane whose method was not run on the case's model and suite gives way to the best that is not shown. */
function giveWay(entry) {
  const here = data.cases.filter((other) => other.where === entry.where);
  const run = new Set(here.flatMap((other) => other.answers.map((answer) => answer.name)));
  for (const pane of state.panes) {
    const open = new Set(state.panes.map((other) => other.name));
    const next = ranked(entry).find((name) => !open.has(name));
    if (next && !run.has(pane.name)) pane.rename(next);
  }
}

/* Begin where the first method's longest step begins, among those whose drafts are here. */
function chooseLongest() {
  const answer = state.panes[0].answer;
  let [turn, token, most] = [0, 0, 0];
  answer?.turns.forEach((entry, number) => {
    let next = entry.ids.length - total(entry.accept);
    entry.accept.forEach((count, step) => {
      if (count > most && entry.trees[step] !== null) [turn, token, most] = [number, next, count];
      next += count;
    });
  });
  chooseAt(turn, token, null);
}

function arrange() {
  document.getElementById("token-panes").replaceChildren(...state.panes.map((pane) => pane.element));
  document.getElementById("add-pane").disabled = state.panes.length >= Math.min(MOST_PANES, methodNames().length);
  for (const pane of state.panes) pane.remove.disabled = state.panes.length < 2;
}

function showCase(number) {
  state.case = number;
  const entry = data.cases[number];
  const prompt = document.getElementById("token-prompt");
  prompt.hidden = !entry.prompt;
  prompt.querySelector("pre").textContent = entry.prompt;
  const note = entry.left_out ? `${entry.left_out} more answers to this case are not on the page.` : "";
  document.getElementById("token-note").textContent = note;
  giveWay(entry);
  state.panes.forEach(fillPane);
  chooseLongest();
}

function addPane() {
  const open = new Set(state.panes.map((pane) => pane.name));
  const pane = drawPane(methodNames().find((name) => !open.has(name)));
  state.panes.push(pane);
  fillPane(pane);
  arrange();
  choose(pane);
}

function startTokenView(place) {
  const several = new Set(data.cases.map((entry) => entry.where)).size > 1;
  const titles = data.cases.map((entry, number) => {
    const category = entry.category && entry.category !== entry.case ? `, ${entry.category}` : "";
    return [number, `${entry.case}${category}${several ? `, ${entry.where}` : ""}`];
  });
  const { label, select } = choice("Case", titles, 0);
  const add = make("button", "", "Add a method");
  add.type = "button";
  add.id = "add-pane";
  const bar = make("div", "controls");
  bar.append(label, add);
  const prompt = make("details");
  prompt.id = "token-prompt";
  prompt.append(make("summary", "", "Prompt of the last turn, as the target read it"), make("pre"));
  const note = make("p", "soft");
  note.id = "token-note";
  const panes = make("div", "panes");
  panes.id = "token-panes";
  place.append(bar, note, drawLegend(), prompt, panes);
  state.panes = ranked(data.cases[0]).slice(0, 2).map(drawPane);
  arrange();
  select.addEventListener("change", () => showCase(Number(select.value)));
  add.addEventListener("click", addPane);
  showCase(0);
}

if (data && document.getElementById("token-view")) startTokenView(document.getElementById("token-view"));
