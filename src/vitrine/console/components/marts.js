const HEIGHT = 22;
const STEP = 5;

export default {
  template: `
    <table class="v-table v-marts">
      <caption class="v-hidden">{{ texts.caption }}</caption>
      <thead>
        <tr>
          <th scope="col">{{ texts.mart }}</th>
          <th scope="col">{{ texts.state }}</th>
          <th scope="col">{{ texts.freshness }}</th>
          <th scope="col">{{ texts.last_run }}</th>
          <th scope="col" class="v-number">{{ texts.rows }}</th>
          <th scope="col">{{ texts.recent }}</th>
          <th scope="col">{{ texts.next_due }}</th>
        </tr>
      </thead>
      <tbody>
        <tr v-for="row in shown" :key="row.name" :data-name="row.name">
          <th scope="row" class="v-name">
            <a :href="row.href">{{ row.name }}</a>
            <span class="v-sub" :title="row.target">{{ row.target }}</span>
          </th>
          <td :data-label="texts.state">
            <span class="v-badge" :data-tone="row.tone">{{ row.status }}</span>
          </td>
          <td :data-label="texts.freshness" class="v-fresh">
            <span v-if="row.fresh_as_of">
              <time :datetime="row.fresh_as_of" :title="both(row.fresh_as_of)">{{ age(row.fresh_as_of) }}</time>
              <span class="v-badge" data-tone="late" v-if="row.late">{{ texts.late }}</span>
            </span>
            <span v-else class="v-muted">{{ row.late ? "" : texts.never_built }}
              <span class="v-badge" data-tone="late" v-if="row.late">{{ texts.late }}</span></span>
            <span class="v-sub" :class="{ 'v-cause': row.late && row.cause }" :title="row.cause || ''">{{ row.late && row.cause ? local(row.cause) : row.promise }}</span>
          </td>
          <td :data-label="texts.last_run">
            <template v-if="row.last_run">
              <span class="v-outcome" :data-tone="row.last_run.tone">{{ row.last_run.status }}</span>
              <span class="v-sub">
                <template v-if="row.last_run.kind">{{ row.last_run.kind }} · </template>
                <time :datetime="row.last_run.at" :title="both(row.last_run.at)">{{ age(row.last_run.at) }}</time>
                <template v-if="row.last_run.seconds !== null"> · {{ duration(row.last_run.seconds) }}</template>
              </span>
              <span v-if="row.error" class="v-sub v-why" :title="row.error">{{ row.error }}</span>
            </template>
            <span v-else class="v-muted">{{ texts.never_run }}</span>
          </td>
          <td :data-label="texts.rows" class="v-number">{{ row.last_run && row.last_run.rows !== null ? count(row.last_run.rows) : "–" }}</td>
          <td :data-label="texts.recent">
            <svg v-if="row.runs.outcomes.length" class="v-spark" :width="30 * ${STEP}" height="${HEIGHT}" role="img" :aria-label="summary(row.runs)">
              <rect v-for="(bar, index) in bars(row.runs)" :key="index" :x="bar.x" :y="bar.y" width="4" :height="bar.height"
                    :data-tone="bar.tone" rx="1"><title>{{ bar.title }}</title></rect>
            </svg>
            <span v-else class="v-muted">–</span>
          </td>
          <td :data-label="texts.next_due">
            <time v-if="row.next_due_at" :datetime="row.next_due_at" :title="both(row.next_due_at)">{{ age(row.next_due_at) }}</time>
            <span v-else class="v-muted">{{ row.trigger }}</span>
          </td>
        </tr>
      </tbody>
    </table>`,
  props: { rows: Array, texts: Object, outcomes: Array },
  data() { return { shown: this.rows, now: Date.now() }; },
  watch: { rows(rows) { this.shown = rows; } },
  methods: {
    patch(changed) {
      const byName = new Map(changed.map((row) => [row.name, row]));
      this.shown = this.shown.map((row) => byName.get(row.name) || row);
    },
    age(at) { return vitrine.age(at, this.now); },
    local(text) { return vitrine.local(text, this.now); },
    both(at) { return vitrine.both(at); },
    duration(seconds) { return vitrine.duration(seconds); },
    count(number) { return vitrine.count(number); },
    // each run has an element in three arrays: as objects, they would be most of what a page is sent
    bars(runs) {
      const longest = Math.max(...runs.milliseconds, 1);
      const offset = 30 - runs.outcomes.length;
      const before = Array.from({ length: offset }, (_, index) => ({ x: index * STEP, y: HEIGHT - 2, height: 2, tone: "none", title: "" }));
      return before.concat(runs.outcomes.map((number, index) => {
        const outcome = this.outcomes[number];
        const taken = runs.milliseconds[index];
        // the root makes short runs visible beside one long run
        const height = Math.max(3, Math.round(HEIGHT * Math.sqrt(taken / longest)));
        return {
          x: (index + offset) * STEP, y: HEIGHT - height, height, tone: outcome.tone,
          title: `${outcome.text}, ${vitrine.duration(taken / 1000)}, ${vitrine.clock(runs.started[index], this.now)}\n${vitrine.utc(runs.started[index])}`,
        };
      }));
    },
    summary(runs) {
      const failed = runs.outcomes.filter((number) => this.outcomes[number].tone === "failed").length;
      const longest = Math.max(...runs.milliseconds) / 1000;
      return this.texts.summary.replace("{runs}", runs.outcomes.length).replace("{failed}", failed).replace("{longest}", vitrine.duration(longest));
    },
  },
  mounted() { this.stop = vitrine.onTick((now) => (this.now = now)); },
  unmounted() { this.stop(); },
};
