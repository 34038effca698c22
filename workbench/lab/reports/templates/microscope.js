(() => {
  "use strict";
  const COLUMNS = 160, MOST_LABELS = 2000, NONE = "none";
  const byId = (id) => document.getElementById(id);
  const chunks = byId("chunks").textContent.split("\n");
  const unpacked = new Map(); // number of a chunk -> promise of its groups
  const filter = { text: null, sign: "", finish: "", reward: [-Infinity, Infinity], step: [-Infinity, Infinity] };
  let head, unseen, training, places, hits, group = 0, search = 0;

  const unpack = async (base64) => {
    const raw = atob(base64), bytes = new Uint8Array(raw.length);
    for (let n = 0; n < raw.length; n++) bytes[n] = raw.charCodeAt(n);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(stream).text());
  };
  const textsOf = async (g) => {
    const [chunk, place] = training.chunk[g];
    if (!unpacked.has(chunk)) unpacked.set(chunk, unpack(chunks[chunk]));
    return (await unpacked.get(chunk))[place];
  };

  // --- text and numbers -------------------------------------------------------------------------------------------

  // Every text of the run gets onto the page here: as text nodes, with labels for what cannot be seen.
  const write = (element, text, find = null) => {
    let labels = 0;
    (find ? text.split(find) : [text]).forEach((part, n) => {
      const target = n % 2 ? element.appendChild(document.createElement("mark")) : element;
      let end = 0;
      for (const match of part.matchAll(unseen)) {
        if (labels++ > MOST_LABELS) break;
        target.append(part.slice(end, match.index));
        const label = target.appendChild(document.createElement("span"));
        label.className = "unseen";
        const code = match[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0"), times = [...match[0]].length;
        label.textContent = `U+${code}${times > 1 ? ` x${times}` : ""}`;
        end = match.index + match[0].length;
      }
      target.append(labels > MOST_LABELS ? part.slice(end).replace(unseen, "\ufffd") : part.slice(end));
    });
    return element;
  };
  const rewrite = (element, text) => { element.replaceChildren(); write(element, text); };
  const make = (tag, className, text = "") => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    return write(element, text);
  };
  const svg = (tag, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  };
  const number = (value) => (value === null || value === undefined ? NONE : String(Number(value.toPrecision(4))));
  const percent = (share) => (share > 0 && share < 0.01 ? "<1%" : share < 1 && share > 0.99 ? ">99%" : `${Math.round(100 * share)}%`);
  const many = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;

  // --- all steps --------------------------------------------------------------------------------------------------

  const columnOf = (step) => Math.floor((step * columns()) / training.steps.length);
  const columns = () => Math.min(COLUMNS, training.steps.length);
  const firstIn = (column) => Math.ceil((column * training.steps.length) / columns());
  const perColumn = (values, weights) => { // mean of the steps in a column, weighted
    const sums = Array(columns()).fill(0), all = Array(columns()).fill(0);
    values.forEach((value, step) => {
      if (value === null) return;
      sums[columnOf(step)] += value * weights[step];
      all[columnOf(step)] += weights[step];
    });
    return sums.map((sum, n) => (all[n] ? sum / all[n] : null));
  };
  const chart = (height, className, draw) => {
    const picture = svg("svg", { viewBox: `0 0 ${columns()} ${height}`, preserveAspectRatio: "none", class: className, "aria-hidden": true });
    draw(picture);
    picture.append(svg("rect", { class: "cursor", x: columnOf(training.steps_of_groups[group] ?? 0), y: 0, width: 1, height }));
    const at = (event) => {
      const box = picture.getBoundingClientRect();
      return firstIn(Math.max(0, Math.min(columns() - 1, Math.floor(((event.clientX - box.left) / box.width) * columns()))));
    };
    picture.addEventListener("pointermove", (event) => readStep(at(event)));
    picture.addEventListener("pointerleave", () => readStep(training.steps_of_groups[group]));
    picture.addEventListener("click", (event) => toStep(at(event)));
    return picture;
  };
  const strip = (name, shares, className) => {
    byId("strips").append(name, chart(1, "", (picture) => shares.forEach((share, x) => {
      if (share) picture.append(svg("rect", { class: className, x, y: 0, width: 1, height: 1, "fill-opacity": 0.15 + 0.85 * share }));
    })));
  };
  const drawRewards = () => {
    const { bins, histogram, mean } = training, height = bins.length, merged = Array.from({ length: columns() }, () => Array(height).fill(0));
    histogram.forEach((counts, step) => counts.forEach((count, bin) => { merged[columnOf(step)][bin] += count; }));
    const axis = make("div", "axis");
    axis.append(make("span", "", `reward ${number(bins.at(-1))}`), make("span", "note", "stronger colour: more completions; line: mean"), make("span", "", number(bins[0])));
    byId("strips").append(axis, chart(height, "tall", (picture) => {
      merged.forEach((counts, x) => {
        const all = counts.reduce((a, b) => a + b, 0);
        counts.forEach((count, bin) => {
          if (count) picture.append(svg("rect", { class: "heat", x, y: height - 1 - bin, width: 1, height: 1, "fill-opacity": 0.08 + 0.8 * Math.sqrt(count / all) }));
        });
      });
      const [low, high] = [bins[0], bins.at(-1)], means = perColumn(mean, training.sizes_of_steps);
      const y = (value) => height - 0.5 - ((Math.min(high, Math.max(low, value)) - low) / (high - low || 1)) * (height - 1);
      const points = means.map((value, x) => (value === null ? "" : `${x + 0.5},${y(value)}`)).filter(Boolean);
      picture.append(svg("polyline", { class: "mean", points: points.join(" ") }));
    }));
  };
  const drawStrips = () => {
    byId("strips").replaceChildren();
    if (training.bins) drawRewards();
    for (const sign of training.signs) {
      const name = make("button", "name");
      name.type = "button";
      name.append(make("strong", "", percent(sign.share)), ` ${sign.words}`);
      name.addEventListener("click", () => { byId("filter-sign").value = sign.key; applyFilter(sign.worst); });
      strip(name, perColumn(sign.by_step, training.sizes_of_steps), sign.fault ? "fault" : "sign");
    }
    if (filtered()) {
      const shares = Array(training.steps.length).fill(0), all = Array(training.steps.length).fill(0);
      training.steps_of_groups.forEach((step, g) => { for (let row = training.starts[g]; row < training.starts[g + 1]; row++) { shares[step] += hits[row]; all[step]++; } });
      strip(make("span", "name", "what the filter finds"), perColumn(shares.map((n, step) => (all[step] ? n / all[step] : null)), all), "found");
    }
    const steps = byId("strips").appendChild(make("div", "steps"));
    steps.append(make("span", "", `step ${training.steps[0]}`), make("span", "", `step ${training.steps.at(-1)}`));
  };
  const readStep = (step) => {
    const signs = training.signs.filter((sign) => sign.by_step[step]).map((sign) => `${percent(sign.by_step[step])} ${sign.words}`);
    const reward = training.mean ? [`mean reward ${number(training.mean[step])}`] : [];
    rewrite(byId("readout"), [`Step ${training.steps[step]}: ${many(training.sizes_of_steps[step], "completion")}`, ...reward, ...signs].join(" · "));
  };

  // --- the trainings of a run -------------------------------------------------------------------------------------

  const drawTrainings = () => {
    byId("trainings").hidden = head.trainings.length < 2;
    const signs = new Map(Object.keys(training.bits).flatMap((key) => head.trainings.flatMap((t) => t.signs.filter((sign) => sign.key === key).map((sign) => [key, sign.words]))));
    const top = byId("trainings").querySelector("thead").appendChild(document.createElement("tr"));
    for (const name of ["training", "completions", "mean reward, first tenth of the steps", "last tenth", ...signs.values()]) top.append(make("th", "", name));
    head.trainings.forEach((t, n) => {
      const row = byId("trainings").querySelector("tbody").appendChild(document.createElement("tr"));
      const button = row.appendChild(document.createElement("td")).appendChild(make("button", "", t.name || "this folder"));
      button.type = "button";
      button.addEventListener("click", () => choose(n));
      const tenth = Math.max(1, Math.floor(t.steps.length / 10)), known = (values) => values.filter((value) => value !== null);
      const ends = t.mean ? [t.mean.slice(0, tenth), t.mean.slice(-tenth)].map(known).map((means) => (means.length ? String(Number((means.reduce((a, b) => a + b, 0) / means.length).toPrecision(3))) : NONE)) : ["", ""];
      for (const text of [t.total.toLocaleString("en"), ...ends]) row.append(make("td", "num", text));
      for (const key of signs.keys()) {
        const sign = t.signs.find((one) => one.key === key), cell = row.appendChild(make("td", "num", sign ? percent(sign.share) : ""));
        if (!sign) continue;
        cell.dataset.share = sign.fault ? "fault" : "sign";
        cell.style.setProperty("--share", `${100 * sign.share}%`);
      }
    });
  };
  const choose = async (n, step = null, number = 1) => {
    training = head.trainings[n];
    [...byId("trainings").querySelector("tbody").rows].forEach((row, at) => row.toggleAttribute("aria-current", at === n));
    training.starts ??= startsOf(training.sizes);
    const faults = training.signs.filter((sign) => sign.fault).map((sign) => `${percent(sign.share)} ${sign.words}`);
    rewrite(byId("course"), (faults.length ? `Of all completions: ${faults.join(", ")}. ` : "") + (training.course ?? ""));
    options("filter-sign", training.signs.map((sign) => [sign.key, sign.words]));
    options("filter-finish", (training.finish_reasons ?? []).map((name) => [name, name]));
    byId("marks-label").hidden = !training.has_tokens;
    const lacks = training.lacks.length ? `Not recorded here, so this page does not show it: ${training.lacks.join(", ")}${training.has_tokens ? "" : ", tokens"}.` : training.has_tokens ? "" : "Single tokens were not recorded.";
    rewrite(byId("lacks"), lacks);
    rewrite(byId("absent"), training.absent.length ? `Checked, none found: completions ${training.absent.join("; ")}.` : "");
    await applyFilter(step ?? training.signs[0]?.worst ?? training.steps.length - 1);
    if (number > 1) await show(groupsOf(training.steps_of_groups[group])[number - 1]);
  };
  const startsOf = (sizes) => {
    const starts = [0];
    for (const size of sizes) starts.push(starts.at(-1) + size);
    return starts;
  };
  const options = (id, entries) => {
    byId(id).replaceChildren(byId(id).options[0], ...entries.map(([value, words]) => Object.assign(make("option", "", words), { value })));
    byId(id).value = "";
    byId(id).disabled = !entries.length;
  };

  // --- filter -----------------------------------------------------------------------------------------------------

  const filtered = () => Boolean(filter.text || filter.sign || filter.finish) || [...filter.reward, ...filter.step].some(Number.isFinite);
  const readFilter = () => {
    const text = byId("filter-text").value, bound = (id, other) => (byId(id).value === "" ? other : byId(id).valueAsNumber);
    filter.text = text ? new RegExp(`(${text.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&")})`, "iu") : null;
    filter.sign = byId("filter-sign").value;
    filter.finish = byId("filter-finish").value;
    filter.reward = [bound("reward-from", -Infinity), bound("reward-to", Infinity)];
    filter.step = [bound("step-from", -Infinity), bound("step-to", Infinity)];
  };
  const fits = (row, step) => {
    const { reward, finish_reason: finish, flags } = training, [low, high] = filter.reward, within = low === -Infinity && high === Infinity;
    return step >= filter.step[0] && step <= filter.step[1] && (within || (reward?.[row] != null && reward[row] >= low && reward[row] <= high))
      && (!filter.finish || training.finish_reasons[finish[row]] === filter.finish) && (!filter.sign || (flags[row] >> training.bits[filter.sign]) & 1);
  };
  const applyFilter = async (step = null) => { // `step`: where to go, else as near as can be to where we are
    readFilter();
    const mine = ++search, from = step ?? training.steps_of_groups[group] ?? 0, found = new Uint8Array(training.flags.length);
    for (let g = 0; g < training.sizes.length; g++) {
      for (let row = training.starts[g]; row < training.starts[g + 1]; row++) found[row] = fits(row, training.steps[training.steps_of_groups[g]]) ? 1 : 0;
      if (filter.text && found.subarray(training.starts[g], training.starts[g + 1]).includes(1)) {
        if (g % 500 === 0) byId("count").textContent = `searching: ${percent(g / training.sizes.length)}`;
        const { completions } = await textsOf(g);
        if (mine !== search) return; // another search has begun
        completions.forEach((text, n) => { found[training.starts[g] + n] &= filter.text.test(text) ? 1 : 0; });
      }
    }
    hits = found;
    places = training.sizes.flatMap((_, g) => (hits.subarray(training.starts[g], training.starts[g + 1]).includes(1) ? [g] : []));
    const rows = hits.reduce((a, b) => a + b, 0);
    byId("count").textContent = filtered() ? `${many(rows, "completion")} in ${many(places.length, "group")} of ${many(hits.length, "completion")}` : "";
    drawStrips();
    await (step === null && places.includes(group) ? show(group) : toStep(from));
  };

  // --- going about ------------------------------------------------------------------------------------------------

  const nearest = (step) => places.reduce((best, g) => {
    const far = (at) => Math.abs(training.steps_of_groups[at] - step);
    return best === null || far(g) < far(best) ? g : best;
  }, null);
  const toStep = (step) => show(nearest(step));
  const move = (key) => {
    const at = places.indexOf(group), stepOf = (g) => training.steps_of_groups[g];
    if (key === "Home") return places[0];
    if (key === "End") return places.at(-1);
    if (key === "ArrowDown") return places[at + 1];
    if (key === "ArrowUp") return places[at - 1];
    if (key === "ArrowRight") return places.find((g) => stepOf(g) > stepOf(group));
    const before = places.findLast((g) => stepOf(g) < stepOf(group));
    return before === undefined ? before : places.find((g) => stepOf(g) === stepOf(before));
  };
  const onKey = (event) => {
    const typing = event.target.matches("input, select, textarea");
    if (event.key === "Escape") { byId("filters").reset(); document.activeElement.blur(); } else if (event.ctrlKey || event.metaKey || event.altKey || typing) return;
    else if (event.key === "/") byId("filter-text").focus();
    else if (/^(Arrow(Left|Right|Up|Down)|Home|End)$/.test(event.key)) { const to = move(event.key); if (to !== undefined) show(to); } else return;
    event.preventDefault();
  };

  const groupsOf = (step) => training.steps_of_groups.reduce((all, at, g) => (at === step ? [...all, g] : all), []);

  // --- a group ----------------------------------------------------------------------------------------------------

  const show = async (to) => {
    byId("group").hidden = to === null || to === undefined;
    if (byId("group").hidden) return;
    group = to;
    const step = training.steps_of_groups[group], texts = await textsOf(group);
    if (to !== group) return; // the reader has gone on
    const inStep = groupsOf(step), word = training.grouped ? "group" : "page";
    byId("here").textContent = `Step ${training.steps[step]} of ${training.steps.at(-1)}, ${word} ${inStep.indexOf(group) + 1} of ${inStep.length}`;
    for (const cursor of document.querySelectorAll(".cursor")) cursor.setAttribute("x", columnOf(step));
    const prompts = texts.prompts.map((prompt) => make("div", "", prompt));
    byId("prompt").replaceChildren(byId("prompt").firstElementChild, ...prompts);
    const rows = training.flags.slice(training.starts[group], training.starts[group + 1]);
    const shared = training.signs.filter((sign) => rows.length > 1 && rows.every((flags) => has(flags, sign.key)));
    byId("shared").replaceChildren(...(shared.length ? [`All ${rows.length} completions: `] : []), ...shared.map(chip));
    byId("cards").replaceChildren(...texts.completions.map((text, n) => card(texts, text, n, shared)));
    drawLegend();
    readStep(step);
    history.replaceState(null, "", `#training=${head.trainings.indexOf(training)}&step=${training.steps[step]}&group=${inStep.indexOf(group) + 1}`);
  };
  const has = (flags, key) => Boolean((flags >> training.bits[key]) & 1);
  const chip = (sign) => make("span", sign.fault ? "chip fault" : "chip", sign.words);
  const card = (texts, text, n, shared) => {
    const row = training.starts[group] + n, { reward, advantage, kept, sampled, flags } = training;
    const sign = Math.sign(advantage?.[row] ?? 0), known = kept && kept[row] !== null;
    const made = make("article", `card${sign > 0 ? " up" : sign < 0 ? " down" : ""}${hits[row] ? "" : " other"}`);
    const top = made.appendChild(document.createElement("header"));
    top.append(make("span", "note", `#${n + 1}`), make("strong", "", `reward ${number(reward?.[row])}`));
    if (advantage) top.append(make("strong", "advantage", `advantage ${sign > 0 ? "+" : ""}${number(advantage[row])}`));
    if (training.finish_reason) top.append(make("span", "chip end", training.finish_reasons[training.finish_reason[row]] || NONE));
    if (known) top.append(make("span", "note", many(kept[row], "token")));
    if (texts.rewards) made.append(make("p", "note", training.functions.map((name, at) => `${name} ${number(texts.rewards[n][at])}`).join(" · ")));
    const said = ["cut", "wasted", ...shared.map((sign) => sign.key)]; // above
    made.append(...training.signs.filter((sign) => has(flags[row], sign.key) && !said.includes(sign.key)).map(chip));
    const body = made.appendChild(make("div", has(flags[row], "masked") ? "text masked" : "text")), tokens = texts.tokens?.[n];
    const stop = !has(flags[row], "cut") && training.stops.find((one) => text.endsWith(one));
    if (tokens) writeTokens(body, tokens);
    else {
      write(body, (stop ? text.slice(0, -stop.length) : text) || (stop ? "" : "(empty)"), filter.text);
      if (stop) write(body.appendChild(document.createElement("span")), stop, filter.text).dataset.use = "s";
    }
    if (known && sampled[row] > kept[row] && !tokens?.[1].includes("w")) body.append(" ", make("span", "after", `+ ${many(sampled[row] - kept[row], "token")} after the end`));
    return made;
  };
  const USES = { k: "kept", s: "the stop", w: "computed after the end", m: "left out of the loss" };
  const writeTokens = (body, [pieces, uses, ratios]) => {
    const byRatio = byId("marks").value === "ratio";
    pieces.forEach((piece, n) => {
      const span = make("span", "", piece), ratio = ratios[n];
      if (!byRatio || uses[n] === "w") span.dataset.use = uses[n];
      else if (ratio) {
        span.className = ratio < 0 ? "ratio-low" : "ratio-high";
        span.style.setProperty("--far", Math.min(1, Math.abs(ratio) / Math.LN2));
      }
      span.title = `token ${n + 1}: ${USES[uses[n]]}${ratio === undefined ? "" : `, log-ratio ${number(ratio)}`}`;
      body.append(span);
    });
  };
  const drawLegend = () => {
    const legend = byId("legend");
    legend.replaceChildren();
    const sample = (text, set) => { const span = legend.appendChild(make("span", "sample", text)); set(span); legend.append(" "); };
    const uses = training.has_tokens ? "kswm" : training.stops.length ? "s" : "";
    if (byId("marks").value === "use" || !uses) for (const use of uses) sample(USES[use], (span) => { span.dataset.use = use; });
    else if (training.has_tokens) {
      for (const [name, words] of [["ratio-low", "less likely under the scorer than the sampler said"], ["ratio-high", "more likely"]]) sample(words, (span) => { span.classList.add(name); span.style.setProperty("--far", 1); });
      legend.append("full colour at a factor of 2; a token's number is in its tooltip");
    }
  };

  // --- start ------------------------------------------------------------------------------------------------------

  const start = async () => {
    head = await unpack(byId("head").textContent);
    unseen = new RegExp(head.unseen, "gu");
    document.querySelector("main").hidden = false;
    training = head.trainings[0];
    drawTrainings();
    const wrong = head.trainings.map((t) => t.signs.reduce((sum, sign) => sum + (sign.fault ? sign.share : 0), 0));
    const asked = new URLSearchParams(location.hash.slice(1)), named = asked.has("training") && head.trainings[Number(asked.get("training"))];
    const n = named ? Number(asked.get("training")) : wrong.indexOf(Math.max(...wrong));
    const at = head.trainings[n].steps.indexOf(Number(asked.get("step")));
    await choose(n, at < 0 ? null : at, at < 0 ? 1 : Number(asked.get("group")));
    byId("filters").hidden = false;
    byId("filters").addEventListener("submit", (event) => event.preventDefault());
    byId("filters").addEventListener("reset", () => setTimeout(() => applyFilter()));
    byId("filters").addEventListener("input", () => applyFilter());
    byId("marks").addEventListener("change", () => show(group));
    for (const button of document.querySelectorAll(".moves button")) {
      button.addEventListener("click", () => { const to = move(button.dataset.key); if (to !== undefined) show(to); });
    }
    document.addEventListener("keydown", onKey);
    document.documentElement.dataset.ready = "";
  };
  start().catch((error) => {
    byId("problem").hidden = false;
    byId("problem").textContent = `This page could not be opened: ${error.message}`;
  });
})();
