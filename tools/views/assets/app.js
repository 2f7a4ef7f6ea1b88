// Shows the result of a tool inside an MCP host (MCP Apps, SEP-1865, revision 2026-01-26): our pages of it, or a ticket.
// Text from the host and from results enters elements as text only, never as markup.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement, byId = (id) => document.getElementById(id);
  const waiting = new Map();
  let serial = 0, can = {}, host = {}, words = data.words[root.lang], note = "waiting", artifacts = [], open = -1, html = "";

  const send = (message) => parent.postMessage({ jsonrpc: "2.0", ...message }, "*");
  const request = (method, params) => new Promise((resolve, reject) => {
    waiting.set(++serial, { resolve, reject });
    send({ id: serial, method, params });
  });
  const element = (name, content) => {
    const made = document.createElement(name);
    made.append(...[content].flat());
    return made;
  };

  // The text of a resource, through the host: as a resource, or by the tool, which returns it in pages.
  async function read(uri) {
    if (can.serverResources) {
      const { text } = (await request("resources/read", { uri })).contents[0];
      if (typeof text !== "string") throw new TypeError("not a text");
      return text;
    }
    if (!can.serverTools) throw new Error("the host passes on neither reads nor calls");
    const parts = [];
    for (let offset = 0; Number.isInteger(offset);) {
      const call = { name: "artifact_read", arguments: { uri, offset, limit: data.page_chars } };
      const { isError, structuredContent: page } = await request("tools/call", call);
      if (isError) throw new Error("refused");
      parts.push(page.text);
      offset = page.next_offset;
    }
    return parts.join("");
  }

  // `line` as text, bold text and code spans.
  function inline(line) {
    const parts = [];
    let rest = 0;
    for (const found of line.matchAll(/(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)|\*\*(.+?)\*\*/g)) {
      parts.push(line.slice(rest, found.index));
      const code = found[2]?.replace(/^ (.*) $/, "$1");
      parts.push(code === undefined ? element("strong", inline(found[3])) : element("code", code));
      rest = found.index + found[0].length;
    }
    return [...parts, line.slice(rest)];
  }

  // The Markdown that tickets use: headings, flat lists, fenced blocks, paragraphs of one line.
  function markdown(text) {
    const article = element("article", []);
    let fence = null, list = null;
    for (const line of text.split("\n")) {
      if (fence !== null) {
        if (line.trim() === fence) fence = null;
        else article.lastChild.append(`${line}\n`);
        continue;
      }
      const fenced = /^\s*(`{3,})/.exec(line), heading = /^(#{1,4}) (.*)$/.exec(line);
      const item = /^\s*(-|\d+\.) (.*)$/.exec(line), kind = item && (item[1] === "-" ? "ul" : "ol");
      if (list && list.localName !== kind) list = null;
      if (fenced) {
        fence = fenced[1];
        article.append(element("pre", []));
      } else if (heading) article.append(element(`h${heading[1].length}`, inline(heading[2])));
      else if (item) {
        if (!list) article.append((list = element(kind, [])));
        list.append(element("li", inline(item[2])));
      } else if (line.trim()) article.append(element("p", inline(line)));
    }
    return article;
  }

  // A page of ours in a frame without an origin. It inherits our policy, by which only our own scripts run.
  function draw() {
    const frame = element("iframe", []);
    frame.setAttribute("sandbox", "allow-scripts");
    frame.title = artifacts[open].title;
    frame.srcdoc = html.replace("<html ", `<html data-theme="${root.dataset.theme}" `);
    byId("shown").replaceChildren(frame);
  }

  async function turn(index) {
    open = index;
    label();
    try {
      const text = await read(artifacts[index].uri);
      if (open !== index) return; // another was chosen meanwhile
      html = text;
      note = "";
      draw();
    } catch {
      note = "unreadable";
      byId("shown").replaceChildren();
      byId("whole").open = true;
    }
    label();
  }

  async function show(result) {
    const blocks = Array.isArray(result.content) ? result.content : [];
    const text = blocks.filter((one) => one.type === "text").map((one) => one.text).join("\n");
    const found = result.structuredContent ?? {};
    artifacts = (Array.isArray(found.artifacts) ? found.artifacts : []).filter((one) => one?.media_type === "text/html");
    const buttons = artifacts.map((one, index) => {
      const button = element("button", String(one.title));
      button.addEventListener("click", () => turn(index));
      return button;
    });
    byId("pages").replaceChildren(...(buttons.length > 1 ? buttons : []));
    open = -1;
    note = "";
    byId("shown").replaceChildren();
    byId("text").textContent = text;
    const whole = byId("whole");
    whole.hidden = text === "";
    whole.open = false;
    if (result.isError) note = "failed";
    else if (data.shows === "ticket") {
      whole.hidden = true;
      const uri = `${data.tickets}${encodeURIComponent(found.id)}`;
      byId("shown").replaceChildren(markdown(await read(uri).catch(() => text)));
    } else if (artifacts.length) {
      await turn(0);
      return;
    } else note = "no_page";
    if (note) whole.open = true;
    label();
  }

  // Words, buttons and measures, by the host's language, theme and size.
  function label() {
    byId("note").textContent = note && words[note];
    byId("summary").textContent = words.text;
    const buttons = [...byId("pages").children];
    buttons.forEach((button, index) => button.setAttribute("aria-pressed", String(index === open)));
    const wide = byId("wide"), full = host.displayMode === "fullscreen", size = host.containerDimensions ?? {};
    wide.textContent = words.wide;
    wide.hidden = full || !(host.availableDisplayModes ?? []).includes("fullscreen");
    byId("bar").hidden = buttons.length === 0 && wide.hidden;
    root.toggleAttribute("data-fill", full || size.height !== undefined);
    const most = Number(size.maxHeight) || Infinity;
    root.style.setProperty("--height", `${Math.max(240, Math.min(800, most - 90))}px`);
  }

  function adopt(changed) {
    const dark = root.dataset.theme;
    host = { ...host, ...changed };
    const theme = host.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    root.dataset.theme = theme === "dark" ? "dark" : "light";
    if (host.locale) root.lang = /^zh\b/i.test(host.locale) ? "zh" : "en";
    words = data.words[root.lang];
    label();
    if (dark !== root.dataset.theme && byId("shown").querySelector("iframe")) draw();
  }

  const stopped = () => { note = "cancelled"; label(); };
  const handlers = new Map([
    ["ui/notifications/tool-result", show],
    ["ui/notifications/tool-cancelled", stopped],
    ["ui/notifications/host-context-changed", adopt],
  ]);
  const answers = new Set(["ping", "ui/resource-teardown"]);
  addEventListener("message", ({ source, data: message }) => {
    if (source !== parent || message?.jsonrpc !== "2.0") return;
    const { id, method, params, result, error } = message;
    if (method === undefined) {
      const one = waiting.get(id);
      waiting.delete(id);
      if (error) one?.reject(new Error(String(error.message)));
      else one?.resolve(result ?? {});
    } else if (id === undefined) handlers.get(method)?.(params ?? {});
    else send(answers.has(method) ? { id, result: {} } : { id, error: { code: -32601, message: "Method not found" } });
  });

  byId("wide").addEventListener("click", () => {
    request("ui/request-display-mode", { mode: "fullscreen" })
      .then(({ mode }) => adopt({ displayMode: mode }), () => adopt({ availableDisplayModes: [] }));
  });
  adopt({});
  const app = { appInfo: { name: "whystall", version: data.version }, protocolVersion: data.protocol };
  request("ui/initialize", { ...app, appCapabilities: { availableDisplayModes: ["inline", "fullscreen"] } }).then((answer) => {
    can = answer.hostCapabilities ?? {};
    adopt(answer.hostContext ?? {});
    new ResizeObserver(() => {
      const { width, height } = document.body.getBoundingClientRect();
      send({ method: "ui/notifications/size-changed", params: { width: Math.ceil(width), height: Math.ceil(height) } });
    }).observe(document.body);
    send({ method: "ui/notifications/initialized", params: {} });
  }).catch(() => { note = "no_host"; label(); });
})();
