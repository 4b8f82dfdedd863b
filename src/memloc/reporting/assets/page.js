"use strict";
(() => {
  const page = JSON.parse(document.getElementById("page").textContent);
  const chosen = { ...page.start };
  const local = {}; // of each figure: what is chosen in it alone
  const unpacked = new Map();
  const drawn = new Map(); // figures that came into view, and their views

  // A block is JSON, compressed, as base64: only what is looked at is unpacked.
  function unpack(id) {
    if (!unpacked.has(id)) unpacked.set(id, (async () => {
      const text = document.getElementById(id).textContent;
      const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
      const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
      return JSON.parse(await new Response(stream).text());
    })());
    return unpacked.get(id);
  }

  const cell = (column, i) => (column.levels ? column.levels[column.values[i]] : column.values[i]);

  function rowsOf(table, choice) {
    const wanted = Object.entries(choice).map(([name, value]) => [table.columns[name], value]);
    const names = Object.keys(table.columns);
    const rows = [];
    for (let i = 0; i < table.n; i++) {
      if (wanted.every(([column, value]) => String(cell(column, i)) === String(value)))
        rows.push(Object.fromEntries(names.map((name) => [name, cell(table.columns[name], i)])));
    }
    return rows;
  }

  // A figure that the chosen method does not give is that of the first method that gives it.
  // A page of plants alone has no such choice for all figures.
  const gives = (figure, what) => what !== "method" || !("method" in chosen) || !figure.values.method || figure.values.method.includes(chosen.method);
  const shown = (figure, what) => (gives(figure, what) ? chosen[what] : figure.values.method[0]);
  const choiceOf = (figure) => Object.fromEntries(
    figure.choose.map((what) => [what, what in chosen ? shown(figure, what) : local[figure.name][what]]));

  // On a phone, names along the left are in small letters, rather than cut.
  const isPhone = (width) => width < 560;
  const names = (width) => (isPhone(width) ? { labelLimit: 165, labelFontSize: 9 } : { labelLimit: 240, labelFontSize: 12 });
  const LEAST = 18; // pixels of a cell with a number in it

  function theme(width) {
    const css = getComputedStyle(document.documentElement);
    const [ink, muted, line] = ["--ink", "--muted", "--line"].map((name) => css.getPropertyValue(name).trim());
    const text = { labelColor: ink, titleColor: muted, titleFontWeight: "normal", labelFontSize: 12, titleFontSize: 13 };
    return {
      background: "transparent",
      font: "system-ui, sans-serif",
      view: { stroke: line },
      axis: { ...text, gridColor: line, domainColor: line, tickColor: line },
      axisX: isPhone(width) ? { labelFontSize: 9 } : {},
      axisY: names(width),
      legend: isPhone(width) ? { ...text, titleFontSize: 10 } : text,
      rule: { color: ink },
      header: { labelColor: ink, labelFontWeight: 600, labelFontSize: 13 },
    };
  }

  const layersOf = (spec) => (spec.layer ?? [spec]).map((layer) => layer.encoding ?? {});

  // What the names along the left take, or the numbers.
  function labelRoom(spec, rows, width) {
    const named = layersOf(spec).map(({ y }) => y).find((y) => y?.type === "nominal");
    if (!named) return 60;
    const longest = Math.max(...rows.map((row) => String(row[named.field]).length));
    const { labelLimit, labelFontSize } = names(width);
    return Math.min(labelLimit, (7 / 12) * labelFontSize * longest) + (named.title ? 40 : 25);
  }

  // Charts are drawn as wide as there is room; panels go below each other where there is little.
  function fitted(spec, rows, width) {
    const copy = structuredClone(spec);
    delete copy.title; // the page has it
    if (copy.facet) {
      const usual = copy.spec.width;
      const panels = new Set(rows.map((row) => row[copy.facet.field])).size;
      const labels = labelRoom(copy.spec, rows, width);
      const each = copy.resolve?.scale?.y === "independent" ? labels + 20 : 24; // beside a panel
      const least = Math.max(150, usual * 0.75) + each;
      const most = panels === 3 ? 3 : copy.columns; // no panel alone in a row, where there is room
      const side = Math.max(1, Math.min(most, panels, Math.floor((width - labels) / least)));
      copy.columns = side;
      copy.spec.width = Math.max(120, Math.min(Math.max(usual * 2.2, 660), (width - labels - 30) / side - each));
    } else if (copy.height?.step) { // Vega does not fit charts whose height depends on their rows
      copy.width = Math.max(120, Math.min(width, 1100) - labelRoom(copy, rows, width) - 20);
      const columns = new Set(rows.map((row) => row[layersOf(copy)[0].x.field])).size;
      if (copy.width < LEAST * columns) copy.layer = copy.layer.filter(({ mark }) => mark.type !== "text");
    } else {
      copy.width = Math.min(width, 860);
      if (copy.height) copy.height = Math.round(copy.height * Math.min(1.25, Math.max(1, copy.width / 560)));
      copy.autosize = { type: "fit-x", contains: "padding" };
    }
    (function narrower(part) {
      if (!part || typeof part !== "object") return;
      if (part.legend?.gradientLength) part.legend.gradientLength = Math.min(part.legend.gradientLength, copy.width ?? copy.spec.width);
      const room = part.legend?.labelLimit > 200 ? 250 : 135; // for the longest label
      if (part.legend?.columns) part.legend.columns = Math.max(1, Math.min(part.legend.columns, Math.floor(width / room)));
      if (part.legend && part.legend.labelLimit) part.legend.labelLimit = Math.min(part.legend.labelLimit, width - 60);
      Object.values(part).forEach(narrower);
    })(copy);
    return copy;
  }

  function missing(element, figure, choice) {
    element.replaceChildren();
    const words = document.createElement("p");
    words.className = "missing";
    words.append(`Nothing for ${Object.values(choice).join(" · ")}. `);
    const known = page.commands[`${choice.model ?? chosen.model}|${choice.task ?? chosen.task}`] ?? {};
    const command = known[figure.part === "localise" ? choice.method ?? chosen.method : figure.part];
    if (command) {
      const code = document.createElement("code");
      code.textContent = command;
      words.append(code, " makes it, if this method or analysis gives it.");
    }
    element.append(words);
  }

  async function draw(figure) {
    const box = document.querySelector(`[data-figure="${CSS.escape(figure.name)}"] .chart`);
    const choice = choiceOf(figure);
    const table = await unpack(`data-${figure.name}`);
    if (JSON.stringify(choice) !== JSON.stringify(choiceOf(figure))) return; // chosen anew meanwhile
    const rows = rowsOf(table, choice);
    const against = box.closest("figure").querySelector(".against");
    const instead = gives(figure, "method") ? "" : `By ${choice.method}, because ${chosen.method} does not give this. `;
    if (against) against.textContent = rows.length ? instead + figure.against[choice.method] : "";
    drawn.get(figure.name)?.finalize?.();
    if (!rows.length) { drawn.set(figure.name, {}); return missing(box, figure, choice); }
    const width = box.clientWidth;
    const description = box.closest("figure").querySelector("h2, h3").textContent; // for screen readers
    const named = JSON.parse(JSON.stringify(figure.spec).replaceAll("{quantity}", rows[0].quantity));
    const spec = { ...fitted(named, rows, width), description, datasets: { [page.data]: rows } };
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const config = { ...spec.config, ...theme(width) };
    delete spec.config;
    box.style.minHeight = `${box.offsetHeight}px`; // nothing below it jumps while it is drawn anew
    const view = await vegaEmbed(box, spec, {
      actions: false, renderer: "svg", config, tooltip: { theme: dark ? "dark" : "light" } });
    box.style.minHeight = "";
    drawn.set(figure.name, view);
    box.dataset.drawn = JSON.stringify(choice);
    numbers(figure, box.closest("figure").querySelector(".numbers"), rows);
  }

  // The same numbers for those who do not hover: a table, made when it is opened.
  const MOST = 400;
  function numbers(figure, details, rows) {
    const fill = () => {
      if (!details.open) return;
      const table = document.createElement("table");
      const head = table.createTHead().insertRow();
      for (const title of Object.values(figure.columns)) {
        const cell = document.createElement("th");
        cell.scope = "col";
        cell.textContent = title;
        head.append(cell);
      }
      const body = table.createTBody();
      for (const row of rows.slice(0, MOST)) {
        const line = body.insertRow();
        for (const name of Object.keys(figure.columns)) {
          const value = row[name];
          line.insertCell().textContent = value === null ? "–" :
            typeof value === "number" && !Number.isInteger(value) ? value.toPrecision(3) : String(value);
        }
      }
      if (rows.length > MOST) table.createCaption().textContent =
        `The first ${MOST} of ${rows.length} rows; memloc tables writes all of them.`;
      details.querySelector(".scroll").replaceChildren(table);
    };
    details.ontoggle = fill;
    fill();
  }

  // One after the other, so that what is looked at first is there first.
  let last = Promise.resolve();
  const later = (figure) => { last = last.then(() => draw(figure)).then(() => new Promise(requestAnimationFrame)); };
  const redraw = (test) => page.figures.filter((f) => drawn.has(f.name) && test(f)).forEach(later);

  function select(what, values, value, change) {
    const label = document.createElement("label");
    const field = document.createElement("select");
    field.dataset.choose = what;
    values.forEach((v) => field.add(new Option(v, v, v === value, v === value)));
    field.addEventListener("change", () => change(field.value));
    label.append(`${what} `, field);
    return label;
  }

  async function prepare(figure, element) {
    const own = figure.choose.filter((what) => !(what in chosen));
    local[figure.name] = Object.fromEntries(own.map((what) => [what, figure.values[what][0]]));
    element.querySelector(".local").replaceChildren(...own.map((what) =>
      select(what, figure.values[what], figure.values[what][0], (value) => {
        local[figure.name][what] = value;
        later(figure);
      })));
  }

  const seen = new IntersectionObserver((entries) => entries.forEach((entry) => {
    const name = entry.target.dataset.figure;
    if (!entry.isIntersecting || drawn.has(name)) return;
    drawn.set(name, {});
    later(page.figures.find((f) => f.name === name));
  }), { rootMargin: "300px" });

  page.figures.forEach((figure) => {
    const element = document.querySelector(`[data-figure="${CSS.escape(figure.name)}"]`);
    prepare(figure, element);
    seen.observe(element);
  });

  document.querySelectorAll("#chooser select").forEach((field) => field.addEventListener("change", () => {
    chosen[field.dataset.choose] = field.value;
    redraw((figure) => figure.choose.includes(field.dataset.choose));
    examples.show();
  }));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw(() => true));
  let width = innerWidth;
  let waiting;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(() => redraw(() => true), 200);
  });

  // The examples table: texts once a task, what windows do as bits a run.
  const examples = (() => {
    const body = document.getElementById("rows");
    if (!body) return { show() {} };
    const search = document.getElementById("search");
    const found = document.getElementById("found");
    const more = document.getElementById("more");
    const STEP = 50;
    let state = { rows: [], shown: 0 };

    const element = (name, text, kind) => {
      const made = document.createElement(name);
      if (text !== undefined) made.textContent = text;
      if (kind) made.className = kind;
      return made;
    };

    function decode(run, n, count) {
      const bytes = Uint8Array.from(atob(run.bits), (c) => c.charCodeAt(0));
      const of = new Map();
      for (let r = 0; r < n; r++) {
        const bits = new Uint8Array(count);
        for (let w = 0; w < count; w++) {
          const at = r * count + w;
          bits[w] = (bytes[at >> 3] >> (7 - (at & 7))) & 1;
        }
        of.set(run.rows[r], bits);
      }
      return of;
    }

    // As layer weights: over widths, the mean share of windows with the layer that revert it.
    function strip(bits, run) {
      const box = element("span", undefined, "strip");
      for (let layer = 1; layer <= run.depth; layer++) {
        const widths = new Map();
        run.windows.forEach(([first, last], w) => {
          if (first > layer || last < layer) return;
          const [sum, n] = widths.get(last - first) ?? [0, 0];
          widths.set(last - first, [sum + bits[w], n + 1]);
        });
        const shares = [...widths.values()].map(([sum, n]) => sum / n);
        const share = shares.reduce((a, b) => a + b, 0) / shares.length;
        const cell = element("i");
        cell.style.background = `rgba(var(--cell), ${share.toFixed(3)})`;
        cell.title = `layer ${layer}: ${(100 * share).toFixed(0)} %`;
        box.append(cell);
      }
      return box;
    }

    function held(shares) {
      const box = element("span", undefined, "strip");
      shares.forEach((share, i) => {
        const cell = element("i");
        cell.style.background = `rgba(var(--cell), ${Math.min(1, Math.max(0, share / 60)).toFixed(3)})`;
        cell.title = `layer ${i + 1}: ${share} %`;
        box.append(cell);
      });
      box.setAttribute("role", "img");
      const most = shares.indexOf(Math.max(...shares));
      box.setAttribute("aria-label", `most in layer ${most + 1}, ${shares[most]} %`);
      return box;
    }

    function smallest(bits, run) {
      let best = Infinity;
      run.windows.forEach(([first, last], w) => { if (bits[w]) best = Math.min(best, last - first); });
      if (best === Infinity) return "none";
      const names = run.windows.filter(([first, last], w) => bits[w] && last - first === best)
        .map(([first, last]) => (first === last ? `${first}` : `${first}–${last}`));
      return names.slice(0, 4).join(", ") + (names.length > 4 ? " …" : "");
    }

    function every(bits, run) {
      const grid = element("div", undefined, "grid");
      grid.style.gridTemplateColumns = `repeat(${run.depth + 1}, 15px)`;
      const at = new Map(run.windows.map(([first, last], w) => [`${first}-${last}`, bits[w]]));
      grid.append(element("i", ""));
      for (let last = 1; last <= run.depth; last++) grid.append(element("i", last));
      for (let first = 1; first <= run.depth; first++) {
        grid.append(element("i", first));
        for (let last = 1; last <= run.depth; last++) {
          const value = at.get(`${first}-${last}`);
          const cell = element("i", "", value === undefined ? "" : value ? "window reverts" : "window");
          if (value !== undefined) cell.title = `layers ${first} to ${last}: ${value ? "reverted" : "kept"}`;
          grid.append(cell);
        }
      }
      return grid;
    }

    function line({ row, at }) {
      const { run, bits } = state;
      const tr = element("tr");
      const button = element("button", row[0]);
      button.type = "button";
      button.setAttribute("aria-expanded", "false");
      button.setAttribute("aria-label", `example ${row[0]}: show every window`);
      const number = element("td");
      const mine = bits?.get(at);
      const picture = element("td");
      if (mine) picture.append(strip(mine, run));
      number.append(mine ? button : String(row[0]));
      const exact = element("td", state.shares?.has(at) ? undefined : "not measured");
      if (state.shares?.has(at)) exact.append(held(state.shares.get(at)));
      tr.append(number, element("td", row[1], "text"), element("td", state.labels[row[2]]),
        element("td", state.labels[row[3]]), ...(page.held ? [exact] : []), picture, element("td", mine ? smallest(mine, run) : "not measured", "windows"));
      const open = () => {
        const isOpen = tr.nextSibling?.dataset?.detail;
        button.setAttribute("aria-expanded", String(!isOpen));
        if (isOpen) return tr.nextSibling.remove();
        const below = element("tr");
        below.dataset.detail = "yes";
        const all = element("td");
        all.colSpan = 7;
        all.append(element("div", "Windows by first (rows) and last layer (columns); filled: the assigned label is no longer predicted.", "caption"), every(mine, run));
        below.append(all);
        return tr.after(below);
      };
      button.addEventListener("click", open);
      return tr;
    }

    function next() {
      const part = state.rows.slice(state.shown, state.shown + STEP);
      body.append(...part.map(line));
      state.shown += part.length;
      more.hidden = state.shown >= state.rows.length;
    }

    function filter() {
      const words = search.value.trim().toLowerCase();
      state.rows = state.all.filter(({ row }) => !words ||
        `${row[1]} ${state.labels[row[2]]} ${state.labels[row[3]]}`.toLowerCase().includes(words));
      state.shown = 0;
      body.replaceChildren();
      const left = state.left ? ` (${state.left} more are in the files)` : "";
      const what = state.run ? `${state.run.model}, ${state.run.method}, seed ${state.run.seed}` :
        `windows of ${chosen.model} were not changed`;
      found.textContent = `${state.rows.length} of ${state.all.length} noisy examples${left} · ${chosen.task} · ${what}`;
      next();
    }

    async function show() {
      const id = page.examples[chosen.task];
      if (!id) { body.replaceChildren(); found.textContent = `no examples of ${chosen.task}`; return; }
      const block = await unpack(id);
      const mine = block.runs.filter((r) => r.model === chosen.model);
      const run = mine.find((r) => r.windows && r.method === chosen.method) ?? mine.find((r) => r.windows);
      const exact = mine.find((r) => r.held);
      const n = run ? run.rows.length : 0;
      state = { all: block.rows.map((row, at) => ({ row, at })), labels: block.labels, left: block.left, run,
        bits: run && decode(run, n, run.windows.length), rows: [], shown: 0,
        shares: exact && new Map(exact.held.map((row, i) => [exact.rows[i], row])) };
      filter();
    }

    search.addEventListener("input", filter);
    more.addEventListener("click", next);
    const near = new IntersectionObserver((entries) => {
      if (entries.some((entry) => entry.isIntersecting)) { near.disconnect(); show(); }
    }, { rootMargin: "300px" });
    near.observe(document.getElementById("example-table"));
    return { show() { if (state.all) show(); } };
  })();
})();
