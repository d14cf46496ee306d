/** What a trace shows about a parent capsule: where its votes come from, and its strength after each iteration. */
import type { TracedLayer } from "capsedge";

const BINS = 64; // number of columns for children whose positions are unknown

/** Values of a layer whose parents lie on a map with `places` positions. */
interface Sizes {
  iterations: number;
  places: number;
  children: number;
  parents: number;
}

export function sizesOf(layer: TracedLayer): Sizes {
  const { dims } = layer.couplings;
  const [iterations = 1] = dims;
  const [children = 1, parents = 1] = dims.slice(-2);
  return { iterations, places: dims.slice(1, -2).reduce((a, b) => a * b, 1), children, parents };
}

/** A map of the children with `height * width` values. */
export interface ChildMap {
  height: number;
  width: number;
  values: Float32Array;
}

/**
 * What the children at each position add to one parent in every iteration: couplings times agreements, which sum to
 * the parent's length before the squash (Sabour et al. 2017, eq. 2). For EM routing, responsibilities times the
 * children's activations, the weights of the M-step (Hinton et al. 2018, procedure 1).
 */
export function childMaps(layer: TracedLayer, parent: number): ChildMap[] {
  const { iterations, places, children, parents } = sizesOf(layer);
  const place = placing(layer, children);
  return Array.from({ length: iterations }, (_, t) => {
    const sums = new Float32Array(place.height * place.width);
    const counts = new Float32Array(sums.length);
    for (let window = 0; window < places; window++) {
      for (let i = 0; i < children; i++) {
        const at = place.of(window, i);
        if (at === null) continue;
        sums[at] = (sums[at] ?? 0) + added(layer, (t * places + window) * children + i, parents, parent);
        counts[at] = (counts[at] ?? 0) + 1;
      }
    }
    return { height: place.height, width: place.width, values: sums.map((sum, k) => sum / Math.max(1, counts[k] ?? 0)) };
  });
}

function added(layer: TracedLayer, child: number, parents: number, parent: number): number {
  const k = child * parents + parent;
  const factor = layer.routing === "em" ? (layer.children?.data[child] ?? 1) : Math.max(0, layer.agreement.data[k] ?? 0);
  return (layer.couplings.data[k] ?? 0) * factor;
}

/** The position of child `i` in a window; null where the window extends beyond the edge of the map. */
function placing(layer: TracedLayer, children: number) {
  const { childGrid, kernel, strides, grid, typesFirst } = layer;
  if (!childGrid || !kernel || children % (kernel[0] * kernel[1])) {
    const width = Math.min(BINS, children);
    return { height: 1, width, of: (_: number, i: number): number | null => Math.floor((i * width) / children) };
  }
  const [height, width] = childGrid;
  const types = children / (kernel[0] * kernel[1]);
  const [down, right] = strides ?? [1, 1];
  const of = (window: number, i: number): number | null => {
    const inner = typesFirst ? i % (kernel[0] * kernel[1]) : Math.floor(i / types);
    const y = Math.floor(window / grid[1]) * down + Math.floor(inner / kernel[1]);
    const x = (window % grid[1]) * right + (inner % kernel[1]);
    return y < height && x < width ? y * width + x : null;
  };
  return { height, width, of };
}

/** What a parent's bar shows. */
export function strengthName(layer: TracedLayer): string {
  if (layer.activations) return "activation";
  return layer.routing === "dynamic" || layer.routing === "self-attention" ? "length" : "mean coupling";
}

/** The strength of each parent type after each iteration, averaged over the parents' map. */
export function strengths(layer: TracedLayer): Float32Array[] {
  const { iterations, places, children, parents } = sizesOf(layer);
  const name = strengthName(layer);
  const size = layer.poses.dims[layer.poses.dims.length - 1] ?? 1;
  const lengthOf = (k: number) => Math.hypot(...layer.poses.data.subarray(k * size, (k + 1) * size));
  const one = (row: number, j: number): number => {
    if (name === "activation") return layer.activations?.data[row * parents + j] ?? 0;
    if (name === "length") return lengthOf(row * parents + j);
    let sum = 0;
    for (let i = 0; i < children; i++) sum += layer.couplings.data[(row * children + i) * parents + j] ?? 0;
    return sum / children;
  };
  return Array.from({ length: iterations }, (_, t) =>
    Float32Array.from({ length: parents }, (_, j) => {
      let sum = 0;
      for (let window = 0; window < places; window++) sum += one(t * places + window, j);
      return sum / places;
    }),
  );
}
