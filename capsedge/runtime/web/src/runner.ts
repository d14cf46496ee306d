/** Run a model on one image, or on the batch size that its file fixes. */
import type { Computed, Runnable } from "./engine.js";
import { CapsedgeError } from "./errors.js";
import type { Port } from "./graph.js";
import { short } from "./text.js";
import { floats, type FloatArray } from "./tensors.js";

/** Outputs by name, each `[n, ...]`. */
export type Outputs = ReadonlyMap<string, FloatArray>;

/**
 * Run `count` items `[count, ...item]`; a fixed batch is padded with zeros, whose outputs are removed.
 *
 * @param count at most the fixed batch size, if there is one.
 */
export async function runItems(
  engine: Runnable,
  port: Port,
  data: Float32Array,
  count: number,
  item: readonly number[],
  outputs: readonly string[],
): Promise<Outputs> {
  const batch = port.shape[0] ?? count;
  let fed = data;
  if (batch > count) {
    fed = new Float32Array((data.length / count) * batch);
    fed.set(data);
  }
  const found = await engine.run(port, { data: fed, dims: [batch, ...item] }, outputs);
  return new Map(outputs.map((name) => [name, firstOf(found.get(name), name, count, batch)]));
}

function firstOf(tensor: Computed | undefined, name: string, count: number, batch: number): FloatArray {
  if (!tensor || tensor.dims[0] !== batch) {
    throw new CapsedgeError(
      "file",
      `The model computed '${short(name)}' [${tensor?.dims.join(", ") ?? ""}] of ${batch} images.`,
      "Export the model again with `capsedge export`.",
    );
  }
  const all = floats(tensor);
  const dims = [count, ...tensor.dims.slice(1)];
  return { data: all.subarray(0, (all.length / batch) * count), dims };
}
