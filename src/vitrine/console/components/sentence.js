export default {
  template: `<p v-if="text" :title="title"><span v-for="(part, index) in shown.split('\`')" :key="index" :class="{ 'v-mono': index % 2 }">{{ part }}</span></p>`,
  props: { text: String },
  data() { return { now: Date.now() }; },
  computed: {
    shown() { return vitrine.local(this.text, this.now); },
    title() { return this.shown === this.text ? null : this.text; },
  },
  mounted() { this.stop = vitrine.onTick((now) => (this.now = now)); },
  unmounted() { this.stop(); },
};
