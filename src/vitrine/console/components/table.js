export default {
  template: `
    <table class="v-table v-cards v-list">
      <caption class="v-hidden">{{ caption }}</caption>
      <thead><tr><th v-for="column in columns" :key="column.name" scope="col" :class="{ 'v-number': column.kind === 'number' }">{{ column.text }}</th></tr></thead>
      <tbody>
        <tr v-for="row in shown" :key="row.key" :data-key="row.key" :data-tone="row.tone">
          <component :is="index ? 'td' : 'th'" v-for="(column, index) in columns" :key="column.name" :scope="index ? null : 'row'"
                     :data-label="index ? column.text : null" :data-tone="tone(row, column)"
                     :class="{ 'v-number': column.kind === 'number', 'v-mono': column.kind === 'code' }">
            <a v-if="column.kind === 'link' && row[column.name]" :href="row[column.name].href">{{ row[column.name].text }}</a>
            <span v-else-if="column.kind === 'badge'" class="v-badge" :data-tone="row[column.name].tone">{{ row[column.name].text }}</span>
            <time v-else-if="column.kind === 'age' && row[column.name]" :datetime="row[column.name]" :title="both(row[column.name])">{{ age(row[column.name]) }}</time>
            <time v-else-if="column.kind === 'clock' && row[column.name]" :datetime="row[column.name]" :title="both(row[column.name])">{{ clock(row[column.name]) }}</time>
            <button v-else-if="column.kind === 'button'" type="button" class="v-button v-danger v-small" :aria-label="row[column.name].name"
                    @click="$emit('act', row.key)">{{ row[column.name].text }}</button>
            <details v-else-if="column.kind === 'details' && row[column.name]">
              <summary>{{ row[column.name].summary }}</summary>
              <pre class="v-code">{{ row[column.name].text }}</pre>
            </details>
            <template v-else-if="column.kind === 'number'">{{ row[column.name] === null ? "–" : count(row[column.name]) }}</template>
            <template v-else>{{ plain(row[column.name]) }}</template>
            <span v-if="column.sub && row[column.sub]" class="v-sub">{{ row[column.sub] }}</span>
          </component>
        </tr>
      </tbody>
    </table>`,
  props: { rows: Array, columns: Array, caption: String, texts: Object },
  emits: ["act"],
  data() { return { shown: this.rows, now: Date.now() }; },
  watch: { rows(rows) { this.shown = rows; } },
  methods: {
    patch(changed) {
      const byKey = new Map(changed.map((row) => [row.key, row]));
      this.shown = this.shown.map((row) => byKey.get(row.key) || row);
    },
    tone(row, column) { return row.tones ? row.tones[column.name] || null : null; },
    plain(value) { return value === null || value === undefined || value.href ? "–" : value; },
    age(at) { return vitrine.age(at, this.now); },
    clock(at) { return vitrine.clock(at, this.now); },
    both(at) { return vitrine.both(at); },
    count(number) { return vitrine.count(number); },
  },
  mounted() { this.stop = vitrine.onTick((now) => (this.now = now)); },
  unmounted() { this.stop(); },
};
