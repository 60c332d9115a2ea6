export default {
  template: `
    <section class="v-health" :aria-label="label">
      <div v-for="one in items" :key="one.label" class="v-health-item" :data-tone="one.isProblem ? 'failed' : 'ok'">
        <span class="v-label">{{ one.label }}</span>
        <span class="v-value">{{ one.value }}</span>
        <span class="v-sub" :title="one.detail.replaceAll('\`', '')"><span v-for="(part, index) in one.detail.split('\`')" :key="index" :class="{ 'v-mono': index % 2 }">{{ part }}</span></span>
      </div>
    </section>`,
  props: { label: String, items: Array },
};
