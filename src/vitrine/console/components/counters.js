export default {
  template: `
    <nav class="v-counters" :aria-label="label">
      <button v-for="one in counters" :key="one.state" type="button" class="v-counter" :class="{ 'v-zero': one.isZero }"
              :data-state="one.state || 'all'" :aria-pressed="one.state === chosen ? 'true' : 'false'"
              @click="$emit('choose', one.state)">
        <span class="v-figure">{{ one.figure }}</span>
        <span class="v-label">{{ one.label }}</span>
      </button>
    </nav>`,
  props: { label: String, counters: Array, chosen: String },
  emits: ["choose"],
};
