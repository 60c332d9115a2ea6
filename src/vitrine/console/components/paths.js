export default {
  template: `
    <table class="v-table v-cards v-paths">
      <caption class="v-hidden">{{ texts.list }}</caption>
      <thead><tr>
        <th scope="col">{{ texts.pipeline }}</th><th scope="col">{{ texts.state }}</th>
        <th scope="col">{{ texts.reads }}</th><th scope="col">{{ texts.writes }}</th>
      </tr></thead>
      <tbody>
        <tr v-for="row in shown" :key="row.name" :data-name="row.name">
          <th scope="row"><a :href="row.href">{{ row.name }}</a></th>
          <td :data-label="texts.state">
            <span class="v-badge" :data-tone="row.tone">{{ row.status }}</span>
            <span v-if="row.cause" class="v-sub">{{ row.cause }}</span>
          </td>
          <td :data-label="texts.reads"><span v-for="one in row.reads" :key="one.id" class="v-path" :data-tone="one.tone">{{ one.name }}</span>
            <span v-if="!row.reads.length" class="v-muted">–</span></td>
          <td :data-label="texts.writes"><span v-for="one in row.writes" :key="one.id" class="v-path" :data-tone="one.tone">{{ one.name }}</span></td>
        </tr>
      </tbody>
    </table>`,
  props: { rows: Array, texts: Object },
  data() { return { shown: this.rows }; },
  watch: { rows(rows) { this.shown = rows; } },
  methods: {
    patch(changed) {
      const byName = new Map(changed.map((row) => [row.name, row]));
      this.shown = this.shown.map((row) => byName.get(row.name) || row);
    },
  },
};
