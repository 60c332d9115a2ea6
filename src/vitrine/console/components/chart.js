const WIDTH = 400;
const HEIGHT = 84;

export default {
  template: `
    <figure class="v-chart">
      <figcaption>{{ title }} <span class="v-muted">{{ range }}</span></figcaption>
      <svg viewBox="0 0 ${WIDTH} ${HEIGHT}" preserveAspectRatio="none" role="img" :aria-label="label">
        <line x1="0" x2="${WIDTH}" y1="0.5" y2="0.5" class="v-grid"></line>
        <line x1="0" x2="${WIDTH}" y1="${HEIGHT / 2}" y2="${HEIGHT / 2}" class="v-grid"></line>
        <line x1="0" x2="${WIDTH}" y1="${HEIGHT - 0.5}" y2="${HEIGHT - 0.5}" class="v-grid"></line>
        <rect v-for="bar in bars" :key="bar.key" :x="bar.x" :y="bar.y" :width="bar.width" :height="bar.height" :data-tone="bar.tone">
          <title>{{ bar.title }}</title>
        </rect>
        <line v-if="limitY !== null" x1="0" x2="${WIDTH}" :y1="limitY" :y2="limitY" class="v-limit"><title>{{ limitText }}</title></line>
      </svg>
      <div class="v-axis"><time v-if="points.length > 1 && before < 0.6" :datetime="points[0].at" :title="both(points[0].at)" :style="{ marginLeft: 100 * before + '%' }">{{ clock(points[0].at) }}</time>
        <span v-else></span>
        <time v-if="points.length" :datetime="points[points.length - 1].at" :title="both(points[points.length - 1].at)">{{ clock(points[points.length - 1].at) }}</time>
        <span v-else></span></div>
      <div v-if="limitY !== null" class="v-axis v-chart-legend">{{ limitText }}</div>
    </figure>`,
  props: { title: String, points: Array, unit: String, limit: Number, limitText: String, empty: String },
  computed: {
    highest() { return Math.max(...this.points.map((point) => point.value), this.limit || 0, 0.001); },
    range() {
      if (!this.points.length) return this.empty;
      const values = this.points.map((point) => point.value);
      if (values.length === 1) return this.show(values[0]);
      const sorted = [...values].sort((a, b) => a - b);
      return `${this.show(sorted[Math.floor(sorted.length / 2)])} median · ${this.show(sorted[sorted.length - 1])} max`;
    },
    label() { return [`${this.title}: ${this.range}`, this.limitText].filter(Boolean).join("; "); },
    limitY() { return this.limit ? Math.max(1, Math.round(HEIGHT * (1 - this.limit / this.highest))) : null; },
    slots() { return Math.max(this.points.length, 30); },
    // the part of the width that has no bars yet; the time of the first bar is written below it, if both times fit
    before() { return 1 - this.points.length / this.slots; },
    bars() {
      const slots = this.slots;
      const step = WIDTH / slots;
      return this.points.map((point, index) => {
        const height = point.value > 0 ? Math.max(2, HEIGHT * point.value / this.highest) : 0;
        return {
          key: point.at, x: (slots - this.points.length + index) * step, width: Math.max(1, step - 1.5), y: HEIGHT - height, height,
          tone: this.limit && point.value > this.limit ? "late" : point.tone, title: `${this.show(point.value)}\n${vitrine.both(point.at)}`,
        };
      });
    },
  },
  methods: {
    show(value) { return this.unit === "seconds" ? vitrine.duration(value) : vitrine.count(value); },
    clock(at) { return vitrine.clock(at); },
    both(at) { return vitrine.both(at); },
  },
};
