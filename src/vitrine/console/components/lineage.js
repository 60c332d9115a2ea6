const HEIGHT = 44;
const BETWEEN_ROWS = 12;
const TOP = 28;

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
  data() { return { over: null, isNarrow: false }; },
  mounted() {
    this.screen = window.matchMedia("(max-width: 820px)");
    this.fit = () => { this.isNarrow = this.screen.matches; };
    this.screen.addEventListener("change", this.fit);
    this.fit();
  },
  unmounted() { this.screen.removeEventListener("change", this.fit); },
  computed: {
    node() { return this.isNarrow ? 148 : 248; },
    between() { return this.isNarrow ? 32 : 76; },
    chosen() { return this.over || (this.nodes.find((node) => node.chosen) || {}).id; },
    tallest() { return Math.max(1, ...this.columns.map((column) => column.rows)); },
    width() { return Math.max(1, this.columns.length * (this.node + this.between) - this.between); },
    height() { return TOP + this.tallest * (HEIGHT + BETWEEN_ROWS) + 4; },
    heads() {
      return this.columns.map((column, index) => ({ column: index, text: column.text, x: index * (this.node + this.between) }));
    },
    placed() {
      return this.nodes.map((node) => {
        // short columns stand in the middle of the tallest one
        const above = ((this.tallest - this.columns[node.column].rows) * (HEIGHT + BETWEEN_ROWS)) / 2;
        return { ...node, width: this.node, x: node.column * (this.node + this.between), y: TOP + above + node.row * (HEIGHT + BETWEEN_ROWS) };
      });
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
};
