export default {
  template: `<time v-if="at" :datetime="at" :title="utc">{{ text }}</time><span v-else>{{ missing }}</span>`,
  props: { at: String, age: Boolean, missing: String },
  data() { return { now: Date.now() }; },
  computed: {
    utc() { return this.age ? vitrine.both(this.at) : vitrine.utc(this.at); },
    text() { return this.age ? vitrine.age(this.at, this.now) : vitrine.clock(this.at, this.now); },
  },
  mounted() { this.stop = vitrine.onTick((now) => (this.now = now)); },
  unmounted() { this.stop(); },
};
