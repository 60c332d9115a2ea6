const HEIGHT = 44;
const BETWEEN_ROWS = 12;
const TOP = 28;
const STEP = HEIGHT + BETWEEN_ROWS;
const PADDING = 16;

export default {
  template: `
    <div class="v-lineage" role="group" :aria-label="texts.graph" tabindex="0">
      <div class="v-lineage-area" :style="{ width: width + 'px', height: height + 'px' }">
        <span v-for="head in heads" :key="'head' + head.column" class="v-lineage-head" :style="{ left: head.x + 'px', width: node + 'px' }">{{ head.text }}</span>
        <svg class="v-lineage-edges" :width="width" :height="height" aria-hidden="true">
          <path v-for="edge in paths" :key="edge.key" :d="edge.d" :data-tone="edge.tone" :data-strong="edge.strong" />
        </svg>
        <button v-for="node in placed" :key="node.id" type="button" class="v-lineage-node" :data-node="node.id" :data-kind="node.kind"
                :data-tone="node.tone" :aria-pressed="node.chosen ? 'true' : 'false'" :aria-label="node.label" :title="node.label"
                :style="{ left: node.x + 'px', top: node.y + 'px', width: node.width + 'px' }" @click="$emit('choose', node.id)"
                @mouseenter="over = node.id" @mouseleave="over = null" @focus="over = node.id" @blur="over = null">
          <span class="v-lineage-name">{{ node.name }}</span>
          <span class="v-lineage-sub">{{ node.sub }}</span>
          <span v-if="node.more" class="v-lineage-more">+{{ node.more }}</span>
        </button>
      </div>
    </div>`,
  props: { nodes: Array, edges: Array, columns: Array, texts: Object },
  emits: ["choose"],
  data() { return { over: null, available: 1200 }; },
  mounted() {
    this.sizes = new ResizeObserver(() => { this.available = this.$el.clientWidth - 2 * PADDING || this.available; });
    this.sizes.observe(this.$el);
  },
  unmounted() { this.sizes.disconnect(); },
  computed: {
    between() { return this.available < 700 ? 32 : this.columns.length > 3 ? 48 : 76; },
    node() {
      // as wide as there is room for; then the graph scrolls
      const room = (this.available + this.between) / Math.max(1, this.columns.length) - this.between;
      return Math.floor(Math.min(248, Math.max(148, room)));
    },
    chosen() { return this.over || (this.nodes.find((node) => node.chosen) || {}).id; },
    tallest() { return Math.max(1, ...this.columns.map((column) => column.rows)); },
    width() { return Math.max(1, this.columns.length * (this.node + this.between) - this.between); },
    height() { return TOP + this.tallest * STEP + 4; },
    heads() {
      return this.columns.map((column, index) => ({ column: index, text: column.text, x: index * (this.node + this.between) }));
    },
    placed() {
      const heights = this.heights();
      return this.nodes.map((node) => ({ ...node, width: this.node, x: node.column * (this.node + this.between), y: heights.get(node.id) }));
    },
    paths() {
      const places = new Map(this.placed.map((node) => [node.id, node]));
      const drawn = this.edges.map((edge) => {
        const from = places.get(edge.from);
        const to = places.get(edge.to);
        const [x, y, left, top] = [from.x + this.node, from.y + HEIGHT / 2, to.x, to.y + HEIGHT / 2];
        const bend = Math.max(this.between / 2, Math.abs(left - x) / 2);
        const strong = this.chosen === edge.from || this.chosen === edge.to;
        return { key: `${edge.from} ${edge.to}`, tone: edge.tone, strong, d: `M${x},${y} C${x + bend},${y} ${left - bend},${top} ${left},${top}` };
      });
      // what is above must not be crossed by a grey line
      return drawn.sort((one, other) => Number(one.strong) - Number(other.strong) || Number(!!one.tone) - Number(!!other.tone));
    },
  },
  methods: {
    // beside the middle of what is before it, in the order of the rows, and never on another node
    heights() {
      const before = new Map(this.nodes.map((node) => [node.id, []]));
      for (const edge of this.edges) before.get(edge.to).push(edge.from);
      const heights = new Map();
      this.columns.forEach((column, index) => {
        const nodes = this.nodes.filter((node) => node.column === index).sort((one, other) => one.row - other.row);
        let next = TOP + ((this.tallest - nodes.length) * STEP) / 2;
        const wanted = nodes.map((node) => {
          const known = before.get(node.id).filter((id) => heights.has(id)).map((id) => heights.get(id));
          const own = index && known.length ? known.reduce((sum, one) => sum + one, 0) / known.length : next;
          next = Math.max(next, own) + STEP;
          return own;
        });
        // from the top each below the one before, then from the bottom each within the picture
        const tops = [];
        wanted.forEach((own, row) => tops.push(Math.max(own, row ? tops[row - 1] + STEP : TOP)));
        for (let row = tops.length - 1, limit = TOP + (this.tallest - 1) * STEP; row >= 0; row -= 1) {
          tops[row] = Math.min(tops[row], limit);
          limit = tops[row] - STEP;
        }
        nodes.forEach((node, row) => heights.set(node.id, tops[row]));
      });
      return heights;
    },
  },
};
