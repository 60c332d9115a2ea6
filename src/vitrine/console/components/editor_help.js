// Completion, marks and the theme of NiceGUI's CodeMirror element; what was typed survives a reload of the page.
import * as CM from "nicegui-codemirror";

const KEYWORDS = new Set(("on where join left right full inner cross outer group order having limit offset union except intersect as using " +
  "lateral natural select from and or not set window fetch for").split(" "));
const MAX_OPTIONS = 500;
// names in the colour of text: the red of this style would look like an error
const RED = "#e06c75";
const DARK = CM.HighlightStyle.define(CM.oneDarkHighlightStyle.specs.map((spec) => (spec.color === RED ? { ...spec, color: "inherit" } : spec)));

const quoted = (name) => (/^[a-z_][a-z0-9_]*$/.test(name) ? name : `"${name.replace(/"/g, '""')}"`);
const bare = (name) => (name.startsWith('"') ? name.slice(1, -1).replace(/""/g, '"') : name.toLowerCase());

const setMarks = CM.StateEffect.define();
const marks = CM.StateField.define({
  create: () => CM.Decoration.none,
  update(set, transaction) {
    let mapped = set.map(transaction.changes);
    for (const effect of transaction.effects) if (effect.is(setMarks)) mapped = CM.Decoration.set(effect.value, true);
    return mapped;
  },
  provide: (field) => CM.EditorView.decorations.from(field),
});

// the server counts characters, CodeMirror UTF-16 units
const units = (text, characters) => Array.from(text).slice(0, characters).join("").length;

function position(doc, line, column) {
  const found = doc.line(Math.min(Math.max(line, 1), doc.lines));
  return Math.min(found.from + units(found.text, column - 1), found.to);
}

function decorate(doc, given) {
  const made = [];
  const lines = new Set();
  for (const one of given) {
    const line = doc.line(Math.min(Math.max(one.line, 1), doc.lines));
    let from = position(doc, one.line, one.column);
    const word = /^(?:[\p{L}\p{N}_$]+(?:\.[\p{L}\p{N}_$]+)*|\S)/u.exec(line.text.slice(from - line.from));
    let to = from + (word ? word[0].length : 0);
    // behind the last character: mark that one, a mark needs a width
    if (to === from && from > line.from) from -= 1;
    if (to > from) made.push(CM.Decoration.mark({ class: `v-flag v-flag-${one.level}`, attributes: { title: one.text } }).range(from, to));
    if (!lines.has(line.from)) made.push(CM.Decoration.line({ class: `v-flag-line v-flag-line-${one.level}` }).range(line.from));
    lines.add(line.from);
  }
  return made;
}

// name or alias -> table, for every table that the text names
function namedTables(text, tables) {
  const known = new Map(tables.map((table) => [`${table.schema}.${table.name}`, table]));
  const found = new Map();
  const name = '(?:"(?:[^"]|"")+"|[A-Za-z_][A-Za-z0-9_]*)';
  for (const match of text.matchAll(new RegExp(`(${name})\\.(${name})(?:\\s+(?:as\\s+)?(${name}))?`, "gi"))) {
    const table = known.get(`${bare(match[1])}.${bare(match[2])}`);
    if (!table) continue;
    found.set(table.name, table);
    if (match[3] && !KEYWORDS.has(match[3].toLowerCase())) found.set(bare(match[3]), table);
  }
  return found;
}

const columnOptions = (table, boost = 1) =>
  table.columns.map((column) => ({ label: column.name, apply: quoted(column.name), type: "property", detail: column.type, info: null, boost }));

function options(parts, text, tables) {
  const named = namedTables(text, tables);
  if (parts.length === 1) {
    const columns = new Map();
    for (const table of new Set(named.values())) for (const option of columnOptions(table, 2)) columns.set(option.label, option);
    const aliases = [...named.keys()].map((label) => ({ label, apply: quoted(label), type: "variable", boost: 1 }));
    const schemas = [...new Set(tables.map((table) => table.schema))].map((label) => ({ label, apply: quoted(label), type: "namespace" }));
    const full = tables.map((table) => ({
      label: `${table.schema}.${table.name}`, apply: `${quoted(table.schema)}.${quoted(table.name)}`, type: "class", detail: table.kind,
    }));
    return [...columns.values(), ...aliases, ...schemas, ...full];
  }
  const [first, second] = parts.map(bare);
  if (parts.length === 3) {
    const table = tables.find((one) => one.schema === first && one.name === second);
    return table ? columnOptions(table) : [];
  }
  if (named.has(first)) return columnOptions(named.get(first));
  return tables.filter((one) => one.schema === first)
    .map((table) => ({ label: table.name, apply: quoted(table.name), type: "class", detail: table.kind }));
}

// a list that opens after the editor has lost the focus would stay over the page
const closeLateList = CM.EditorView.updateListener.of(({ view }) => {
  if (view.hasFocus) return;
  setTimeout(() => {
    if (!view.hasFocus && view.dom.querySelector(".cm-tooltip-autocomplete"))
      CM.runScopeHandlers(view, new KeyboardEvent("keydown", { key: "Escape" }), "editor");
  }, 50);
});

export default {
  template: `<span hidden></span>`,
  props: { editor: Number, label: String, storage: String },
  data() { return { tables: [] }; },
  async mounted() {
    // not getElement: the page is still being mounted
    const component = this.$root.$refs[`r${this.editor}`];
    this.view = component.editor || (await component.editorPromise);
    this.theme = new CM.Compartment();
    const source = (context) => {
      const token = context.matchBefore(/(?:(?:"[^"]*"|[\w$]+)\.){0,2}[\w$]*$/);
      if (!token || (token.from === token.to && !context.explicit) || !this.view.hasFocus) return null;
      const parts = token.text.split(".");
      const found = options(parts, context.state.doc.toString(), this.tables).slice(0, MAX_OPTIONS);
      if (!found.length) return null;
      return { from: token.to - parts[parts.length - 1].length, options: found, validFor: /^[\w$]*$/ };
    };
    this.view.dispatch({
      effects: CM.StateEffect.appendConfig.of([
        marks,
        closeLateList,
        CM.EditorState.languageData.of(() => [{ autocomplete: source }]),
        CM.EditorView.contentAttributes.of({ "aria-label": this.label, spellcheck: "false" }),
        this.theme.of(this.colours()),
      ]),
    });
    // its theme has fixed colours; ours are those of the page
    this.view.dispatch({ effects: component.themeConfig.reconfigure([]) });
    this.observer = new MutationObserver(() => this.view.dispatch({ effects: this.theme.reconfigure(this.colours()) }));
    this.observer.observe(document.body, { attributes: true, attributeFilter: ["class"] });
    if (this.pending) this.markPlaces(this.pending);
    const kept = this.read();
    if (kept !== null) this.$emit("kept", kept);
  },
  beforeUnmount() { if (this.observer) this.observer.disconnect(); },
  methods: {
    colours() {
      const dark = document.body.classList.contains("body--dark");
      return [CM.EditorView.theme({}, { dark }), dark ? CM.syntaxHighlighting(DARK) : []];
    },
    complete(tables) { this.tables = tables; },
    markPlaces(given) {
      this.pending = given;
      if (this.view) this.view.dispatch({ effects: setMarks.of(decorate(this.view.state.doc, given)) });
    },
    goTo(line, column) {
      if (!this.view) return;
      const place = position(this.view.state.doc, line, column);
      this.view.dispatch({ selection: { anchor: place }, scrollIntoView: true });
      this.view.focus();
    },
    read() {
      try {
        return JSON.parse(sessionStorage.getItem(this.storage));
      } catch (error) {
        return null; // private window, or not ours
      }
    },
    keep(typed) {
      try { sessionStorage.setItem(this.storage, JSON.stringify(typed)); } catch (error) { /* not kept */ }
    },
    forget() {
      try { sessionStorage.removeItem(this.storage); } catch (error) { /* was not kept */ }
    },
  },
};
