// SQL with its words in colour. Each part is a text node: nothing of the query is HTML. Every character is in a part.
const WORDS = new Set(("select from where and or not in is null as on join left right full inner outer cross lateral group by having order limit offset " +
  "with recursive union all except intersect distinct case when then else end between like ilike exists any filter over partition " +
  "asc desc nulls first last true false cast interval values using coalesce count sum avg min max array_agg jsonb_agg string_agg").split(" "));
const TOKEN = /(--[^\n]*|\/\*[\s\S]*?\*\/)|('(?:[^']|'')*')|("(?:[^"]|"")*")|(\$\d+|\d\w*(?:\.\w+)?)|([A-Za-z_][A-Za-z0-9_]*)|(\s+|[^])/g;

export default {
  template: `<pre class="v-code v-sql"><code><span v-for="(part, index) in parts" :key="index" :class="part.kind">{{ part.text }}</span></code></pre>`,
  props: { query: String },
  computed: {
    parts() {
      const found = [];
      for (const match of (this.query || "").matchAll(TOKEN)) {
        const [text, comment, string, , number, word] = match;
        const kind = comment ? "v-s-comment" : string ? "v-s-string" : number ? "v-s-number" : word && WORDS.has(word.toLowerCase()) ? "v-s-word" : "";
        const last = found[found.length - 1];
        if (last && last.kind === kind) last.text += text;
        else found.push({ text, kind });
      }
      return found;
    },
  },
};
