export default {
  template: `
    <div class="v-scroll" tabindex="0" role="region" :aria-label="caption">
      <table class="v-table v-grid">
        <caption class="v-hidden">{{ caption }}</caption>
        <thead>
          <tr><th scope="col" v-for="column in columns" :key="column.name" :class="{ 'v-number': isNumber(column) }">{{ column.name }}<span class="v-sub">{{ column.type }}</span></th></tr>
        </thead>
        <tbody>
          <tr v-for="(row, index) in rows" :key="index">
            <td v-for="(value, place) in row" :key="place" :class="{ 'v-number': isNumber(columns[place]), 'v-muted': value === null }"
                :title="value === null ? null : String(value)">{{ value === null ? "NULL" : value }}</td>
          </tr>
        </tbody>
      </table>
    </div>`,
  props: { caption: String, columns: Array, rows: Array },
  methods: {
    isNumber(column) { return /^(smallint|integer|bigint|numeric|real|double precision)/.test(column.type) && !column.type.endsWith("[]"); },
  },
};
