export default {
  template: `
    <div class="v-groups" role="group" :aria-label="label">
      <button v-for="one in groups" :key="one.name" type="button" class="v-group" :aria-pressed="one.isChosen ? 'true' : 'false'"
              @click="$emit('choose', one.name)">
        <span class="v-group-name">{{ one.name }}</span>
        <span class="v-muted">{{ one.figure }}</span>
        <span v-for="badge in one.badges" :key="badge.tone" class="v-badge" :data-tone="badge.tone">{{ badge.text }}</span>
      </button>
    </div>`,
  props: { label: String, groups: Array },
  emits: ["choose"],
};
