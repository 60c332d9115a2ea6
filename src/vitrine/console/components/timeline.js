export default {
  template: `
    <ol class="v-timeline">
      <li v-for="row in shown" :key="row.key" :data-tone="row.tone">
        <time :datetime="row.at" :title="both(row.at)">{{ clock(row.at) }}</time>
        <div class="v-event">
          <div>
            <strong>{{ row.title + " " }}</strong>
            <span v-if="row.badge" class="v-badge" :data-tone="row.tone">{{ row.badge }}</span>
            <span class="v-muted">{{ row.detail + took(row.seconds) + " " }}</span>
            <button v-if="row.run" type="button" class="v-link" @click="$emit('log', row.run)"
                    :aria-label="texts.log_of.replace('{run}', row.run)">{{ texts.log }}</button>
          </div>
          <p v-if="row.error" class="v-error-text">{{ row.error }}</p>
        </div>
      </li>
    </ol>`,
  props: { rows: Array, texts: Object },
  emits: ["log"],
  data() { return { shown: this.rows, now: Date.now() }; },
  watch: { rows(rows) { this.shown = rows; } },
  methods: {
    patch(changed) {
      const byKey = new Map(changed.map((row) => [row.key, row]));
      this.shown = this.shown.map((row) => byKey.get(row.key) || row);
    },
    clock(at) { return vitrine.clock(at, this.now); },
    both(at) { return vitrine.both(at); },
    took: (seconds) => (seconds === undefined || seconds === null ? "" : ` · ${vitrine.duration(seconds)}`),
  },
  mounted() { this.stop = vitrine.onTick((now) => { if (now % 60000 < 1000) this.now = now; }); },
  unmounted() { this.stop(); },
};
