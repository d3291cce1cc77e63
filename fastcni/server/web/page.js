"use strict";
// Names come from pods and callers. They reach the page as text nodes and attribute values only, never as HTML.

const STATUS_MS = 2000, TOPOLOGY_MS = 5000, RETRY_MS = 700;
const MAX_TILES = 48;               // pods of one parent that are drawn with text; more are dots until it is opened
const MAX_ROWS = 20;                // rows of the list of what a search finds
const by = id => document.getElementById(id);
const view = { topology: null, query: "", chosen: "", toggled: new Set(), drawn: "" };

// ---- elements

const clean = text => String(text ?? "").replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Co}]/gu, "\u00b7");
const cut = (text, most) => { text = clean(text); return text.length > most ? text.slice(0, most - 1) + "\u2026" : text; };

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.map(it => it instanceof Node ? it : clean(it)));
  return element;
}
const html = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
const svg = (name, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);

function press(element, action) {
  element.addEventListener("click", action);
  element.addEventListener("keydown", event => {
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); action(); }
  });
  return element;
}

// A table. columns: [title, of(row) -> text or node, class]
function table(columns, rows, empty, onPress) {
  if (!rows.length) return html("p", { class: "empty" }, empty);
  const head = columns.map(([title, , kind]) => html("th", { scope: "col", class: kind ?? "" }, title));
  const body = rows.map(row => {
    const line = html("tr", {}, ...columns.map(([, of, kind]) => html("td", { class: kind ?? "" }, of(row) ?? "")));
    if (!onPress) return line;
    line.tabIndex = 0;
    return press(line, () => onPress(row));
  });
  return html("table", {}, html("thead", {}, html("tr", {}, ...head)), html("tbody", {}, ...body));
}

// ---- figures

const ms = value => value == null ? "-" : value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
const clock = seconds => new Date(seconds * 1000).toLocaleTimeString("en-GB");
// A number of addresses: from a million on its order alone, as JavaScript does not have the digits of an IPv6 range
const amount = count => count < 1e6 ? String(count) : `over 10^${Math.floor(Math.log10(count))}`;
function span(seconds) {
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= size) return `${Math.floor(seconds / size)} ${unit}`;
  }
  return `${Math.floor(seconds)} s`;
}

function showStatus(status) {
  const server = status.server ?? {}, add = status.commands.find(it => it.command === "ADD") ?? {};
  by("server").textContent = `version ${clean(server.version)}, pid ${server.pid}, up ${span(server.uptimeSeconds)}`;
  const figures = [
    ["Requests a second", status.perSecond.toFixed(2), ""], ["ADD, median", ms(add.p50Ms), add.p50Ms == null ? "" : "ms"],
    ["ADD, 99th percentile", ms(add.p99Ms), add.p99Ms == null ? "" : "ms"], ["Failed", status.failed, `of ${status.requests}`, status.failed ? "bad" : ""],
    ["Running", server.running, `of ${server.workers}`],
    ["In the queue", server.waiting, `of ${server.queueSize}`, server.waiting ? "warn" : ""]];
  by("figures").replaceChildren(...figures.map(([name, value, unit, kind]) => html("div", {}, html("dt", {}, name),
    html("dd", { class: kind ?? "" }, value, html("small", {}, unit)))));
  showTimes(status);
  by("networks").replaceChildren(table([
    ["Network", it => it.network], ["Pods", it => it.attachments, "number"], ["Req/s", it => it.perSecond.toFixed(2), "number"],
    ["Failed", it => it.failed || "", "number bad"], ["p99 ms", it => ms(it.p99Ms), "number"],
    ["Full", it => meter(it.pool)], ["Range", it => it.pool ? it.pool.range : ""]], status.networks, "No network yet"));
  by("errors").replaceChildren(table([
    ["Code", it => it.outcome], ["Meaning", it => it.text, "text"], ["Requests", it => it.requests, "number"],
    ["Last network", it => it.network], ["Last", it => clock(it.time)]], status.errors, "None in this time"));
  by("slowest").replaceChildren(table([
    ["ms", it => ms(it.queueMs + it.ms), "number"], ["Command", it => it.command], ["Plugin", it => it.plugin],
    ["Network", it => it.network], ["Container", it => cut(it.container, 13)], ["Ended", it => clock(it.ended)],
    ["Code", it => it.outcome], ["Most", most]], status.slowest.slice(0, 8), "No request in this time"));
  showDrops(server.flows);
  const lost = status.lost ? ` ${status.lost} requests left the server's history before they were read.` : "";
  by("note").textContent = status.history
    ? `Figures of the requests that ended in the last ${Math.round(status.seconds)} s.${lost}`
    : "The server keeps no history of its requests (--history 0), so there are no figures of requests.";
}

// flows: null without --flows
function showDrops(flows) {
  by("flows").hidden = !flows;
  if (!flows) return;
  const end = it => it.pod ? `${it.pod}@${it.network}` : it.address;
  by("drops").replaceChildren(table([
    ["Time", it => clock(it.time)], ["Protocol", it => it.protocol], ["From", it => end(it.source), "mono"],
    ["To", it => end(it.destination), "mono"], ["Port", it => it.destination.port, "number"],
    ["By", it => it.by], ["Policy or chain", it => it.policy || it.chain, "text"]],
    flows.last, "None in the last minute"), ...flows.dropped > flows.last.length
    ? [html("p", { class: "empty" }, `the newest of ${flows.dropped}`)] : []);
}

function showTimes(status) {
  const commands = status.commands.map(it => it.command).filter(it => ["ADD", "DEL", "CHECK"].includes(it));
  const rows = new Map([["all", {}]]);
  for (const it of status.commands) rows.get("all")[it.command] = it;
  for (const it of status.phases) rows.set(it.phase, { ...rows.get(it.phase), [it.command]: it });
  const columns = commands.flatMap(command => [
    [`${command} p50`, ([, of]) => ms(of[command]?.p50Ms), "number"], ["p99", ([, of]) => ms(of[command]?.p99Ms), "number"]]);
  by("times").replaceChildren(table([["Phase", ([name]) => name], ...columns], commands.length ? [...rows] : [],
    "No ADD, DEL or CHECK in this time"));
}

function meter(pool) {
  if (!pool || pool.full == null) return "";
  const bar = html("i");
  bar.style.width = `${Math.min(100, pool.full * 100)}%`;
  return html("span", {}, html("span", { class: pool.full > 0.9 ? "meter high" : "meter" }, bar),
    `${Math.round(pool.full * 100)}%, ${amount(pool.free)} free`);
}

function most(request) {
  const [name, spent] = Object.entries({ queue: request.queueMs, ...request.phases }).sort((a, b) => b[1] - a[1])[0];
  return spent > (request.queueMs + request.ms) / 2 ? name : "";
}

// ---- search

const keyOf = it => JSON.stringify([it.network, it.containerID, it.ifname]);
// A port of both families, or of two protocols, is one number
const portNumbers = it => [...new Set(it.hostPorts.map(port => String(port.hostPort)))];

// The attachments that a text names exactly, else those that have it anywhere
function matches(attachments, query) {
  const text = query.trim().toLowerCase().replace(/^:/, "").replace(/\/(tcp|udp|sctp|\d{1,3})$/, "");
  if (!text) return [];
  const exact = attachments.filter(it =>
    [it.containerID, ...it.addresses, ...portNumbers(it), ...it.hostLinks].some(each => each.toLowerCase() === text));
  return exact.length ? exact : attachments.filter(it =>
    [it.containerID, it.network, it.ifname, it.netns, it.state, it.parent, ...it.addresses, ...portNumbers(it), ...it.hostLinks]
      .some(each => (each ?? "").toLowerCase().includes(text)));
}

function showFound(found) {
  const all = view.topology.attachments, chosen = all.find(it => keyOf(it) === view.chosen);
  const count = `${all.length + view.topology.omitted} attachments`;
  by("found").textContent = view.query.trim() ? `${found.length} of ${count}` : count;
  const one = chosen ?? (found.length === 1 ? found[0] : null);
  by("details").replaceChildren(...one ? [description(one)] : !view.query.trim() ? [] : [
    html("div", { class: "scroll" }, table([
      ["Container", it => cut(it.containerID, 40), "mono"], ["Interface", it => it.ifname], ["Network", it => it.network],
      ["Addresses", it => it.addresses.join(", "), "mono"], ["Host ports", it => portNumbers(it).join(", ")],
      ["State", it => it.state]], found.slice(0, MAX_ROWS), "Nothing on this node has this text", choose)),
    ...found.length > MAX_ROWS ? [html("p", { class: "empty" }, `and ${found.length - MAX_ROWS} more`)] : []]);
}

function description(it) {
  const rows = [
    ["Container", it.containerID], ["Interface", [it.ifname ?? "unknown", it.netns && `in ${it.netns}`].filter(Boolean).join(" ")],
    ["Network", `${it.network ?? "unknown"}${it.plugins.length ? ` (${it.plugins.join(", ")})` : ""}`],
    ["State", `${it.state}: ${it.why}`], ["Added", it.since && new Date(it.since).toLocaleString("en-GB")],
    ["Addresses", it.addresses.join(", ")], ["Host ports", [...new Set(it.ports)].join(", ")], ["On", it.parent],
    ["Links of the node", it.hostLinks.join(", ")]];
  return html("dl", {}, ...rows.filter(([, text]) => text).flatMap(([name, text]) => [html("dt", {}, name), html("dd", {}, text)]));
}

function choose(it) {
  view.chosen = view.chosen === keyOf(it) ? "" : keyOf(it);
  draw();
}

// ---- the picture: each parent at the left, a wire to each row of its pods

const TILE = { width: 176, height: 46, gap: 12, row: 68 }, DOT = { width: 13, height: 13, gap: 5, row: 31 };
const byAddress = new Intl.Collator("en", { numeric: true });
const PARENT_WIDTH = 184, PARENT_HEIGHT = 62;

function draw() {
  const { topology } = view, found = matches(topology.attachments, view.query), active = document.activeElement?.dataset?.key;
  showFound(found);
  if (!topology.attachments.length) {
    by("picture").replaceChildren(html("p", {}, "No pods on this node"));
    return;
  }
  const width = Math.max(260, by("picture").clientWidth - 32), names = new Set(found.map(keyOf));
  const drawing = svg("svg", { role: "group", "aria-label": "Pods and what they are connected to" });
  let y = 0;
  const groups = topology.parents.map(parent => [parent, topology.attachments
    .filter(it => it.parent === parent.name).sort((a, b) => byAddress.compare(a.addresses[0] ?? "", b.addresses[0] ?? ""))]);
  for (const [parent, pods] of groups.sort((a, b) => b[1].length - a[1].length)) {
    y = drawGroup(drawing, parent, pods, names, width, y) + 26;
  }
  drawing.setAttribute("viewBox", `0 0 ${width} ${y - 24}`);
  by("picture").replaceChildren(drawing);
  showLegend(groups.some(([, pods]) => pods.some(it => it.ports.length)));
  if (active) [...drawing.querySelectorAll("[data-key]")].find(it => it.dataset.key === active)?.focus();
}

const open = (parent, pods) => (pods.length <= MAX_TILES) !== view.toggled.has(parent.name);

function drawGroup(drawing, parent, pods, names, width, top) {
  const narrow = width < 620, tiles = open(parent, pods), size = tiles ? TILE : DOT;
  const left = narrow ? 20 : PARENT_WIDTH + 44, trunk = narrow ? 7 : PARENT_WIDTH + 20;
  const first = narrow ? top + PARENT_HEIGHT + 12 : top + (tiles ? 6 : 16), room = width - left - 1;
  const columns = Math.max(1, Math.floor((room + size.gap) / (size.width + size.gap)));
  const wide = tiles && columns === 1 ? Math.min(room, 300) : size.width;
  const rows = Math.ceil(pods.length / columns), wires = [];
  const rail = row => first + row * size.row;
  wires.push(narrow ? `M${trunk} ${top + PARENT_HEIGHT}V${rail(rows - 1)}`
    : `M${PARENT_WIDTH} ${rail(0)}H${trunk}V${rail(rows - 1)}`);
  const drop = tiles ? 10 : 7, middle = tiles ? 22 : size.width / 2;
  for (let row = 0; row < rows; row++) {
    const inRow = Math.min(columns, pods.length - row * columns), ends = [];
    for (let at = 0; at < inRow; at++) ends.push(left + at * (size.width + size.gap) + middle);
    wires.push(`M${trunk} ${rail(row)}H${ends.at(-1)}`, ...ends.map(x => `M${x} ${rail(row)}v${drop}`));
  }
  drawing.append(svg("path", { class: "wire", d: wires.join("") }), drawParent(parent, pods, tiles, top, narrow ? width : PARENT_WIDTH));
  pods.forEach((it, at) => drawing.append(drawPod(it, tiles, names, left + at % columns * (size.width + size.gap),
    rail(Math.floor(at / columns)) + drop, wide)));
  const last = rail(rows - 1) + drop + size.height;
  return Math.max(narrow ? 0 : top + PARENT_HEIGHT, last);
}

const KINDS = { none: "", routed: "routed by the node" };
const kindOf = ({ kind, up }) => KINDS[kind] ?? kind + (up === null ? ", no such link" : up ? "" : ", DOWN");

function drawParent(parent, pods, tiles, top, width) {
  const group = svg("g", { class: "parent", transform: `translate(0 ${top})`, "data-key": `parent ${parent.name}` },
    svg("rect", { class: "box", x: 1, y: 1, width: width - 2, height: PARENT_HEIGHT - 2, rx: 8 }),
    svg("text", { class: "name", x: 13, y: 21 }, cut(parent.name, 22)),
    svg("text", { class: "faint", x: 13, y: 37 }, cut([kindOf(parent), parent.addresses[0]].filter(Boolean).join("  "), 29)),
    svg("text", { class: "faint", x: 13, y: 52 }, `${pods.length} ${pods.length === 1 ? "pod" : "pods"}` +
      (pods.length > MAX_TILES ? tiles ? ", hide names" : ", show names" : "")),
    svg("title", {}, [parent.name, kindOf(parent), ...parent.addresses, parent.mtu && `mtu ${parent.mtu}`].filter(Boolean).join(" ")));
  if (pods.length <= MAX_TILES) return group;
  fill(group, { role: "button", tabindex: 0, "aria-expanded": tiles }, []);
  return press(group, () => {
    if (!view.toggled.delete(parent.name)) view.toggled.add(parent.name);
    draw();
  });
}

function drawPod(it, tiles, names, x, y, width) {
  const key = keyOf(it), kinds = [tiles ? "pod" : "pod dot"];
  if (it.ports.length) kinds.push("mapped");
  if (view.query.trim()) kinds.push(names.has(key) ? "found" : "other");
  if (view.chosen === key) kinds.push("chosen");
  const label = [it.containerID, it.ifname, it.network, ...it.addresses, ...it.ports, it.state].filter(Boolean).join(", ");
  const group = svg("g", { class: kinds.join(" "), transform: `translate(${x} ${y})`, role: "button", tabindex: 0,
    "aria-label": clean(label), "data-key": key, "data-state": it.state }, svg("title", {}, label));
  if (tiles) {
    const ports = portNumbers(it), more = ports.length > 2 ? `${ports.length} ports` : ports.map(port => `:${port}`).join(" ");
    group.append(svg("rect", { class: "box", x: .5, y: .5, width: width - 1, height: TILE.height - 1, rx: 6 }),
      svg("rect", { class: "state", x: 10, y: 12, width: 7, height: 7, rx: 2 }),
      svg("text", { class: "id", x: 23, y: 19 }, cut(it.containerID, 13)),
      svg("text", { class: "faint", x: width - 10, y: 19, "text-anchor": "end" }, cut(it.ifname, 7)),
      svg("text", { class: "address", x: 10, y: 36 }, cut(it.addresses[0], more ? 15 : 21)),
      svg("text", { class: "port", x: width - 10, y: 36, "text-anchor": "end" }, more));
  } else {
    group.append(svg("rect", { class: "box", x: 1, y: 1, width: 11, height: 11, rx: 2.5 }));
  }
  return press(group, () => choose(it));
}

function showLegend(mapped) {
  const states = new Set(view.topology.attachments.map(it => it.state));
  const entries = [["running", "running"], ["gone", "gone or orphaned: the pod does not exist any more"], ["unknown", "unknown"]]
    .filter(([state]) => states.has(state) || state === "gone" && states.has("orphaned"));
  if (mapped) entries.push(["mapped", "host port"]);
  by("legend").replaceChildren(...entries.map(([kind, text]) => html("li", { class: kind }, html("i"), text)));
}

function showTopology(topology, text) {
  const same = text === view.drawn;
  view.topology = topology;
  view.drawn = text;
  document.title = `${clean(topology.node)}, fastcni`;
  by("node").textContent = clean(topology.node);
  by("links").textContent = topology.links.slice(0, 12).map(it =>
    `${clean(it.name)}${it.up ? "" : " (down)"} ${it.addresses.map(clean).join(" ")}`).join(", ");
  by("unseen").textContent = [...topology.unseen.map(it => `Not seen: ${clean(it)}`),
    ...topology.omitted ? [`${topology.omitted} more attachments are not drawn`] : []].join(". ");
  if (!same) draw();
}

// ---- polling, while the page is visible

const answered = { status: true, topology: true };

async function read(name, show, every) {
  let pause = every;
  if (!document.hidden) {
    try {
      const answer = await fetch(`${name}.json`, { cache: "no-store" });
      if (answer.status === 503) {
        pause = RETRY_MS;
      } else if (!answer.ok) {
        throw new Error(`${name}.json: ${answer.status}`);
      } else {
        const found = await answer.json(), { tookMs, ...rest } = found;
        show(found, JSON.stringify(rest));
        answered[name] = true;
        if (name === "status") say("live", `Live, ${clock(found.time)}`);
      }
    } catch (error) {
      answered[name] = false;
      if (!(error instanceof TypeError)) console.error(error);
    }
    if (!answered.status || !answered.topology) say("lost", "The server does not answer");
  }
  setTimeout(read, pause, name, show, every);
}

function say(state, text) {
  if (state === "live" && !answered.topology) return;
  by("live").dataset.state = state;
  by("live").textContent = text;
  document.querySelector("main").classList.toggle("stale", state === "lost");
}

by("search").addEventListener("input", event => {
  view.query = event.target.value;
  view.chosen = "";
  if (view.topology) draw();
});
document.addEventListener("keydown", event => {
  if (event.key === "/" && document.activeElement !== by("search")) { event.preventDefault(); by("search").focus(); }
  if (event.key === "Escape") { by("search").value = view.query = view.chosen = ""; if (view.topology) draw(); }
});
let drawnWidth = innerWidth;
addEventListener("resize", () => {
  if (view.topology && innerWidth !== drawnWidth) { drawnWidth = innerWidth; draw(); }
});
read("topology", showTopology, TOPOLOGY_MS);
read("status", showStatus, STATUS_MS);
