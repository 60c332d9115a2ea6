export default {
  template: `
    <span class="v-age" :class="{ 'v-old': seconds > 10 }">
      <span class="v-zone" :title="zone + ' ' + name">{{ name }}</span>
      <span>{{ readAt === null ? "" : updated + " " + seconds + " s" }}</span>
    </span>`,
  props: { updated: String, zone: String },
  data() { return { readAt: null, now: Date.now(), skew: 0, name: vitrine.zone }; },
  computed: {
    seconds() { return this.readAt === null ? 0 : Math.max(0, Math.round((this.now - this.readAt) / 1000)); },
  },
  methods: {
    // the clock of the server may differ: what counts is how long ago the message arrived
    tick() { this.readAt = Date.now(); this.now = this.readAt; },
  },
  mounted() { this.stop = vitrine.onTick((now) => (this.now = now)); },
  unmounted() { this.stop(); },
};
