/** The values of every routing iteration, for files exported with a trace. */
import { elements } from "./outputs.js";
import { CapsedgeError } from "./errors.js";
import type { Port } from "./graph.js";
import type { Limits } from "./limits.js";
import type { Outputs } from "./runner.js";
import type { TraceLayer } from "./declared-fields.js";
import type { TRACE_REQUIRED, TraceKind } from "./generated/spec.js";
import { grouped } from "./text.js";
import type { FloatArray } from "./tensors.js";

/**
 * The routing of one layer on one image, iteration by iteration.
 *
 * The shapes are those of a dense layer; if the parents lie on a map, its rows and columns follow T. Child `i` of a
 * window has the row `dy`, the column `dx` and the type `c` with `i = (dy * kernel[1] + dx) * C + c`, or, with
 * `typesFirst`, `i = (c * kernel[0] + dy) * kernel[1] + dx`.
 */
export interface TracedLayer extends Omit<TraceLayer, "outputs"> {
  /** The couplings of the weighted sum in each iteration, `[T, I, J]`. */
  readonly couplings: FloatArray;
  /** The poses of the parents after each iteration, `[T, J, P]`. */
  readonly poses: FloatArray;
  /** The product of each vote and the parent's pose, `[T, I, J]`; for EM routing, the responsibilities. */
  readonly agreement: FloatArray;
  /** EM: distances between votes and poses, `[T, I, J]` (Hinton et al. 2018, fig. 2). */
  readonly distances?: FloatArray;
  /** EM: activations of the parents after each iteration, `[T, J]`. */
  readonly activations?: FloatArray;
  /** EM: activations of the children, `[T, I]`, the same in every iteration. */
  readonly children?: FloatArray;
}

/** Names of the outputs of all layers. */
export function tracedOutputs(layers: readonly TraceLayer[]): string[] {
  return layers.flatMap((layer) => [...layer.outputs.values()]);
}

/**
 * Refuse a trace whose values take too much memory, as far as the file fixes their sizes.
 *
 * @throws CapsedgeError `limit`.
 */
export function checkTrace(layers: readonly TraceLayer[], outputs: readonly Port[], limits: Limits): void {
  const names = new Set(tracedOutputs(layers));
  const values = outputs.filter((port) => names.has(port.name)).reduce((sum, port) => sum + (elements(port) ?? 0), 0);
  if (4 * values > limits.tracedBytes) {
    throw new CapsedgeError(
      "limit",
      `The trace of an image takes ${grouped(4 * values)} bytes; the limit is ${grouped(limits.tracedBytes)}.`,
      "Trace a smaller model.",
    );
  }
}

/** The traced layers of one image. */
export function tracedLayers(layers: readonly TraceLayer[], outputs: Outputs): TracedLayer[] {
  return layers.map(({ outputs: names, ...layer }) => {
    const values = [...names].map(([kind, name]) => [kind, ofImage(outputs.get(name) as FloatArray)]);
    return {
      ...layer,
      ...(Object.fromEntries(values) as Record<(typeof TRACE_REQUIRED)[number], FloatArray> &
        Partial<Record<TraceKind, FloatArray>>),
    };
  });
}

/** The first image's values, copied out of the batch. */
export function ofImage({ data, dims }: FloatArray): FloatArray {
  return { data: data.slice(0, data.length / (dims[0] ?? 1)), dims: dims.slice(1) };
}
