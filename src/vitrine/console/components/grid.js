export default {
  template: `
    <div class="v-scroll" tabindex="0" role="region" :aria-label="caption">
      <table class="v-table v-grid">
        <caption class="v-hidden">{{ caption }}</caption>
        <thead>
          <tr><th scope="col" v-for="column in columns" :key="column.name">{{ column.name }}<span class="v-sub">{{ column.type }}</span></th></tr>
        </thead>
        <tbody>
          <tr v-for="(row, index) in rows" :key="index">
            <td v-for="(value, place) in row" :key="place" :class="{ 'v-number': typeof value === 'number', 'v-muted': value === null }"
                :title="value === null ? null : String(value)">{{ value === null ? "NULL" : value }}</td>
          </tr>
        </tbody>
      </table>
    </div>`,
  props: { caption: String, columns: Array, rows: Array },
};
