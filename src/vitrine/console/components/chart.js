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
      <div class="v-axis"><time v-if="points.length" :datetime="points[0].at">{{ clock(points[0].at) }}</time>
        <span v-else></span>
        <span v-if="limitY !== null" class="v-chart-legend">{{ limitText }}</span>
        <time v-if="points.length > 1" :datetime="points[points.length - 1].at">{{ clock(points[points.length - 1].at) }}</time>
        <span v-else></span></div>
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
    bars() {
      const slots = Math.max(this.points.length, 30);
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
  },
};
