/* How sources are marked, and the draft of one step as a tree, with what was accepted of it. */

function mark(node, source) {
  if (source !== OWN) node.classList.add("from", `line${source % 4}`, `ink${source % 6}`);
  return node;
}

function drawLegend() {
  const legend = make("p", "legend soft");
  const step = make("span", "step odd");
  step.append(make("span", "token", "one"), make("span", "token", " decode"), make("span", "token", " step"));
  legend.append(step, make("span", "token own", "the target's own"));
  legend.append(make("span", "token drafted", "drafted"));
  const late = data.cases.some((entry) => entry.answers.some(({ turns }) => turns.some((turn) => turn.late.length)));
  if (late) legend.append(make("span", "token drafted late", "drafted late, while the target ran"));
  data.sources.forEach((name, source) => legend.append(mark(make("span", "token drafted", `by ${name}`), source)));
  return legend;
}

function readTree(packed) {
  const parents = data.shapes[packed.p];
  const children = new Map();
  parents.forEach((parent, node) => {
    if (!children.has(parent)) children.set(parent, []);
    children.get(parent).push(node);
  });
  const sourceOf = (node) => (Array.isArray(packed.s) ? packed.s[node] : packed.s);
  return { tokens: packed.t, children, sourceOf, taken: new Set(packed.a), passengers: new Set(packed.x ?? []) };
}

function drawNode(tree, node) {
  const number = tree.tokens[node];
  const chip = mark(make("span", "node", shown(number).replaceAll("\n", "")), tree.sourceOf(node));
  const source = tree.sourceOf(node);
  const notes = [`id ${data.ids[number]}`];
  if (source !== OWN) notes.push(`from ${data.sources[source]}`);
  if (tree.taken.has(node)) {
    chip.classList.add("taken");
    chip.prepend(make("span", "", "\u2713"));
    notes.push("accepted");
  } else if (tree.passengers.has(node)) {
    chip.classList.add("passenger");
    notes.push("passenger: computed for its logits, never accepted");
  }
  chip.title = notes.join(", ");
  return chip;
}

/* An unbranched run of nodes is one line; where it branches, a list goes on below it. */
function drawBranches(tree, nodes) {
  const list = make("ul");
  for (const first of nodes) {
    const item = make("li");
    let node = first;
    let below = [];
    for (;;) {
      item.append(drawNode(tree, node));
      below = tree.children.get(node) ?? [];
      if (below.length !== 1) break;
      node = below[0];
    }
    if (below.length) item.append(drawBranches(tree, below));
    list.append(item);
  }
  return list;
}

/* The first token of the late chain hangs from the end of the draft, which it continues. */
function drawLate(list, number) {
  const chip = make("span", "node taken late", `\u2713${shown(number).replaceAll("\n", "")} (late)`);
  chip.title = `id ${data.ids[number]}, drafted late, while the target ran, accepted`;
  const ends = list.querySelectorAll("li");
  (ends.length ? ends[ends.length - 1] : list.appendChild(make("li"))).append(chip);
}

function whyNoTree(answer, turn, step) {
  if (step === PREFILL) return "The prefill emits this token without a draft.";
  if (answer.kind === "peer") return "This method has its own loop: its drafts were not seen.";
  if (!turn.proposed[step]) return "Nothing was drafted in this step.";
  return turn.trees.length ? "This draft is left out to keep the page small." : "Its draft was not recorded.";
}

function drawTree(answer, turn, index) {
  const entry = answer.turns[turn];
  const tokens = readAnswer(answer)[turn];
  const step = tokens[index].step;
  const packed = step === PREFILL ? null : entry.trees[step];
  const late = step !== PREFILL && entry.late.includes(step);
  const box = make("div", "tree");
  if (!packed) {
    box.append(make("p", "soft", whyNoTree(answer, entry, step)));
    if (late) drawLate(box.appendChild(make("ul")), tokens.findLast((token) => token.step === step).number);
    return box;
  }
  const root = tokens.findIndex((token) => token.step === step) - 1;
  const extra = packed.x ? `, and ${packed.x.length} passengers that cannot be` : "";
  const text = `Draft of step ${step}, after ${root < 0 ? "the prompt" : quoted(tokens[root].number)}: ${entry.proposed[step]} proposed, ` +
    `${packed.a.length} accepted (\u2713)${extra}${late ? ", and one of the late chain behind it" : ""}`;
  const tree = readTree(packed);
  const list = drawBranches(tree, tree.children.get(-1) ?? []);
  if (late) drawLate(list, tokens.findLast((token) => token.step === step).number);
  box.tabIndex = 0;
  box.setAttribute("role", "group");
  box.setAttribute("aria-label", text);
  box.append(make("p", "soft", text), list);
  return box;
}
